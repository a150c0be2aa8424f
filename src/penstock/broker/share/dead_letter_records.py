"""Builder of dead letters from the archived records of a log read, by columns.

A dead letter has the key, value and headers of its record, and these additional headers, as text:

    __dlq.errors.topic, .partition, .offset     position of the record
    __dlq.errors.timestamp                      its timestamp, ms
    __dlq.errors.group                          group that archived it
    __dlq.errors.delivery.count, .message       number of deliveries, and the cause
    __dlq.errors.truncated                      removed fields and their sizes, if the compressed
                                                dead letter was larger than max.message.bytes of
                                                the topic (`records/columnar/shortening.py`)

Topic, partition, offset and group identify a dead letter; duplicates have the same values. The
timestamp is the time of writing. With the timestamp of the record, the retention of the dead letter
topic would delete dead letters of old records at once.

Two kinds of records get no dead letter and are only counted: records that retention or compaction
has deleted, and, if the group reads only committed records, records of aborted transactions.

Source: KIP-1191, Kafka's `ShareGroupDLQRecordHelper` (names and texts; the timestamp and the
record's own headers are additions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from penstock.broker.share.values import Cause, Undeliverable
from penstock.broker.topics.audit_topic import FIRST_EPOCH
from penstock.kernels.records import gather
from penstock.records.columnar.arrays import NULLS, Column, Flags, Headers, Input, Ints
from penstock.records.columnar.encode import EncodedBatch, encode_batches
from penstock.records.columnar.rows import Rows, read_rows
from penstock.records.columnar.shortening import Pointer, fit, record_sizes, shortened
from penstock.records.transactions import AbortedRange, AbortedTransaction

PREFIX: Final = "__dlq.errors."
TEXTS: Final[Mapping[Cause, str]] = {
    Cause.REJECTED: "Offset rejected by client.",
    Cause.DELIVERIES: "Offset delivery count exceeded the threshold.",
}
_NAMES: Final = ("topic", "partition", "offset", "timestamp", "group", "delivery.count", "message")
_DIGITS_MAX: Final = 20
_NO_TIMES: Final = np.empty(0, np.int64)


class Source(Struct, frozen=True, kw_only=True):
    """Group and partition of the records. With `copies`, dead letters contain the records' data."""

    group: str
    topic: str
    partition: int
    copies: bool = True


class Read(Struct, frozen=True, kw_only=True):
    """Consecutive batches of a log, with the requested offsets [begin, end).

    `aborted` are the aborted transactions whose records the group does not read.
    """

    data: bytes
    begin: int
    end: int
    aborted: Sequence[AbortedTransaction] = ()


class DeadLetters(Struct, frozen=True, kw_only=True):
    """Dead letters of a read, and counts of its records without a dead letter.

    `done` are the records to resolve once `batches` are durable; `written` counts their dead
    letters. `deleted` and `aborted` count records that need none. `too_large` counts dead letters
    above the topic's size limit; `largest` is the size in bytes of the largest of them.
    """

    batches: Sequence[EncodedBatch] = ()
    done: Sequence[Undeliverable] = ()
    written: Mapping[Cause, int]
    deleted: int = 0
    aborted: int = 0
    too_large: int = 0
    largest: int = 0


class Writing(Struct, frozen=True, kw_only=True):
    now_ms: int
    batch_bytes_max: int
    producer_id: int
    base_sequence: int


def dead_letters(
    read: Read, given: Sequence[Undeliverable], source: Source, writing: Writing
) -> DeadLetters:
    """Return the dead letters of the archived records `given`, as far as a read contains them.

    `given` must be in the order of offsets.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: the log's batches cannot be decoded.
    """
    given = [
        run._replace(first=max(run.first, read.begin), last=min(run.last, read.end - 1))
        for run in given
        if run.first < read.end and run.last >= read.begin
    ]
    firsts = np.array([run.first for run in given], np.int64)
    lasts = np.array([run.last for run in given], np.int64)
    requested = int((lasts - firsts + 1).sum())
    found = read_rows(read.data, start_offset=read.begin, end_offset=read.end)
    offsets = found.longs("offset")
    run_of = np.searchsorted(firsts, offsets, side="right") - 1
    keep = (run_of >= 0) & (offsets <= lasts[run_of])
    there = int(keep.sum())
    keep &= _committed(read, offsets)
    rows = _records(found, given, run_of, source, writing.now_ms).select(np.flatnonzero(keep))
    parts, too_large = _parts(rows, writing.batch_bytes_max)
    batches: list[EncodedBatch] = []
    for part in parts:
        batches += encode_batches(
            part,
            now_ms=writing.now_ms,
            max_batch_bytes=writing.batch_bytes_max,
            compress_large=True,
            producer_id=writing.producer_id,
            producer_epoch=FIRST_EPOCH,
            base_sequence=writing.base_sequence + sum(batch.record_count for batch in batches),
        )
    fits = np.ones(rows.size, np.bool_)
    fits[[*too_large]] = False
    causes = np.array([run.cause for run in given], np.int64)[run_of[keep][fits]]
    return DeadLetters(
        batches=batches,
        done=_without(given, offsets[keep][~fits]),
        written={cause: int((causes == cause).sum()) for cause in Cause},
        deleted=requested - there,
        aborted=there - rows.size,
        too_large=len(too_large),
        largest=max(too_large.values(), default=0),
    )


def _committed(read: Read, offsets: Ints) -> Flags:
    if not read.aborted:
        return np.ones(len(offsets), np.bool_)
    ranges = [
        AbortedRange(found.producer_id, found.first_offset, found.last_offset)
        for found in read.aborted
    ]
    left = read_rows(
        read.data,
        columns=("offset",),
        start_offset=read.begin,
        end_offset=read.end,
        aborted=ranges,
    )
    return np.isin(offsets, left.longs("offset"), assume_unique=True)


def _parts(rows: Input, limit: int) -> tuple[list[Input], dict[int, int]]:
    """Divide the rows into parts to encode, in their order; rows that do not fit are shortened.

    Rows that do not fit even then are in no part; the dictionary has their indexes, and the sizes
    of their shortened records in bytes.
    """
    parts: list[Input] = []
    too_large: dict[int, int] = {}
    at = 0
    for row in np.flatnonzero(~fit(rows, limit_bytes=limit)).tolist():
        parts.append(rows.select(slice(at, row)))
        cut = shortened(rows, row, limit_bytes=limit, shorten=Pointer(prefix=PREFIX))
        if fit(cut, limit_bytes=limit).all():
            parts.append(cut)
        else:
            too_large[row] = int(record_sizes(cut).max())
        at = row + 1
    return [*parts, rows.select(slice(at, None))], too_large


def _records(
    found: Rows, given: Sequence[Undeliverable], run_of: Ints, source: Source, now_ms: int
) -> Input:
    """Return a dead letter for every record of a read; some of them are not requested."""
    theirs = found.input() if source.copies else Input(value=NULLS, timestamps=_NO_TIMES)
    return Input(
        key=theirs.key,
        value=theirs.value,
        timestamps=np.full(found.size, now_ms, np.int64),
        headers=_headers(theirs.headers, _own(found, given, run_of, source), found.size),
    )


def _own(
    found: Rows, given: Sequence[Undeliverable], run_of: Ints, source: Source
) -> tuple[Column, Ints]:
    """Return the values of the headers `__dlq.errors.*`, and for each record their indexes."""
    size, runs = found.size, len(given)
    constants = (source.topic, str(source.partition), source.group)
    counts = (str(run.deliveries) for run in given)
    texts = (TEXTS[run.cause] for run in given)
    values = _joined(
        Column.of([text.encode() for text in (*constants, *counts, *texts)]),
        _digits(found.longs("offset")),
        _digits(found.longs("timestamp")),
    )
    count_of = len(constants) + run_of.clip(0)
    offset_of = len(constants) + 2 * runs + np.arange(size)
    zeros = np.zeros(size, np.int64)
    indexes = (
        zeros, zeros + 1, offset_of, offset_of + size, zeros + 2, count_of, count_of + runs,
    )  # fmt: skip
    return values, np.stack(indexes, axis=1)


def _headers(theirs: Headers, own: tuple[Column, Ints], size: int) -> Headers:
    """Return the records' headers, each record's followed by its additional headers."""
    values, indexes = own
    count = len(_NAMES)
    old = theirs.bounds if theirs.bounds.size else np.zeros(size + 1, np.int32)
    bounds = old + count * np.arange(size + 1)
    total = theirs.keys.starts.size
    is_own = np.zeros(int(bounds[-1]), np.bool_)
    is_own[(bounds[1:, None] - count + np.arange(count)).ravel()] = True
    order = np.empty((2, is_own.size), np.int64)
    order[:, ~is_own] = np.arange(total)
    order[0, is_own] = np.tile(total + np.arange(count), size)
    order[1, is_own] = total + indexes.ravel()
    names = Column.of([(PREFIX + name).encode() for name in _NAMES])
    return Headers(
        bounds.astype(np.int32),
        _taken(_joined(theirs.keys, names), order[0]),
        _taken(_joined(theirs.values, values), order[1]),
    )


def _digits(numbers: Ints) -> Column:
    texts = numbers.astype(f"S{_DIGITS_MAX}")
    starts = np.arange(0, texts.nbytes, _DIGITS_MAX, dtype=np.int32)
    ends = starts + np.char.str_len(texts).astype(np.int32)
    return Column(data=texts.view(np.uint8), starts=starts, ends=ends)


def _joined(*columns: Column) -> Column:
    """Return the elements of columns, each of which begins at bit 0 of its bitmap."""
    begins = np.cumsum([0, *(column.data.size for column in columns)], dtype=np.int32)
    present = [_present(column) for column in columns]
    pairs = [*zip(columns, begins.tolist(), strict=False)]
    return Column(
        data=np.concatenate([column.data for column in columns]),
        starts=np.concatenate([column.starts + begin for column, begin in pairs]),
        ends=np.concatenate([column.ends + begin for column, begin in pairs]),
        valid=np.packbits(np.concatenate(present), bitorder="little"),
    )


def _present(column: Column) -> Flags:
    size = column.starts.size
    if not column.valid.size:
        return np.ones(size, np.bool_)
    return np.unpackbits(column.valid, count=size, bitorder="little").astype(np.bool_)


def _taken(column: Column, order: Ints) -> Column:
    """Return copies of the elements with these indexes, one after the other."""
    bounds = np.zeros(order.size + 1, np.int32)
    np.cumsum(column.lengths()[order], out=bounds[1:])
    data = np.empty(int(bounds[-1]), np.uint8)
    gather(data, bounds, column.data, column.starts[order], 0, order.size)
    valid = np.packbits(_present(column)[order], bitorder="little")
    return Column(data=data, starts=bounds[:-1], ends=bounds[1:], valid=valid)


def _without(given: Sequence[Undeliverable], left: Ints) -> list[Undeliverable]:
    done: list[Undeliverable] = []
    for run in given:
        first = run.first
        for offset in left[(left >= run.first) & (left <= run.last)].tolist():
            if offset > first:
                done.append(run._replace(first=first, last=offset - 1))
            first = offset + 1
        if first <= run.last:
            done.append(run._replace(first=first))
    return done
