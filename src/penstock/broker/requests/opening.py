"""Decompression and validation of a produce request's batches, large ones in a separate process.

While a thread decompresses many megabytes it repeatedly holds the interpreter's lock, and the event
loop waits. Requests of more than `OPENED_NEARBY_BYTES_MAX` therefore go to a process with lower
priority (`HelperProcess`).

A request to the process is a message with the settings of all batches, then a message per batch.
The first message of the response has the error of each batch, or whether it was recompressed and
the schema ids of its records. Then follows a message per recompressed batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from penstock.base.helper_process import IDLE_SECONDS, HelperProcess
from penstock.records.compression import Allowance
from penstock.storage.files.settings import LogConfig
from penstock.storage.log.validation import prepared

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from penstock.records.columnar.schema_ids import Part, PartIds, SchemaIdReader

logger = logging.getLogger(__name__)

OPENED_NEARBY_BYTES_MAX: Final = 8 << 20
"""Limit of a request's bytes, before and after decompression, above which the process is used."""


class Sealed(NamedTuple):
    """Batch to validate. `with_ids`: its schema ids are read, if its configuration demands ids."""

    records: memoryview
    config: LogConfig
    transactional: bool
    with_ids: bool = False


class Opened(NamedTuple):
    """Batch that is ready to be appended, with the schema ids of its records if they were read."""

    records: memoryview
    ids: tuple[PartIds, ...] = ()


OpenResult = Opened | Exception
"""Batch that is ready to be appended, or the error that rejects it."""


def open_batches(batches: Sequence[Sealed], now_ms: int, allowance: Allowance) -> list[OpenResult]:
    """Decompress and validate the batches of a request.

    Return for each the batch to append, recompressed if its configuration requires it, or its
    error. `allowance` limits the decompressed bytes.
    """
    return [_open(batch, now_ms, allowance) for batch in batches]


def _open(batch: Sealed, now_ms: int, allowance: Allowance) -> OpenResult:
    ids = reader_of(batch.config) if batch.with_ids else None
    try:
        ready, _ = prepared(
            batch.records, batch.config, now_ms, single=True,
            transactional=batch.transactional, allowance=allowance, ids=ids,
        )  # fmt: skip
    except Exception as error:
        return error
    return Opened(ready, () if ids is None else ids.found)


def demanded(config: LogConfig) -> list[Part]:
    """Return the parts of records that must have schema ids."""
    parts: list[Part] = []
    if config.schema_validation_key:
        parts.append("key")
    if config.schema_validation_value:
        parts.append("value")
    return parts


def reader_of(config: LogConfig) -> SchemaIdReader | None:
    """Return a reader of the schema ids that a configuration demands; None if it demands none."""
    parts = demanded(config)
    if not parts:
        return None
    from penstock.records.columnar.schema_ids import SchemaIdReader

    return SchemaIdReader(parts)


class OpeningProcess(HelperProcess):
    """Process that opens the batches of large requests."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        super().__init__(__name__, idle_seconds)

    def opened(self, batches: Sequence[Sealed], now_ms: int) -> list[OpenResult]:
        """Call `open_batches`, for large requests in the separate process.

        If that process fails, they are handled in the broker's own process.
        """
        if sum(len(batch.records) for batch in batches) < OPENED_NEARBY_BYTES_MAX:
            allowance = Allowance(OPENED_NEARBY_BYTES_MAX)
            found = open_batches(batches, now_ms, allowance)
            if allowance.left_bytes > 0:
                return found
        try:
            return self.ask(lambda connection: _ask(connection, batches, now_ms))
        except (OSError, EOFError) as error:
            if self.closed:
                raise
            logger.warning(
                "the process that decompresses large batches failed: %r; decompressing in"
                " the broker, which delays other clients", error,
            )  # fmt: skip
        return open_batches(batches, now_ms, Allowance())


def _ask(connection: Connection, batches: Sequence[Sealed], now_ms: int) -> list[OpenResult]:
    connection.send((now_ms, [batch[1:] for batch in batches]))
    for batch in batches:
        connection.send_bytes(batch.records)
    answers: list[Exception | tuple[bool, tuple[PartIds, ...]]] = connection.recv()
    found: list[OpenResult] = []
    for batch, answer in zip(batches, answers, strict=True):
        if isinstance(answer, Exception):
            found.append(answer)
            continue
        changed, ids = answer
        records = memoryview(bytearray(connection.recv_bytes())) if changed else batch.records
        found.append(Opened(records, ids))
    return found


def serve(connection: Connection) -> None:
    """Answer one request in the process."""
    now_ms, topics = connection.recv()
    batches = [Sealed(memoryview(connection.recv_bytes()), *topic) for topic in topics]
    found = open_batches(batches, now_ms, Allowance())
    pairs = list(zip(batches, found, strict=True))
    connection.send([
        ready if isinstance(ready, Exception)
        else (ready.records is not batch.records, ready.ids)
        for batch, ready in pairs
    ])  # fmt: skip
    for batch, ready in pairs:
        if not isinstance(ready, Exception) and ready.records is not batch.records:
            connection.send_bytes(ready.records)


# Thread that decompresses and validates batches of produce requests, fairly between clients.
#
# A small batch may decompress to many megabytes, which would block the event loop. The thread takes
# one request of each client in turn, and sends large requests to a process
# (`OpeningProcess`). A connection has at most one request in the queues.


T = TypeVar("T")


class _Waiting(Generic[T]):
    __slots__ = ("job", "result")

    def __init__(self, job: Callable[[], T], result: asyncio.Future[T]) -> None:
        self.job = job
        self.result = result


class Opener:
    """Decompression thread with a queue for each client."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._queues: dict[Hashable, deque[_Waiting[Any]]] = {}
        """Queues of waiting requests by client. The first client is the next in turn."""
        self._busy = False
        self._process = OpeningProcess()

    async def opened(
        self, client: Hashable, batches: Sequence[Sealed], now_ms: int
    ) -> list[OpenResult]:
        """Decompress and validate a request's batches (`open_batches`) in this client's turn."""
        return await self.run(client, lambda: self._process.opened(batches, now_ms))

    async def run(self, client: Hashable, job: Callable[[], T]) -> T:
        """Run `job` on the thread in this client's turn, and return its result.

        If the caller is cancelled, a waiting job is dropped, and a running one ends normally.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(_Waiting(job, result))
        self._next()
        return await result

    def _next(self) -> None:
        while self._queues and not self._busy:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            waiting = queue.popleft()
            if queue:
                self._queues[client] = queue
            if not waiting.result.cancelled():
                self._begin(waiting)

    def _begin(self, waiting: _Waiting[Any]) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "opener")
        self._busy = True
        ran = asyncio.get_running_loop().run_in_executor(self._thread, waiting.job)
        ran.add_done_callback(lambda done: self._ended(waiting.result, done))

    def _ended(self, result: asyncio.Future[Any], done: asyncio.Future[Any]) -> None:
        self._busy = False
        if done.cancelled():
            result.cancel()
        elif not result.done():
            error = done.exception()
            if error is None:
                result.set_result(done.result())
            else:
                result.set_exception(error)
        self._next()

    def close(self) -> None:
        """Cancel waiting jobs, and end the process and the thread."""
        for queue in self._queues.values():
            for waiting in queue:
                waiting.result.cancel()
        self._queues.clear()
        if self._thread is not None:
            self._process.close()
            self._thread.submit(self._process.end)
            self._thread.shutdown(wait=False)
            self._thread = None
