"""Builder of dead letters from the archived records of a log read, by columns.

A dead letter has the key, value and headers of its record, and these additional headers, as text:

    __dlq.errors.topic, .partition, .offset     position of the record
    __dlq.errors.timestamp                      its timestamp, ms
    __dlq.errors.group                          group that archived it
    __dlq.errors.delivery.count, .message       number of deliveries, and the cause
    __dlq.errors.truncated                      removed fields and their sizes, if the compressed
                                                dead letter was larger than max.message.bytes of
                                                the topic (`records/columnar/fitting.py`)

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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.broker.share.values import Cause, Undeliverable
from penstock.broker.topics.audit_topic import FIRST_EPOCH
from penstock.records import columnar
from penstock.records.columnar.fitting import Pointer, fit, fitting, record_sizes
from penstock.records.transactions import AbortedRange, AbortedTransaction

if TYPE_CHECKING:
    from penstock.records.columnar.encode import EncodedBatch


PREFIX: Final = "__dlq.errors."
TEXTS: Final[Mapping[Cause, str]] = {
    Cause.REJECTED: "Offset rejected by client.",
    Cause.DELIVERIES: "Offset delivery count exceeded the threshold.",
}
_NAMES: Final = ("topic", "partition", "offset", "timestamp", "group", "delivery.count", "message")

_Offsets = npt.NDArray[np.int64]


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
    found = columnar.decode_batches(read.data, start_offset=read.begin, end_offset=read.end)
    offsets = found.column("offset").to_numpy()
    run_of = np.searchsorted(firsts, offsets, side="right") - 1
    keep = (run_of >= 0) & (offsets <= lasts[run_of])
    there = int(keep.sum())
    keep &= _committed(read, offsets)
    kept = int(keep.sum())
    table, run_of = found.filter(pa.array(keep)), run_of[keep]
    limit = writing.batch_bytes_max
    records = fitting(
        _records(table, given, run_of, source), limit_bytes=limit, shorten=Pointer(prefix=PREFIX)
    )
    fits = fit(records, limit_bytes=limit)
    left = table.column("offset").to_numpy()[~fits]
    batches = columnar.encode_batches(
        records.filter(pa.array(fits)),
        now_ms=writing.now_ms,
        max_batch_bytes=limit,
        compress_large=True,
        producer_id=writing.producer_id,
        producer_epoch=FIRST_EPOCH,
        base_sequence=writing.base_sequence,
    )
    causes = np.array([run.cause for run in given], np.int64)[run_of[fits]]
    return DeadLetters(
        batches=batches,
        done=_without(given, left),
        written={cause: int((causes == cause).sum()) for cause in Cause},
        deleted=requested - there,
        aborted=there - kept,
        too_large=len(left),
        largest=int(record_sizes(records)[~fits].max(initial=0)),
    )


def _committed(read: Read, offsets: _Offsets) -> Any:
    if not read.aborted:
        return np.ones(len(offsets), np.bool_)
    ranges = [
        AbortedRange(found.producer_id, found.first_offset, found.last_offset)
        for found in read.aborted
    ]
    left = columnar.decode_batches(
        read.data,
        columns=("offset",),
        start_offset=read.begin,
        end_offset=read.end,
        aborted=ranges,
    )
    return np.isin(offsets, left.column("offset").to_numpy(), assume_unique=True)


def _records(table: Any, given: Sequence[Undeliverable], run_of: Any, source: Source) -> Any:
    size = table.num_rows
    if source.copies:
        key, value, headers = (table.column(name) for name in ("key", "value", "headers"))
    else:
        key = value = pa.nulls(size, pa.binary())
        headers = table.column("headers").slice(0, 0)
    return pa.table(
        {
            "key": key,
            "value": value,
            "headers": _headers(headers, _own(table, given, run_of, source), size),
        }
    )


def _own(table: Any, given: Sequence[Undeliverable], run_of: Any, source: Source) -> list[Any]:
    """Return the values of the headers `__dlq.errors.*`, one column per header.

    `run_of` is the index in `given` of each record of the table.
    """
    size = table.num_rows

    def same(value: str) -> Any:
        return pa.repeat(pa.scalar(value.encode(), pa.binary()), size)

    def number(name: str) -> Any:
        return pc.cast(pc.cast(table.column(name), pa.string()), pa.binary())

    runs = pa.array(run_of)
    counts = pa.array([str(run.deliveries).encode() for run in given], pa.binary())
    texts = pa.array([TEXTS[run.cause].encode() for run in given], pa.binary())
    return [
        same(source.topic), same(str(source.partition)), number("offset"), number("timestamp"),
        same(source.group), counts.take(runs), texts.take(runs),
    ]  # fmt: skip


def _headers(theirs: Any, own: Sequence[Any], size: int) -> Any:
    count = len(own)
    lengths = np.zeros(size, np.int64)
    if len(theirs):
        lengths[:] = pc.list_value_length(theirs).to_numpy()
    bounds = np.zeros(size + 1, np.int64)
    np.cumsum(lengths + count, out=bounds[1:])
    total = int(lengths.sum())
    order = np.empty(int(bounds[-1]), np.int64)
    is_own = np.zeros(len(order), np.bool_)
    positions = (bounds[1:, None] - count + np.arange(count)).ravel()
    is_own[positions] = True
    order[~is_own] = np.arange(total)
    # The additional headers follow the records' headers: row i of name k is at k * size + i.
    order[positions] = total + (np.arange(count) * size + np.arange(size)[:, None]).ravel()
    names = [pa.repeat(pa.scalar(PREFIX + name), size) for name in _NAMES]
    pairs = theirs.flatten()
    keys = pa.concat_arrays([pc.struct_field(pairs, "key"), *names])
    values = pa.concat_arrays([pc.struct_field(pairs, "value"), *own])
    taken = pa.array(order)
    structs = pa.StructArray.from_arrays([keys.take(taken), values.take(taken)], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), structs)


def _without(given: Sequence[Undeliverable], left: _Offsets) -> list[Undeliverable]:
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
