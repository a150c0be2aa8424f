"""Reader of batches from an object store, in a Spark task.

Slices are sorted by object. A task reads a *window* at a time: batches of several slices, limited
in bytes. Within a window, adjacent ranges of an object are merged into one request.

Reads use the cold path (`FetchPaths`): no cache, but retries, hedging and a
limited number of concurrent requests. Batches are then assembled as a broker does it: offsets and
append times are stamped, and every checksum is verified. If bytes of a slice are missing (deleted
object, unreachable store), the slice ends early, and the caller fetches the rest from the broker.
Wrong bytes are an error.

The store is opened with the options of the source and the environment of the executor. A store that
is a local directory must already exist. Slices with signed URLs are read only through these URLs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from penstock.archive.assembly import Result, Run, assemble, results_of
from penstock.archive.planning import Piece, merge, trim
from penstock.base.errors import InvalidSetting
from penstock.base.system import SYSTEM_CLOCK
from penstock.base.urls import without_credentials
from penstock.objects import (
    FetchPaths,
    FetchSettings,
    LaggingConsumerRejected,
    ObjectNotFound,
    ObjectRange,
    ObjectReader,
    ObjectStore,
    ObjectTruncated,
    StoreRefused,
    StoreUnavailable,
    open_store,
)
from penstock.objects.signed_store import SignedStore
from penstock.records.extents import SignedRange
from penstock.spark.errors import InvalidOption
from penstock.spark.options import STORE_OPTIONS
from penstock.spark.reads.chunks import CHUNK_BYTES, Chunk, Found, Slice, whole_batches

logger = logging.getLogger(__name__)

WINDOW_BYTES: Final = 16 << 20
"""Bytes of batches that one window reads; a task holds them twice in memory.

A range with a signed URL is read as a whole, even if it is larger.
"""

WINDOW_SLICES: Final = 1_000
"""Most slices of one window; each takes at least one request to the store."""

REQUESTS_AT_ONCE: Final = 16
REQUEST_TIMEOUT_MS: Final = 60_000
"""Timeout of one request, which may return many megabytes."""

LONG_AGO_MS: Final = 0
"""Timestamp of the requested data; one this old makes every read take the cold path."""

_NOT_HERE: Final = (ObjectNotFound, ObjectTruncated, LaggingConsumerRejected)
_NO_STORE: Final = (StoreUnavailable, StoreRefused)


class Part(NamedTuple):
    """Batches of one slice that are read in one window; `pieces` are their byte ranges."""

    slice_index: int
    pieces: list[Piece]


def object_chunks(url: str, options: Mapping[str, str], items: Sequence[Slice]) -> Iterator[Found]:
    """Yield chunks of slices from the store at `url`; the chunks of each slice come in offset
    order.

    If a slice cannot be read to its end, it ends early. Either all slices of a call have signed
    URLs, or none.

    Raises:
        CorruptObject: the bytes differ from the batch index.
        InvalidOption: an option of the store is unknown.
    """
    signed = {item.extents[0].key: item.signed for item in items if item.signed is not None}
    store = _Store(url, options, signed)
    short: set[int] = set()
    try:
        for window in windows(items, short):
            results = iter(store.read([piece for part in window for piece in part.pieces]))
            for index, pieces in window:
                mine = list(itertools.islice(results, len(pieces)))
                if index in short:
                    continue
                run, failure = assemble(pieces, mine)
                if failure is not None and not isinstance(failure, (*_NOT_HERE, *_NO_STORE)):
                    raise failure
                for chunk in _in_memory(run):
                    yield index, chunk
                if failure is not None or not pieces:
                    short.add(index)
                    yield index, None
    finally:
        store.close()


def _in_memory(run: Run | None) -> Iterator[Chunk]:
    here = run.base_offset if run is not None else 0
    while run is not None and here < run.next_offset:
        data, here = run.part(here, max_bytes=CHUNK_BYTES, at_least_one=True)
        while data:
            chunk = whole_batches(data, checked=True)
            yield chunk
            data = data[len(chunk.data) :]


class _Store:
    """Object store that is opened at the first read; for one thread, closed by its creator."""

    def __init__(
        self, url: str, options: Mapping[str, str], signed: Mapping[str, SignedRange]
    ) -> None:
        self._url = url
        self._options = options
        self._signed = signed
        self._runner = asyncio.Runner()
        self._store: ObjectReader | None = None
        self._paths: FetchPaths | None = None
        self._given_up = False

    def close(self) -> None:
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        if self._paths is not None:
            await self._paths.close()
        if self._store is not None:
            await self._store.close()

    def read(self, pieces: Sequence[Piece]) -> list[Result]:
        """Return, for each byte range of batches, its bytes or the error of reading them."""
        plan = merge(pieces)
        ranges = [ObjectRange(part.key, part.start, part.size_bytes, -1) for part in plan.ranges]
        answers: Sequence[Result]
        try:
            paths = self._opened()
        except _NO_STORE as error:
            answers = [error] * len(ranges)
        else:
            answers = self._runner.run(paths.fetch(ranges, newest_timestamp_ms=LONG_AGO_MS))
        self._note(answers)
        return results_of(pieces, plan, answers)

    def _opened(self) -> FetchPaths:
        if self._given_up:
            place = without_credentials(self._url)
            raise StoreUnavailable(f"an earlier read from the store {place} failed")
        if self._paths is None:
            self._store = (
                SignedStore(
                    self._signed,
                    name=without_credentials(self._url),
                    request_timeout_ms=REQUEST_TIMEOUT_MS,
                )
                if self._signed
                else open_here(self._url, self._options)
            )
            settings = FetchSettings(
                lagging_pool_size=REQUESTS_AT_ONCE,
                lagging_rate_limit=0,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
            )
            self._paths = FetchPaths(
                settings, hot=self._store, cold=self._store, clock=SYSTEM_CLOCK
            )
        return self._paths

    def _note(self, answers: Sequence[Result]) -> None:
        # A store that failed is not tried again, because every request could take its full timeout.
        failed = next((answer for answer in answers if isinstance(answer, _NO_STORE)), None)
        if failed is not None and not self._given_up:
            self._given_up = True
            logger.warning("reading from the broker: cannot read from the store: %s", failed)


def windows(items: Sequence[Slice], done: set[int]) -> Iterator[list[Part]]:
    """Yield windows: batches of several slices to read together, limited in bytes and slices.

    Slices whose index is in `done` are skipped. The caller adds a slice whose bytes it could not
    read. If a slice's extents end before the slice does, its last part has no pieces.
    """
    window: list[Part] = []
    left = WINDOW_BYTES
    for index, item in enumerate(items):
        here = item.start
        while here < item.end and index not in done:
            extents = [extent for extent in item.extents if extent.next_offset > here]
            held = bool(extents) and extents[0].base_offset <= here
            room = left if item.signed is None else item.size_bytes
            pieces = trim(extents, here, max_bytes=room, at_least_one=not window) if held else []
            if not pieces and window:
                yield window
                window, left = [], WINDOW_BYTES
                continue
            window.append(Part(index, pieces))
            if not pieces:
                break
            left -= sum(piece.size_bytes for piece in pieces)
            here = pieces[-1].next_offset
            if left <= 0 or len(window) >= WINDOW_SLICES:
                yield window
                window, left = [], WINDOW_BYTES
    if window:
        yield window


def open_here(url: str, options: Mapping[str, str]) -> ObjectStore:
    """Open a store in this process, with these options and the process's environment.

    Raises:
        StoreUnavailable: this machine cannot open the store.
        InvalidOption: an option of the store is unknown.
    """
    parts, place = urlsplit(url), without_credentials(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise StoreUnavailable(f"directory {place} does not exist on this machine")
    try:
        return open_store(url, options=options, request_timeout_ms=REQUEST_TIMEOUT_MS)
    except InvalidSetting as error:
        if not options:
            raise StoreUnavailable(f"the store {place} cannot be opened here: {error}") from error
        raise InvalidOption(
            f"{STORE_OPTIONS}*",
            "(not shown)",
            f"the store {place} cannot be opened with {', '.join(sorted(options))}: {error.reason}",
        ) from None
