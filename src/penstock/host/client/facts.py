"""Facts about a producer that both clients read from their core."""

from __future__ import annotations

from penstock.host.credits import Credit
from penstock.host.delivery import Delivery


class ProducerFacts:
    """Identity of this producer, and its frames in flight."""

    _core: Delivery

    @property
    def credit(self) -> Credit:
        """Return the credit that is left."""
        return self._core.machine.window.available

    @property
    def producer_id(self) -> int:
        """Return the producer id, -1 until an agent has assigned one."""
        return self._core.machine.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._core.machine.producer_epoch

    @property
    def outstanding(self) -> int:
        """Number of frames that have not ended."""
        return self._core.outstanding

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of one of the client's topics; 0 if it is unknown."""
        return self._core.machine.partitions.get(topic, 0)
