"""InitProducerId: identities of idempotent producers.

Ids come from the control plane in blocks and are never used twice, also when a block is lost
with the process. A producer that comes back with its id simply gets a new one: without
transactions nothing refers to the old one.

Source: KIP-98, KIP-360.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.connection import RequestContext
from penstock.broker.errors import TransactionsUnsupported

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    producer_ids: ProducerIds


async def init_producer_id(parts: Parts, context: RequestContext, request: Any) -> dict[str, Any]:
    """Answer with a fresh producer id and epoch 0."""
    if request.transactional_id is not None:
        raise TransactionsUnsupported(
            f"transactional.id = {request.transactional_id!r}: transactions are not supported yet"
        )
    return {"producer_id": await parts.producer_ids.next(), "producer_epoch": 0}
