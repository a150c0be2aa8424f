"""What was given up of a partition, as the records of a dead letter topic; by columns.

A dead letter has the key, the value and the headers of its record, byte for byte, and behind those
headers its own, all of them text:

    __dlq.errors.topic, .partition, .offset     where the record lies
    __dlq.errors.timestamp                      its timestamp, ms
    __dlq.errors.group                          who has given it up
    __dlq.errors.delivery.count, .message       after how many deliveries, and why
    __dlq.errors.truncated                      what was cut, and how many bytes it had: the dead
                                                letter, even compressed, was larger than the
                                                topic's max.message.bytes (`fitting.py`)

Topic id and group, partition and offset tell a dead letter from every other one: one that was
written twice has these twice. Its own timestamp is that of its writing, else the retention of the
dead letter topic would take old records at once.

What has no record any more (retention, or a compaction, has deleted it), or one of an aborted
transaction for a group that reads committed records only, makes no dead letter, and is counted.

Source: KIP-1191, Kafka's `ShareGroupDLQRecordHelper` (names and texts; the timestamp and the
record's own headers are more than there).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.own_appender import FIRST_EPOCH
from penstock.broker.share.values import Cause, GivenUp
from penstock.records import columnar
from penstock.records.aborted import AbortedRange
from penstock.records.columnar.fitting import Pointer, fit, fitting, record_sizes

if TYPE_CHECKING:
    from penstock.records.columnar.encode import EncodedBatch
    from penstock.records.transactions import AbortedTransaction

PREFIX: Final = "__dlq.errors."
TEXTS: Final[Mapping[Cause, str]] = {
    Cause.REJECTED: "Offset rejected by client.",
    Cause.DELIVERIES: "Offset delivery count exceeded the threshold.",
}
_NAMES: Final = ("topic", "partition", "offset", "timestamp", "group", "delivery.count", "message")

_Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose records they are. `copies`: with keys, values and headers."""

    group: str
    topic: str
    partition: int
    copies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Batches of the log back to back, of which the offsets from `begin` to `end` are asked for.

    `aborted` are the transactions whose records are none to the group.
    """

    data: bytes
    begin: int
    end: int
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """Dead letters, and what of the read needs none.

    `done` are the runs that are settled once `batches` are durable, with what of them was written;
    `too_large` are offsets whose dead letters the topic does not take, `largest` the bytes of one.
    """

    batches: Sequence[EncodedBatch] = ()
    done: Sequence[GivenUp] = ()
    written: Mapping[Cause, int]
    deleted: int = 0
    aborted: int = 0
    too_large: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """How they are to be written: by which producer, from which sequence on, in which batches."""

    now_ms: int
    batch_bytes_max: int
    producer_id: int
    base_sequence: int


def dead_letters(read: Read, given: Sequence[GivenUp], source: Source, writing: Writing) -> Letters:
    """The dead letters of what was given up within a read; `given` is in order.

    Raises:
        CorruptBatch, RecordTooLarge, UnsupportedCodec: the log's batches cannot be opened.
    """
    given = [
        one._replace(first=max(one.first, read.begin), last=min(one.last, read.end - 1))
        for one in given
        if one.first < read.end and one.last >= read.begin
    ]
    firsts = np.array([one.first for one in given], np.int64)
    lasts = np.array([one.last for one in given], np.int64)
    wanted = int((lasts - firsts + 1).sum())
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
    causes = np.array([one.cause for one in given], np.int64)[run_of[fits]]
    return Letters(
        batches=batches,
        done=_without(given, left),
        written={cause: int((causes == cause).sum()) for cause in Cause},
        deleted=wanted - there,
        aborted=there - kept,
        too_large=len(left),
        largest=int(record_sizes(records)[~fits].max(initial=0)),
    )


def _committed(read: Read, offsets: _Offsets) -> Any:
    """Which records are of no aborted transaction."""
    if not read.aborted:
        return np.ones(len(offsets), np.bool_)
    ranges = [
        AbortedRange(one.producer_id, one.first_offset, one.last_offset) for one in read.aborted
    ]
    left = columnar.decode_batches(
        read.data,
        columns=("offset",),
        start_offset=read.begin,
        end_offset=read.end,
        aborted=ranges,
    )
    return np.isin(offsets, left.column("offset").to_numpy(), assume_unique=True)


def _records(table: Any, given: Sequence[GivenUp], run_of: Any, source: Source) -> Any:
    """The records of dead letters: key, value and headers."""
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


def _own(table: Any, given: Sequence[GivenUp], run_of: Any, source: Source) -> list[Any]:
    """The values of a dead letter's own headers, a column each."""
    size = table.num_rows

    def same(value: str) -> Any:
        return pa.repeat(pa.scalar(value.encode(), pa.binary()), size)

    def number(name: str) -> Any:
        return pc.cast(pc.cast(table.column(name), pa.string()), pa.binary())

    runs = pa.array(run_of)
    counts = pa.array([str(one.deliveries).encode() for one in given], pa.binary())
    texts = pa.array([TEXTS[one.cause].encode() for one in given], pa.binary())
    return [
        same(source.topic), same(str(source.partition)), number("offset"), number("timestamp"),
        same(source.group), counts.take(runs), texts.take(runs),
    ]  # fmt: skip


def _headers(theirs: Any, own: Sequence[Any], size: int) -> Any:
    """Each record's headers with its dead letter's own behind them."""
    count = len(own)
    lengths = np.zeros(size, np.int64)
    if len(theirs):
        lengths[:] = pc.list_value_length(theirs).to_numpy()
    bounds = np.zeros(size + 1, np.int64)
    np.cumsum(lengths + count, out=bounds[1:])
    total = int(lengths.sum())
    order = np.empty(int(bounds[-1]), np.int64)
    is_own = np.zeros(len(order), np.bool_)
    places = (bounds[1:, None] - count + np.arange(count)).ravel()
    is_own[places] = True
    order[~is_own] = np.arange(total)
    # The own headers lie name by name: that of row i and name k at k * size + i, behind theirs.
    order[places] = total + (np.arange(count) * size + np.arange(size)[:, None]).ravel()
    names = [pa.repeat(pa.scalar(PREFIX + name), size) for name in _NAMES]
    pairs = theirs.flatten()
    keys = pa.concat_arrays([pc.struct_field(pairs, "key"), *names])
    values = pa.concat_arrays([pc.struct_field(pairs, "value"), *own])
    taken = pa.array(order)
    structs = pa.StructArray.from_arrays([keys.take(taken), values.take(taken)], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), structs)


def _without(given: Sequence[GivenUp], left: _Offsets) -> list[GivenUp]:
    """Runs without some offsets, of which there are few."""
    done: list[GivenUp] = []
    for one in given:
        first = one.first
        for offset in left[(left >= one.first) & (left <= one.last)].tolist():
            if offset > first:
                done.append(one._replace(first=first, last=offset - 1))
            first = offset + 1
        if first <= one.last:
            done.append(one._replace(first=first))
    return done
