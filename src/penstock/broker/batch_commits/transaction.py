"""A commit as one Kafka transaction: readers of committed records see all of the batch, or nothing.

The broker is a client of the cluster, as for replicated partitions, for those of its own and for
diskless ones, too. (A batch for diskless topics alone needs no such thing: `objects.py` has it
counted at one instant.)
The intent is there before, so the batch will be in the log; the transaction says whether it is:

    begin    the application's transactional id is initialised. What an earlier attempt has left
             open is aborted, and nothing that such an attempt still sends is taken
    look     the offset of the group of that name: is it the intent's version?
             yes: the batch is in the log; the row is saved as done
    append   all of it, in the epoch that came with the beginning
    mark     the intent's version becomes the group's offset, with the transaction
    commit   the transaction; then the row is saved as done

An attempt that ends anywhere is followed by one that begins anew. The mark counts with the records
or not at all, and versions of rows never come again, so no batch is appended twice: not after an
answer that was lost, nor by two brokers that both take themselves for the intent's. A mark is at
partition 0 of every topic that is written to, since offsets go with their topic.

Another broker, which lacks the blobs, begins nothing; it may find that the batch is in the log.

Source: KIP-98, KIP-447, KIP-890; `docs/decisions/0042-a-sinks-transaction-is-the-brokers.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import PenstockError
from penstock.broker.batch_commits.limits import TRANSACTION_TIMEOUT_MS
from penstock.broker.batch_commits.replicated import CLIENT_ID
from penstock.broker.identity import own_address
from penstock.client import Client

if TYPE_CHECKING:
    from penstock.broker.batch_commits.parts import SinkParts
    from penstock.client.producers import ProducerIdentity
    from penstock.control import SinkCommit

T = TypeVar("T")
_PREFIX: Final = "penstock-sink/"


def transactional_id_of(query: str) -> str:
    """The transactional id of an application, and the group whose offset says what is there."""
    return _PREFIX + query


class SinkTransaction:
    """One attempt; see the module's text. Belongs to the event loop, its calls to one thread."""

    def __init__(self, parts: SinkParts, row: SinkCommit) -> None:
        self.transactional_id = transactional_id_of(row.query_id)
        self._version = row.version
        timeout_ms = min(TRANSACTION_TIMEOUT_MS, parts.settings.transaction_max_timeout_ms)
        self._client = Client(
            own_address(parts.identity), client_id=CLIENT_ID, security=parts.identity.as_client()
        )
        self._producer = self._client.transactional(self.transactional_id, timeout_ms=timeout_ms)
        # Of its own: what these calls wait for must not wait for a thread that they have.
        self._calls = ThreadPoolExecutor(1, "penstock-sink-transaction")

    async def begin(self) -> None:
        """End what is open under the id, so that only what is appended next can be committed.

        Raises:
            PenstockError: no coordinator gives one.
        """
        await self._call(self._producer.begin)

    def lend(self) -> ProducerIdentity:
        """With which all is appended, once this has begun."""
        return self._producer.lend()

    async def is_committed(self) -> bool:
        """Whether an attempt has committed. A no is final only after `begin`."""
        offsets = await self._call(lambda: self._client.committed(self.transactional_id))
        return any(found.offset == self._version for found in offsets.values())

    async def commit(self, topics: Collection[str]) -> None:
        """Make what was appended to these topics count.

        Raises:
            PenstockError: it does not, or that is not known.
        """
        producer = self._producer
        marks = {(topic, 0): self._version for topic in topics}
        await self._call(lambda: producer.send_offsets(self.transactional_id, marks))
        await self._call(producer.commit)

    async def abort(self) -> None:
        """Let readers go on; if that fails, the next attempt does it, or the coordinator."""
        try:
            await self._call(self._producer.abort)
        except PenstockError:
            return

    def close(self) -> None:
        """Give up the connections; what was called ends in its thread."""
        self._calls.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _call(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)
