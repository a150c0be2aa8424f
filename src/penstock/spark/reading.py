"""What a Spark task does: bytes to Arrow batches in the source's schema, by columns.

Theory of operation. A slice names a file range; the file is opened if it is there, is long
enough and starts with the batch that the broker named, and is read in chunks of whole batches.
Each batch's CRC is checked, headers tell which batches hold offsets that are wanted, and those
are decoded by columns in one go. When the file is not there (another machine, or retention
removed it) or ends early, the rest of the slice is fetched from the broker: the same bytes, by
another road. Slices of diskless partitions are read from their store (`object_reading`), with the
same end. Loops run over chunks and batches, never over records.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.ids import TopicPartition
from penstock.records.columnar import decode_batches
from penstock.records.errors import CorruptBatch
from penstock.records.header import HEADER_BYTES, decode_header
from penstock.spark.errors import DataLoss
from penstock.spark.schema import (
    BATCH_ROWS_MAX,
    HEADERS,
    HEADERS_ARROW,
    TIMESTAMP_ARROW,
    arrow_schema,
)
from penstock.spark.slices import Slice, Task

if TYPE_CHECKING:
    from penstock.diskless.reading.assembly import Run

CHUNK_BYTES: Final = 4 << 20
BATCH_BYTES_MAX: Final = 256 << 20
MICROSECONDS_PER_MILLISECOND: Final = 1_000
_NO_OPTIONS: Final[Mapping[str, str]] = {}
_DECODED: Final = frozenset({"key", "value", "offset", "timestamp", HEADERS})


class Fetcher(Protocol):
    """Gets whole batches from a broker: the road for bytes that are in no file at hand."""

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset` on; empty at the end of the log.

        Raises:
            DataLoss: the log starts after `offset`.
        """
        ...

    def close(self) -> None:
        """Give up the connection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole batches back to back, all of one timestamp type, and the offset after the last."""

    data: memoryview
    next_offset: int
    timestamp_type: int
    checked: bool = False
    """Whether the checksums were verified already."""


class TaskReader:
    """Reads tasks; opens a broker connection only when a file is not enough."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        bootstrap: str,
        fail_on_data_loss: bool,
        fetcher: Fetcher | None = None,
        store_options: Mapping[str, str] = _NO_OPTIONS,
    ) -> None:
        self._columns = tuple(columns)
        self._bootstrap = bootstrap
        self._fail_on_data_loss = fail_on_data_loss
        self._fetcher = fetcher
        self._store_options = store_options

    def read(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The task's records, at most `BATCH_ROWS_MAX` rows a batch, in offset order per slice."""
        try:
            for store, items in itertools.groupby(task.slices, key=lambda item: item.store):
                if store is not None:
                    for item, chunk in self._object_chunks(store, list(items)):
                        yield from self._shape(item, chunk)
                    continue
                for item in items:
                    for chunk in self._chunks(item):
                        yield from self._shape(item, chunk)
        finally:
            if self._fetcher is not None:
                self._fetcher.close()
                self._fetcher = None

    def _chunks(self, item: Slice) -> Iterator[Chunk]:
        here = item.start
        for chunk in file_chunks(item):
            here = max(here, chunk.next_offset)
            yield chunk
        yield from self._broker_chunks(item, here)

    def _object_chunks(self, store: str, items: Sequence[Slice]) -> Iterator[tuple[Slice, Chunk]]:
        from penstock.spark.object_reading import ObjectReader

        reader = ObjectReader(store, self._store_options)
        reached = [item.start for item in items]
        try:
            for index, run, goes_on in reader.read(items):
                item = items[index]
                if run is not None:
                    reached[index] = run.next_offset
                    for chunk in run_chunks(run):
                        yield item, chunk
                if not goes_on:
                    for chunk in self._broker_chunks(item, reached[index]):
                        yield item, chunk
        finally:
            reader.close()

    def _broker_chunks(self, item: Slice, here: int) -> Iterator[Chunk]:
        while here < item.end:
            try:
                data = self._connected().fetch(_at(item), here, CHUNK_BYTES)
            except DataLoss as loss:
                if self._fail_on_data_loss:
                    raise
                here = min(loss.log_start, item.end)
                continue
            chunk = whole_batches(memoryview(data))
            if not chunk.data:
                return
            here = max(here + 1, chunk.next_offset)
            yield chunk

    def _connected(self) -> Fetcher:
        if self._fetcher is None:
            from penstock.spark.broker_log import BrokerLog

            self._fetcher = BrokerLog(self._bootstrap)
        return self._fetcher

    def _shape(self, item: Slice, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        wanted = [name for name in self._columns if name in _DECODED]
        decoded = decode_batches(
            chunk.data,
            columns=tuple(wanted) or ("offset",),
            start_offset=item.start,
            end_offset=item.end,
            check_crc=not chunk.checked,
        )
        schema = arrow_schema(self._columns)
        for low in range(0, decoded.num_rows, BATCH_ROWS_MAX):
            piece = decoded.slice(low, BATCH_ROWS_MAX)
            arrays = [_column(name, piece, item, chunk) for name in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def file_chunks(item: Slice) -> Iterator[Chunk]:
    """The slice's batches from its file; ends early where the file does not serve."""
    if item.path is None:
        return
    with ExitStack() as stack:
        try:
            descriptor = os.open(item.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        stack.callback(os.close, descriptor)
        end = item.position + item.size_bytes
        if os.fstat(descriptor).st_size < end:
            return
        yield from _walk(descriptor, item, end)


def _walk(descriptor: int, item: Slice, end: int) -> Iterator[Chunk]:
    position, expected = item.position, item.base_offset
    while position < end:
        data = memoryview(os.pread(descriptor, min(CHUNK_BYTES, end - position), position))
        if len(data) < HEADER_BYTES:
            return
        first = decode_header(data)
        if expected >= 0 and first.base_offset != expected:
            return
        if first.size_bytes > len(data):
            if first.size_bytes > min(BATCH_BYTES_MAX, end - position):
                raise CorruptBatch(
                    f"{item.path} at {position}: a batch of {first.size_bytes} bytes in "
                    f"{end - position} left"
                )
            data = memoryview(os.pread(descriptor, first.size_bytes, position))
        expected = -1
        chunk = whole_batches(data)
        yield chunk
        if chunk.next_offset >= item.end:
            return
        position += len(chunk.data)


def run_chunks(run: Run) -> Iterator[Chunk]:
    """The batches of an assembled run, in chunks."""
    here = run.base_offset
    while here < run.next_offset:
        read = run.read(here, max_bytes=CHUNK_BYTES, at_least_one=True)
        here = read.next_offset
        data = memoryview(read.buffers[0])
        while data:
            chunk = whole_batches(data)
            yield replace(chunk, checked=True)
            data = data[len(chunk.data) :]


def whole_batches(data: memoryview) -> Chunk:
    """The batches that lie in `data` entirely, from its start up to another timestamp type."""
    size, next_offset, timestamp_type = 0, -1, 0
    while size + HEADER_BYTES <= len(data):
        header = decode_header(data, size)
        if size + header.size_bytes > len(data):
            break
        if size and header.timestamp_type != timestamp_type:
            break
        timestamp_type = int(header.timestamp_type)
        next_offset = header.next_offset
        size += header.size_bytes
    return Chunk(data=data[:size], next_offset=next_offset, timestamp_type=timestamp_type)


def _at(item: Slice) -> TopicPartition:
    return TopicPartition(item.topic, item.partition)


def _column(name: str, piece: pa.RecordBatch, item: Slice, chunk: Chunk) -> pa.Array:
    constants: dict[str, pa.Scalar] = {
        "topic": pa.scalar(item.topic, pa.string()),
        "partition": pa.scalar(item.partition, pa.int32()),
        "timestampType": pa.scalar(chunk.timestamp_type, pa.int32()),
    }
    if name in constants:
        return pa.repeat(constants[name], piece.num_rows)
    array = piece.column(name)
    if name == "timestamp":
        return pc.multiply(array, MICROSECONDS_PER_MILLISECOND).cast(TIMESTAMP_ARROW)
    return array.cast(HEADERS_ARROW) if name == HEADERS else array
