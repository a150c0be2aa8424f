"""The fetch core: positions, requests, and the reading of answers without a copy. No I/O here.

A reader owns a position and an end per partition. `requests` groups the partitions that have
more to read by leader; `advance` moves positions over what an answer holds, which takes only the
batch headers, so that the next request can leave before the last answer is opened.

The answer of Fetch version 12 is read by hand: records stay views of the received frame.

    throttle i32 | error i16 | session i32 | topics [ name | partitions [
      index i32 | error i16 | high watermark i64 | last stable offset i64 | log start offset i64
      | aborted [ producer id i64 | first offset i64 | tags ] | preferred replica i32
      | records | tags ] tags ] tags          all lengths compact (value + 1, 0 is null)

For `read_committed` the batches of aborted transactions are left out here, by header: between
the first offset of an aborted transaction and its abort marker, transactional batches of its
producer are skipped.

Source: `FetchResponse.json`, version 12; KIP-98 for the aborted index.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client import limits
from penstock.client.errors import MalformedResponse
from penstock.records.positions import READ_COMMITTED, READ_UNCOMMITTED
from penstock.wire.kafka.errors import MalformedRequest
from penstock.wire.kafka.primitives import read_uvarint, skip_tags

FETCH_VERSION: Final = 12
OFFSET_OUT_OF_RANGE: Final = 1
_TOP: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_REPLICA: Final = struct.Struct(">i")

# Of a batch: base offset at 0, length at 8, attributes at 21, last offset delta at 23,
# producer id at 43; the first record begins at 61.
_BATCH: Final = struct.Struct(">qi4xb4xhi")
_PRODUCER_ID: Final = struct.Struct(">q")
_BATCH_HEADER_BYTES: Final = 61
_LENGTH_END: Final = 12
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction that overlaps the fetched range."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPartition:
    """One partition of an answer; `records` is a view of the frame."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[Aborted, ...]
    records: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What to ask one broker for: partition to position."""

    node_id: int
    positions: Mapping[int, int]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Whole batches of one partition, back to back, ready to be decoded.

    Of the records, those in [start_offset, end_offset) are wanted; `end_offset` None wants all.
    """

    partition: int
    data: memoryview
    start_offset: int
    end_offset: int | None


@dataclass(slots=True)
class Cursor:
    """Where a reader stands in a partition; `end` None follows the log for ever.

    `readable` is where what can be read ended when the partition was last heard of.
    """

    position: int
    end: int | None
    readable: int = -1

    @property
    def done(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def behind(self) -> bool:
        """Whether there is more to read, so that a broker answers at once."""
        return self.position < self.readable and not self.done


@dataclass(slots=True)
class FetchCore:
    """Positions of one reader over the partitions of one topic."""

    topic: str
    cursors: dict[int, Cursor]
    isolation: int = READ_UNCOMMITTED
    max_bytes: int = limits.FETCH_BYTES
    partition_max_bytes: int = limits.FETCH_PARTITION_BYTES
    max_wait_ms: int = limits.FETCH_WAIT_MS
    _turn: int = field(default=0)

    @property
    def done(self) -> bool:
        return all(cursor.done for cursor in self.cursors.values())

    def without_leader(self, leaders: Mapping[int, int]) -> list[int]:
        """Partitions that have more to read and nobody to ask."""
        return [p for p, cursor in self.cursors.items() if not cursor.done and p not in leaders]

    def request(
        self,
        node_id: int,
        leaders: Mapping[int, int],
        under_way: Collection[FetchRequest] = (),
    ) -> FetchRequest | None:
        """The next request to a broker, or None when it leads nothing that is wanted.

        The first partition changes every time, so that a broker that fills its answer in order
        serves all of them. A broker answers in order, too, and may hold an answer back until there
        are records: a second request leaves while one is `under_way` only for other partitions of
        which some are behind, and the first leaves it half of those that are.
        """
        asked = {p for request in under_way for p in request.positions}
        wanted = [
            p
            for p, cursor in self.cursors.items()
            if leaders.get(p) == node_id and not cursor.done and p not in asked
        ]
        behind = [p for p in wanted if self.cursors[p].behind]
        if not wanted or (under_way and not behind):
            return None
        self._turn += 1
        start = self._turn % len(wanted)
        wanted = wanted[start:] + wanted[:start]
        if not under_way:
            left = set(behind[(len(behind) + 1) // 2 :])
            wanted = [p for p in wanted if p not in left]
        positions = {p: self.cursors[p].position for p in wanted}
        return FetchRequest(node_id=node_id, positions=positions, body=self._body(positions))

    def _body(self, positions: Mapping[int, int]) -> Mapping[str, Any]:
        return fetch_body(
            self.topic,
            positions,
            isolation=self.isolation,
            max_bytes=self.max_bytes,
            partition_max_bytes=self.partition_max_bytes,
            max_wait_ms=self.max_wait_ms,
        )

    def advance(self, fetched: FetchedPartition) -> list[Run]:
        """Move the cursor over an answer's batches; returns what is to be decoded.

        More than one run is returned only when batches of aborted transactions lie between.
        """
        cursor = self.cursors[fetched.partition]
        committed = self.isolation == READ_COMMITTED
        cursor.readable = fetched.last_stable_offset if committed else fetched.high_watermark
        if not len(fetched.records) or cursor.done:
            return []
        start = cursor.position
        spans, next_offset = _spans(fetched.records, cursor.end, fetched.aborted)
        cursor.position = max(cursor.position, next_offset)
        return [
            Run(
                partition=fetched.partition,
                data=fetched.records[begin:end],
                start_offset=start,
                end_offset=cursor.end,
            )
            for begin, end in spans
        ]


def fetch_body(
    topic: str,
    positions: Mapping[int, int],
    *,
    isolation: int,
    max_bytes: int,
    partition_max_bytes: int,
    max_wait_ms: int,
) -> dict[str, Any]:
    """The body of a Fetch request without a session."""
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "topics": [
            {
                "topic": topic,
                "partitions": [
                    {
                        "partition": partition,
                        "fetch_offset": offset,
                        "partition_max_bytes": partition_max_bytes,
                    }
                    for partition, offset in positions.items()
                ],
            }
        ],
        "forgotten_topics_data": (),
    }


def read_fetch(frame: memoryview, offset: int, where: str) -> tuple[int, list[FetchedPartition]]:
    """Read a Fetch answer of version 12: its error code, and its partitions.

    Raises:
        MalformedResponse: it does not follow the schema.
    """
    try:
        _, error_code, _ = _TOP.unpack_from(frame, offset)
        topics, offset = read_uvarint(frame, offset + _TOP.size)
        found: list[FetchedPartition] = []
        for _ in range(topics - 1):
            length, offset = read_uvarint(frame, offset)
            count, offset = read_uvarint(frame, offset + length - 1)
            for _ in range(count - 1):
                partition, offset = _read_partition(frame, offset)
                found.append(partition)
            offset = skip_tags(frame, offset)
    except (struct.error, IndexError, MalformedRequest) as error:
        raise MalformedResponse(
            f"{where} answered Fetch with bytes that end early: {error}"
        ) from None
    return error_code, found


def _read_partition(frame: memoryview, offset: int) -> tuple[FetchedPartition, int]:
    index, error_code, high, stable, start = _PARTITION.unpack_from(frame, offset)
    count, offset = read_uvarint(frame, offset + _PARTITION.size)
    aborted: list[Aborted] = []
    for _ in range(count - 1):
        aborted.append(Aborted(*_ABORTED.unpack_from(frame, offset)))
        offset = skip_tags(frame, offset + _ABORTED.size)
    length, offset = read_uvarint(frame, offset + _REPLICA.size)
    end = offset + max(0, length - 1)
    if end > len(frame):
        raise IndexError(f"{length - 1} bytes of records, {len(frame) - offset} left")
    partition = FetchedPartition(
        partition=index,
        error_code=error_code,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted=tuple(aborted),
        records=frame[offset:end],
    )
    return partition, skip_tags(frame, end)


def whole_batches(records: memoryview) -> tuple[int, int]:
    """Size of the whole batches at the front of `records`, and the offset behind them (or -1)."""
    spans, next_offset = _spans(records, None, ())
    return (spans[-1][1] if spans else 0), next_offset


def _spans(
    records: memoryview, end_offset: int | None, aborted: Sequence[Aborted]
) -> tuple[list[tuple[int, int]], int]:
    """Byte ranges of the batches wanted, and the offset behind the last batch seen."""
    filter_ = _AbortedFilter(aborted) if aborted else None
    spans: list[tuple[int, int]] = []
    begin = position = 0
    size, next_offset = len(records), -1
    while position + _BATCH_HEADER_BYTES <= size:
        base, length, _, attributes, delta = _BATCH.unpack_from(records, position)
        end = position + _LENGTH_END + length
        if end > size or length < _BATCH_HEADER_BYTES - _LENGTH_END:
            break
        if end_offset is not None and base >= end_offset:
            next_offset = end_offset
            break
        if filter_ is not None and filter_.skips(records, position, base, attributes):
            if begin < position:
                spans.append((begin, position))
            begin = end
        next_offset = base + delta + 1
        position = end
    if begin < position:
        spans.append((begin, position))
    return spans, next_offset


class _AbortedFilter:
    """Follows which producers' transactions are aborted while batches go by in order."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._coming = sorted(aborted, key=lambda item: item.first_offset, reverse=True)
        self._open: set[int] = set()

    def skips(self, records: memoryview, position: int, base: int, attributes: int) -> bool:
        while self._coming and self._coming[-1].first_offset <= base:
            self._open.add(self._coming.pop().producer_id)
        if not attributes & _TRANSACTIONAL:
            return False
        producer_id = _PRODUCER_ID.unpack_from(records, position + 43)[0]
        if attributes & _CONTROL:
            # The marker ends the transaction; a commit marker of an aborted one cannot be.
            self._open.discard(producer_id)
            return False
        return producer_id in self._open
