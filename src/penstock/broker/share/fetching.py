"""Handler of ShareFetch: acquires records from the partitions of a session in turn.

If there are none, it waits until a log grows or records are released. Data in an object store is
loaded first, as for a Fetch.

The records of all partitions of a request are acquired in memory, in one turn of the event loop.
They are returned once the acquisition is stored. A member whose session has ended meanwhile gets no
records.

Source: KIP-932, KIP-1206 (acquire mode); Kafka's `DelayedShareFetch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.broker.share.acknowledging import Answers
from penstock.broker.share.sessions import Place, ShareSession
from penstock.broker.share.values import Acquired, Batch, ShareSettings
from penstock.records.header import HEADER_BYTES, BatchHeader, decode_header
from penstock.storage.files.values import Buffer, Later

if TYPE_CHECKING:
    from penstock.broker.fetch.operation import FetchHub, SharedReads
    from penstock.broker.share.shares import Shares
    from penstock.broker.share.stored import StoredShare
    from penstock.records.transactions import AbortedTransaction
    from penstock.storage import Read


# Batches of a log read, and selection of those that contain acquired records.
#
# Only batch headers are decoded. The response contains whole batches and the acquired offset
# ranges; batches without acquired records are omitted.


class Found(NamedTuple):
    header: BatchHeader
    begin: int
    end: int


class _Bytes:
    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers]
        self._index = self._before = 0

    def __len__(self) -> int:
        return sum(map(len, self._views))

    def pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes in [begin, end); the ranges of successive calls must ascend."""
        while begin < end:
            view = self._views[self._index]
            after = self._before + len(view)
            if begin >= after:
                self._before = after
                self._index += 1
                continue
            yield view[begin - self._before : end - self._before]
            begin = min(end, after)


def walk(buffers: Sequence[Buffer]) -> Iterator[Found]:
    """Yield the batches of consecutive buffers; a batch may extend over several buffers.

    Raises:
        CorruptBatch: a header is not valid.
    """
    whole = _Bytes(buffers)
    at, end = 0, len(whole)
    while at < end:
        pieces = list(whole.pieces(at, min(at + HEADER_BYTES, end)))
        header = decode_header(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        yield Found(header, at, at + header.size_bytes)
        at += header.size_bytes


def offered(found: Found, aborted: Sequence[AbortedTransaction] = ()) -> Batch:
    """Return the offsets of a batch. Control batches and aborted batches have no records."""
    header = found.header
    records = not header.is_control
    if records and aborted and header.is_transactional:
        records = not any(
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in aborted
        )
    return Batch(header.base_offset, header.last_offset, records)


def holding(
    found: Sequence[Found], buffers: Sequence[Buffer], acquired: Sequence[Acquired]
) -> tuple[list[Buffer], int]:
    """Return the bytes of the batches that contain acquired records, and the size in bytes.

    A response contains whole batches, also if the member acquired only some of their records.
    """
    spans: list[list[int]] = []
    number = 0
    for header, begin, end in found:
        while number < len(acquired) and acquired[number].last < header.base_offset:
            number += 1
        if number == len(acquired):
            break
        if acquired[number].first <= header.last_offset:
            if spans and spans[-1][1] == begin:
                spans[-1][1] = end
            else:
                spans.append([begin, end])
    whole = _Bytes(buffers)
    size = sum(end - begin for begin, end in spans)
    return [piece for begin, end in spans for piece in whole.pieces(begin, end)], size


def cut(acquired: Sequence[Acquired], records: int) -> list[Acquired]:
    """Split ranges of acquired records into ranges of at most `records`; 0 splits none.

    `records` is the batch size of a ShareFetch request.
    """
    if records <= 0:
        return list(acquired)
    return [
        Acquired(first, min(first + records - 1, run.last), run.deliveries)
        for run in acquired
        for first in range(run.first, run.last + 1, records)
    ]


FETCH_ROUNDS_MAX: Final = 100
"""Maximum number of reads of a partition by one request while they yield no records."""
READ_BYTES: Final = 256 << 10
"""Maximum bytes of a partition's first read, before the size of its records is known."""
READ_BYTES_MIN: Final = 16 << 10
READ_SPARE: Final = 1.25
"""Factor by which a read exceeds the estimated size of the requested records."""

RECORD_LIMIT: Final = 1
"""Acquire mode that never exceeds the requested number of records."""


logger = logging.getLogger(__name__)


class _Available(NamedTuple):
    """Read of a partition from its first available record on, and the aborted transactions."""

    stored: StoredShare
    begin: int
    read: Read
    aborted: Sequence[AbortedTransaction]


class ShareFetching:
    """Acquisition of records for one ShareFetch request, which waits at the hub for new records."""

    def __init__(
        self,
        answers: Answers,
        session: ShareSession,
        settings: ShareSettings,
        request: Any,
        *,
        shares: Shares,
        hub: FetchHub,
        bytes_max: int,
    ) -> None:
        """Create the acquisition; `bytes_max` is the broker's limit for the bytes of a response."""
        self._answers = answers
        self._session = session
        self._settings = settings
        self._shares = shares
        self._hub = hub
        self._min_bytes: int = request.min_bytes
        self._max_bytes: int = min(request.max_bytes, bytes_max)
        self._left: int = request.max_records
        self._batch_size: int = request.batch_size
        self._exact = getattr(request, "share_acquire_mode", 0) == RECORD_LIMIT
        self._size = 0
        self._acquired: list[tuple[Place, asyncio.Future[None]]] = []
        self._later: list[Later] = []
        self._again = asyncio.Event()
        self._over = False

    # Callbacks of the hub

    def look_again(self, reads: SharedReads) -> None:
        self._again.set()

    def expire(self) -> None:
        self._over = True
        self._again.set()

    # Acquisition

    async def run(self, wait_seconds: float) -> None:
        """Acquire records and store that; if there are none, wait for at most `wait_seconds`."""
        if self._left <= 0:
            return
        waiting: list[object] = []
        timer: Any = None
        try:
            while True:
                await self._answers.open(list(self._session.partitions))
                if self._session.closed:
                    return
                self._again.clear()
                sources = self._look()
                if self._acquired or self._over or self._failed() or wait_seconds <= 0:
                    break
                if timer is None:
                    waiting = sources
                    timer = self._hub.add(self, waiting, wait_seconds)
                self._load()
                await self._again.wait()
        finally:
            if timer is not None:
                timer.cancel()
                self._hub.remove(self, waiting)
        await self._stored()

    def _failed(self) -> bool:
        return any(answer.error for answer in self._answers.found.values())

    def _look(self) -> list[object]:
        """Acquire records from the partitions in turn; return what to wait for if there are none.

        Returns partitions, and keys of share partitions, as the fetch hub expects them.
        """
        sources: list[object] = []
        if self._min_bytes > 1 and not self._over and self._available(sources) < self._min_bytes:
            return sources
        sources.clear()
        for place in list(self._session.partitions):
            if self._left <= 0 or self._size >= self._max_bytes:
                break
            try:
                self._acquire(place, sources)
            except Exception as error:
                self._answers.failed(place, error)
        return sources

    def _available(self, sources: list[object]) -> int:
        size = 0
        for place in self._session.partitions:
            try:
                found = self._find(place, sources)
            except Exception as error:
                self._answers.failed(place, error)
                return self._min_bytes
            size += 0 if found is None else found.read.size_bytes
            if size >= self._min_bytes:
                break
        return size

    def _find(self, place: Place, sources: list[object]) -> _Available | None:
        source = self._answers.source(place)
        stored = self._shares.held(self._answers.group_id, source)
        if stored is None:
            return None
        sources += (source, stored.key)
        share = stored.share
        self._shares.log_begins(stored, source)
        begin = share.next_offset()
        end = source.last_stable_offset if self._settings.committed else source.high_watermark
        if begin is None or begin >= end:
            if begin == end:
                source.check_end()
            return None
        read = source.read(
            begin,
            max_bytes=self._read_bytes(stored),
            end_offset=end,
            at_least_one=True,
        )
        if isinstance(read, Later):
            self._later.append(read)
            return None
        if not read.size_bytes:
            return None
        aborted = source.aborted(begin, read.next_offset) if self._settings.committed else ()
        if isinstance(aborted, Later):
            self._later.append(aborted)
            return None
        return _Available(stored, begin, read, aborted)

    def _read_bytes(self, stored: StoredShare) -> int:
        guess = stored.record_bytes * self._left * READ_SPARE or READ_BYTES
        return min(max(int(guess), READ_BYTES_MIN), self._max_bytes - self._size)

    def _acquire(self, place: Place, sources: list[object]) -> None:
        for _ in range(FETCH_ROUNDS_MAX):
            found = self._find(place, sources)
            if found is None:
                return
            stored, begin, read, aborted = found
            now_ms = self._shares.now_ms()
            undeliverable = stored.share.expire(now_ms)
            if undeliverable:
                self._shares.released(stored, undeliverable)
            seen: list[Found] = []
            acquired = stored.share.acquire(
                self._answers.member,
                _batches(read, aborted, seen),
                begin=begin,
                records_max=self._left,
                exact=self._exact,
                now_ms=now_ms,
            )
            saved = stored.store()
            if acquired:
                self._give(place, stored, read, seen, acquired)
                self._acquired.append((place, saved))
                return

    def _give(
        self,
        place: Place,
        stored: StoredShare,
        read: Read,
        seen: Sequence[Found],
        acquired: Sequence[Acquired],
    ) -> None:
        answer = self._answers.answer(place)
        answer.buffers, answer.size_bytes = holding(seen, read.buffers, acquired)
        answer.acquired = cut(acquired, self._batch_size)
        count = sum(run.last - run.first + 1 for run in acquired)
        self._left -= count
        self._size += answer.size_bytes
        stored.record_bytes = answer.size_bytes / count
        self._shares.acquired += count
        self._shares.watch(stored)
        self._session.asked_last(place)

    def _load(self) -> None:
        wants: dict[Callable[[Sequence[Any], int], None], list[Any]] = {}
        for load, want in self._later:
            wants.setdefault(load, []).append(want)
        self._later.clear()
        for load, requests in wants.items():
            load(requests, self._max_bytes)

    async def _stored(self) -> None:
        for place, saved in self._acquired:
            try:
                await asyncio.shield(saved)
            except PenstockError as error:
                logger.warning("%s", error)
                self._answers.nothing(place)


def _batches(
    read: Read, aborted: Sequence[AbortedTransaction], seen: list[Found]
) -> Iterator[Batch]:
    for found in walk(read.buffers):
        seen.append(found)
        yield offered(found, aborted)
