"""The producer ids that a broker hands out, which it takes from the control plane in blocks.

None is handed out twice, also when a block is lost with the process.

Source: KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.control import ControlPlane

PRODUCER_ID_BLOCK: Final = 1000
"""Ids taken from the control plane at a time, as in Kafka."""


class ProducerIds:
    """The block of producer ids that this broker hands out next."""

    __slots__ = ("_block", "_control")

    def __init__(self, control: ControlPlane) -> None:
        self._control = control
        self._block: Iterator[int] = iter(())

    async def next(self) -> int:
        """An id that nobody had before."""
        for producer_id in self._block:
            return producer_id
        self._block = iter(await self._control.allocate_producer_ids(PRODUCER_ID_BLOCK))
        return await self.next()
