"""Commit of a batch as one Kafka transaction: readers of committed records see all or none of it.

The broker appends as a client, to partitions of all kinds. (A batch that writes only diskless
topics needs no transaction: one database transaction commits it.) The intent is saved first, so
that the batch will be committed. An attempt to finish the intent has these steps:

    begin    initialise the query's transactional id; this aborts an open transaction of an earlier
             attempt, and fences its later appends
    check    read the offset of the consumer group with the same id; if it is the intent's version,
             an earlier attempt has committed the batch: save the row as done
    append   append all records, in the new epoch
    offset   add the intent's version to the transaction, as the offset of the group
    commit   commit the transaction, then save the row as done

A later attempt begins with the first step again. The offset takes effect together with the records,
and versions of rows never repeat. So no batch is committed twice: neither after a lost response,
nor by two brokers that both work on the intent. The offset is set for partition 0 of every written
topic, because offsets are deleted with their topic. A broker that lacks the blobs begins no
transaction; it only checks whether an earlier attempt has committed the batch.

Source: KIP-98, KIP-447, KIP-890; `docs/decisions/0042-a-sinks-transaction-is-the-brokers.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import PenstockError
from penstock.broker.net.listeners import own_address
from penstock.client import Client

if TYPE_CHECKING:
    from penstock.client.producers import ProducerIdentity
    from penstock.control import SinkCommit

from penstock.broker.batch_commits.commit import CLIENT_ID, SinkContext

TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Transaction timeout of a commit, limited by `transaction.max.timeout.ms`.

If the broker fails permanently, readers of committed records wait at most this long.
"""


T = TypeVar("T")


_PREFIX: Final = "penstock-sink/"


def transactional_id_of(query: str) -> str:
    """Return the transactional id of a query; the group with its offset has the same id."""
    return _PREFIX + query


class SinkTransaction:
    """Transaction of one attempt. Belongs to the event loop; its calls run on a thread."""

    def __init__(self, context: SinkContext, row: SinkCommit) -> None:
        self.transactional_id = transactional_id_of(row.query_id)
        self._version = row.version
        timeout_ms = min(TRANSACTION_TIMEOUT_MS, context.settings.transaction_max_timeout_ms)
        self._client = Client(
            own_address(context.identity),
            client_id=CLIENT_ID,
            security=context.identity.as_client(),
        )
        self._producer = self._client.transactional(self.transactional_id, timeout_ms=timeout_ms)
        # A separate thread: these calls wait for work that needs threads of the shared pool.
        self._calls = ThreadPoolExecutor(1, "penstock-sink-transaction")

    async def begin(self) -> None:
        """Abort an open transaction of the id and begin a new one.

        Raises:
            PenstockError: no coordinator responds.
        """
        await self._call(self._producer.begin)

    def lend(self) -> ProducerIdentity:
        return self._producer.lend()

    async def is_committed(self) -> bool:
        """Whether an attempt has committed the batch.

        Before `begin`, an earlier attempt may still commit after a result of False.
        """
        offsets = await self._call(lambda: self._client.committed(self.transactional_id))
        return any(found.offset == self._version for found in offsets.values())

    async def commit(self, topics: Collection[str]) -> None:
        """Commit the appends to these topics, with the group's offset.

        Raises:
            PenstockError: the transaction is not committed, or its outcome is unknown.
        """
        producer = self._producer
        offsets = {(topic, 0): self._version for topic in topics}
        await self._call(lambda: producer.send_offsets(self.transactional_id, offsets))
        await self._call(producer.commit)

    async def abort(self) -> None:
        """Abort the transaction; if that fails, the next attempt or the coordinator aborts it."""
        try:
            await self._call(self._producer.abort)
        except PenstockError:
            return

    def close(self) -> None:
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)
