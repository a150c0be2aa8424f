"""Reader of a Spark task: converts batch bytes to Arrow batches with the source's columns.

The batches of a slice come from a local file (`spark/reads/chunks.py`) or an object store
(`spark/reads/object_chunks.py`). Checksums are verified, and batches are selected by their headers
and decoded by columns. If the bytes of a slice are missing or end early, the rest of the slice is
fetched from the broker. If signed URLs expire soon, they are renewed before the task begins. If
that fails, the records are fetched from the broker.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.base.system import SYSTEM_CLOCK
from penstock.records.columnar import decode_batches
from penstock.records.extents import READ_UNCOMMITTED
from penstock.spark.errors import DataLoss, ExtentsUnavailable, NotServed
from penstock.spark.options import SourceOptions
from penstock.spark.reads.chunks import (
    CHUNK_BYTES,
    Chunk,
    Fetched,
    Found,
    Slice,
    Task,
    file_chunks,
    whole_batches,
)
from penstock.spark.schema import (
    BATCH_ROWS_MAX,
    HEADERS,
    HEADERS_ARROW,
    TIMESTAMP_ARROW,
    Opening,
    arrow_schema,
)

if TYPE_CHECKING:
    from penstock.spark.reads.extents import HttpExtents


logger = logging.getLogger(__name__)

MICROSECONDS_PER_MILLISECOND: Final = 1_000
TIME_MS_MAX: Final = LONG_MAX // MICROSECONDS_PER_MILLISECOND
"""Latest timestamp in Spark in milliseconds, in the year 294247; the earliest is its negative."""
URL_MARGIN_MS: Final = 30_000
"""Least remaining validity of signed URLs when a task begins; else they are renewed."""
_NO_OPTIONS: Final[Mapping[str, str]] = {}
_DECODED: Final = frozenset({"key", "value", "offset", "timestamp", HEADERS})


class Fetcher(Protocol):
    """Port that fetches whole batches from a broker."""

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
        """Return whole batches, from the one that contains `offset` or the next higher one.

        Raises:
            DataLoss: the log starts after `offset`.
            NotServed: the broker returned no records although the log has some.
        """
        ...

    def close(self) -> None: ...


def reader_of(options: SourceOptions, opening: Opening | None) -> TaskReader:
    def extents() -> HttpExtents | None:
        from penstock.spark.reads.extents import extents_of

        return extents_of(options)

    return TaskReader(
        options.columns,
        bootstrap=options.bootstrap,
        fail_on_data_loss=options.fail_on_data_loss,
        isolation=options.isolation_level,
        store_options=options.store_options,
        security=options.security,
        opening=opening,
        extents=extents,
    )


class TaskReader:
    """Reader of a task's records.

    It connects to a broker only for records that it cannot read from files and objects.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        bootstrap: str,
        fail_on_data_loss: bool,
        isolation: int = READ_UNCOMMITTED,
        fetcher: Fetcher | None = None,
        store_options: Mapping[str, str] = _NO_OPTIONS,
        security: Mapping[str, str] = _NO_OPTIONS,
        opening: Opening | None = None,
        extents: Callable[[], HttpExtents | None] = lambda: None,
    ) -> None:
        """Create the reader; `extents` opens the source from which signed URLs are renewed."""
        self._columns = tuple(columns)
        self._bootstrap = bootstrap
        self._fail_on_data_loss = fail_on_data_loss
        self._isolation = isolation
        self._fetcher = fetcher
        self._store_options = store_options
        self._security = security
        self._opening = opening
        self._extents = extents
        added = () if opening is None else opening.arrow_fields()
        self._schema = pa.schema([*arrow_schema(self._columns), *added])

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """Yield a task's records in batches of at most `BATCH_ROWS_MAX`; each slice in offset
        order.
        """
        for item, chunk in self.chunks(task.slices):
            yield from self._shape(item, chunk)

    def chunks(self, slices: Sequence[Slice]) -> Iterator[tuple[Slice, Chunk]]:
        """Yield the stored batches of slices; each slice in offset order.

        A chunk may also have batches that end before its slice begins, or begin after its end.
        """
        slices = self._with_urls(slices)
        kinds = itertools.groupby(slices, key=lambda item: (item.store, item.signed is None))
        try:
            for (store, _), items in kinds:
                yield from self._chunks(store, list(items))
        finally:
            if self._fetcher is not None:
                self._fetcher.close()
                self._fetcher = None

    def _with_urls(self, slices: Sequence[Slice]) -> Sequence[Slice]:
        """Return the slices, with new signed URLs if the old ones expire soon.

        If new URLs are not available, the slices are returned unchanged.
        """
        ends = [item.signed.expires_ms for item in slices if item.signed is not None]
        if not ends or min(ends) > SYSTEM_CLOCK.now_ms() + URL_MARGIN_MS:
            return slices
        source = self._extents()
        if source is None:
            return slices
        from penstock.spark.reads.planning import renewed

        try:
            return renewed(slices, source)
        except ExtentsUnavailable as error:
            logger.warning(
                "the signed URLs of a task expire, and no new ones are available: %s", error
            )
            return slices
        finally:
            source.close()

    def _chunks(self, store: str, items: Sequence[Slice]) -> Iterator[tuple[Slice, Chunk]]:
        reached = [item.start for item in items]
        for index, chunk in self._found(store, items):
            item = items[index]
            if chunk is not None:
                reached[index] = max(reached[index], chunk.next_offset)
                yield item, chunk
                continue
            for fetched in self._broker_chunks(item, reached[index]):
                yield item, fetched

    def _found(self, store: str, items: Sequence[Slice]) -> Iterator[Found]:
        if not store:
            return file_chunks(items)
        from penstock.spark.reads.object_chunks import object_chunks

        return object_chunks(store, self._store_options, items)

    def _broker_chunks(self, item: Slice, here: int) -> Iterator[Chunk]:
        while here < item.end:
            try:
                found = self._connected().fetch(item.at, here, CHUNK_BYTES)
            except DataLoss as loss:
                if self._fail_on_data_loss:
                    raise
                here = min(loss.log_start, item.end)
                continue
            chunk = whole_batches(memoryview(found.data))
            if chunk.next_offset <= here:
                raise NotServed(
                    f"{item.at}: the response to a fetch of offset {here} has {len(found.data)}"
                    " bytes, but no batch that contains this offset or follows it. The task needs"
                    f" offsets up to {item.end - 1}"
                )
            here = chunk.next_offset
            yield replace(chunk, aborted=found.aborted)

    def _connected(self) -> Fetcher:
        if self._fetcher is None:
            from penstock.spark.reads.broker_log import BrokerLog

            self._fetcher = BrokerLog(self._bootstrap, self._isolation, self._security)
        return self._fetcher

    def _shape(self, item: Slice, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in self._columns if name in _DECODED]
        opening = self._opening
        if opening is not None:
            needed = ("value", HEADERS) if opening.with_headers else ("value",)
            wanted += [name for name in needed if name not in wanted]
        decoded = decode_batches(
            chunk.data,
            columns=tuple(wanted) or ("offset",),
            start_offset=item.start,
            end_offset=item.end,
            aborted=item.aborted if chunk.aborted is None else chunk.aborted,
            check_crc=not chunk.checked,
        )
        for low in range(0, decoded.num_rows, BATCH_ROWS_MAX):
            piece = decoded.slice(low, BATCH_ROWS_MAX)
            arrays = [_column(name, piece, item, chunk) for name in self._columns]
            if opening is not None:
                headers = piece.column(HEADERS) if opening.with_headers else None
                arrays.extend(opening.columns(piece.column("value"), headers))
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _column(name: str, piece: pa.RecordBatch, item: Slice, chunk: Chunk) -> pa.Array:
    constants: dict[str, pa.Scalar] = {
        "topic": pa.scalar(item.at.topic, pa.string()),
        "partition": pa.scalar(item.at.partition, pa.int32()),
        "timestampType": pa.scalar(chunk.timestamp_type, pa.int32()),
    }
    if name in constants:
        return pa.repeat(constants[name], piece.num_rows)
    array = piece.column(name)
    if name == "timestamp":
        return _instants(array)
    return array.cast(HEADERS_ARROW) if name == HEADERS else array


def _instants(times: pa.Int64Array) -> pa.TimestampArray:
    """Convert milliseconds to Spark's timestamps; times outside of Spark's range become null."""
    try:
        microseconds = pc.multiply_checked(times, MICROSECONDS_PER_MILLISECOND)
    except pa.ArrowInvalid:
        held = pc.and_(pc.greater_equal(times, -TIME_MS_MAX), pc.less_equal(times, TIME_MS_MAX))
        microseconds = pc.multiply(pc.if_else(held, times, None), MICROSECONDS_PER_MILLISECOND)
    return microseconds.cast(TIMESTAMP_ARROW)
