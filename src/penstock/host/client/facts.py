"""What both clients can say of themselves, read from the core that they share."""

from __future__ import annotations

from penstock.host.credits import Credit
from penstock.host.delivery import Delivery


class ProducerFacts:
    """Who this producer is, and what it has under way."""

    _core: Delivery

    @property
    def credit(self) -> Credit:
        """What the agent takes now."""
        return self._core.machine.window.available

    @property
    def producer_id(self) -> int:
        """Who this producer is, -1 until an agent has given it a name."""
        return self._core.machine.producer_id

    @property
    def producer_epoch(self) -> int:
        return self._core.machine.producer_epoch

    @property
    def outstanding(self) -> int:
        """Frames whose fate is not known."""
        return self._core.outstanding

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has that was named to the client; 0 when not known."""
        return self._core.machine.partitions.get(topic, 0)
