"""Appends of a commit to replicated partitions, whichever broker leads them.

The broker appends as a client with an idempotent producer, even to partitions that it leads. A
quorum acknowledges each batch, and the client retries batches at a new leader. The leader reports
the last sequence of a producer (DescribeProducers) only once its records are committed, so that no
failover can revoke them. A client serves one attempt; the leader ignores batches of an earlier
attempt as duplicates.

Source: KIP-98, KIP-664.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.broker.identity import own_address
from penstock.records import split_batches

if TYPE_CHECKING:
    from penstock.base.errors import PenstockError
    from penstock.broker.batch_commits.pieces import Piece
    from penstock.broker.identity import Identity
    from penstock.client.appender import Appender
    from penstock.client.producer_partitions import ProducerPartition
    from penstock.storage import LogConfig


CLIENT_ID: Final = "penstock-sink"


class ReplicatedTarget(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    config: LogConfig
    producer_epoch: int = 0
    transactional_id: str | None = None

    def producer(self, producer_id: int) -> ProducerPartition:
        from penstock.client.producer_partitions import ProducerPartition

        return ProducerPartition(
            producer_id,
            self.producer_epoch,
            self.topic,
            self.partition,
            idempotent=True,
            transactional_id=self.transactional_id,
        )


class ReplicatedAppends:
    """Appends of one attempt to replicated partitions. Belongs to the event loop."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._appender: Appender | None = None

    async def last_sequence(self, target: ReplicatedTarget, producer_id: int) -> int | None:
        """Return a producer's last committed sequence; None for an unknown producer.

        Raises:
            PenstockError: no leader responds in time.
        """
        appender = await self.start()
        return await appender.last_sequence(target.producer(producer_id))

    def append(
        self, target: ReplicatedTarget, piece: Piece
    ) -> asyncio.Future[PenstockError | None]:
        """Append a piece after earlier ones; return a future of its commit, or of the error."""
        ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        if self._appender is None:
            raise RuntimeError("append() requires start() or last_sequence() first")
        from penstock.client.producer_partitions import Pieces

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
        if self._appender is not None:
            await self._appender.stop(0)

    async def start(self) -> Appender:
        if self._appender is None:
            from penstock.client.appender import Appender

            self._appender = Appender(
                own_address(self._identity),
                client_id=CLIENT_ID,
                security=self._identity.as_client(),
            )
            await self._appender.start()
        return self._appender
