"""What a commit appends to partitions with several replicas, whoever leads them.

The broker is a client there, of itself too: an idempotent producer whose batches a quorum
acknowledges, and which sends them again to the next leader when one goes. How much of a commit a
partition has is asked of its leader, which tells it once all of that is committed
(DescribeProducers): nothing counts that a fail-over could take back.

A client lives as long as one attempt: what an earlier one has left under way is a duplicate.

Source: KIP-98, KIP-664.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.broker.identity import own_address
from penstock.client.appender import Appender
from penstock.client.producer_partitions import Pieces, ProducerPartition
from penstock.records import split_batches

if TYPE_CHECKING:
    from penstock.base.errors import PenstockError
    from penstock.broker.batch_commits.pieces import Piece
    from penstock.broker.identity import Identity
    from penstock.storage import LogConfig


CLIENT_ID: Final = "penstock-sink"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedTarget:
    """A partition that any broker may lead."""

    topic: str
    partition: int
    config: LogConfig
    producer_epoch: int = 0
    transactional_id: str | None = None

    def producer(self, producer_id: int) -> ProducerPartition:
        """One of the commit's producers here."""
        return ProducerPartition(
            producer_id,
            self.producer_epoch,
            self.topic,
            self.partition,
            idempotent=True,
            transactional_id=self.transactional_id,
        )


class ReplicatedAppends:
    """See the module's text: those of one attempt. Belongs to the event loop."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._appender: Appender | None = None

    async def last_sequence(self, target: ReplicatedTarget, producer_id: int) -> int | None:
        """What the partition has committed of a producer; None for one that it does not know.

        Raises:
            PenstockError: no leader answers in time.
        """
        appender = await self.start()
        return await appender.last_sequence(target.producer(producer_id))

    def append(
        self, target: ReplicatedTarget, piece: Piece
    ) -> asyncio.Future[PenstockError | None]:
        """Have a piece appended behind those before; resolved when all of it is committed."""
        ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        if self._appender is None:
            raise RuntimeError("a partition is appended to before there is a client")
        batches, position = [], 0
        for header in split_batches(piece.data):
            end = position + header.size_bytes
            batches.append(Pieces(piece.data[position:end], header.record_count))
            position = end
        refused = self._appender.append(
            target.producer(piece.run.producer_id), batches, piece.first_sequence, done
        )
        if refused is not None:
            raise refused
        return ended

    async def close(self) -> None:
        """Wait for nothing any more."""
        if self._appender is not None:
            await self._appender.stop(0)

    async def start(self) -> Appender:
        """Become a client of this broker, if this is none yet."""
        if self._appender is None:
            self._appender = Appender(
                own_address(self._identity),
                client_id=CLIENT_ID,
                security=self._identity.as_client(),
            )
            await self._appender.start()
        return self._appender
