"""Client with which the broker appends its own records, on the same path as other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.broker.identity import own_address

if TYPE_CHECKING:
    from penstock.broker.identity import Identity
    from penstock.client.appender import Appender
    from penstock.client.producers import ProducerIdentity
    from penstock.records.columnar import EncodedBatch

FIRST_EPOCH: Final = 0
"""Producer epoch of every new producer of the broker, because each gets a new producer id."""


class OwnAppender:
    """Appender for the broker's own records. Belongs to the event-loop thread."""

    def __init__(self, identity: Identity, client_id: str, *, timeout_ms: int) -> None:
        """`timeout_ms` limits one append."""
        self._identity = identity
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._starting: asyncio.Task[Appender] | None = None

    async def producer(self) -> ProducerIdentity:
        """Return a new producer, whose sequences begin at 0; raises PenstockError."""
        from penstock.client.producers import ProducerIdentity

        return ProducerIdentity(await (await self._appender()).producer_id(), FIRST_EPOCH)

    async def append(
        self,
        producer: ProducerIdentity,
        topic: str,
        partition: int,
        batches: Sequence[EncodedBatch],
    ) -> None:
        """Append batches, and return when they are acknowledged (`acks=all`).

        Raises:
            PenstockError: the batches may or may not have been appended. After a `RetriableError`
                the same producer may append them again without duplicates.
        """
        from penstock.client.producer_partitions import Pieces, ProducerPartition

        ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        refused = (await self._appender()).append(
            ProducerPartition(
                producer.producer_id, producer.epoch, topic, partition, idempotent=True
            ),
            [Pieces(batch.data, batch.record_count) for batch in batches],
            producer.sequence(topic, partition),
            done,
        )
        error = refused or await ended
        if error is not None:
            raise error
        producer.advance(topic, partition, sum(batch.record_count for batch in batches))

    async def stop(self) -> None:
        if self._starting is None:
            return
        starting, self._starting = self._starting, None
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().stop(0)

    async def _appender(self) -> Appender:
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            return await asyncio.shield(self._starting)
        except PenstockError:
            self._starting = None
            raise

    async def _start(self) -> Appender:
        from penstock.client import limits
        from penstock.client.appender import Appender

        appender = Appender(
            own_address(self._identity),
            client_id=self._client_id,
            retry=replace(limits.RETRY, timeout_ms=self._timeout_ms),
            security=self._identity.as_client(),
        )
        await appender.start()
        return appender
