"""Core of fetches: positions, requests, and parsing of responses without copies, without I/O.

A reader has a position and an end per partition. `request` selects the partitions of one leader
that have more to read. `advance` moves a position past a response's batches and reads only their
headers, so the next request can be sent before the response is decoded.

A position is an offset, and the leader epoch of the record before it. A request states this epoch,
and the leader epoch that the reader knows. A leader with another epoch rejects the request. A
leader whose log diverges from the records that were read returns the point of divergence (`check`).
Leader epochs only rise, so the reader ignores older epochs, and responses of former leaders.

Responses of Fetch are parsed here without a generated decoder, and records stay views of the
received frame:

    throttle i32 | error i16 | session i32 | topics [ name (-12) or id uuid (13+) | partitions [
      index i32 | error i16 | high watermark i64 | last stable offset i64 | log start offset i64
      | aborted [ producer id i64 | first offset i64 | tags ] | preferred replica i32
      | records | tags: 0 epoch i32, end i64 where logs diverge; 1 leader id i32, its epoch i32
      ] tags ] tags                           all lengths compact (value + 1, 0 is null)

For `read_committed`, a response has the start offsets of aborted transactions. A transaction ends
at its marker, which is found among the headers of the batches. A run is a sequence of whole batches
of one partition. It lists aborted offset ranges by producer, and the decoder skips their batches.

Source: `FetchResponse.json`, versions 12 to 16; KIP-98 for the aborted index, KIP-320 and KIP-595
for epochs, KIP-951 for the leader in responses.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec import Struct, field

from penstock.client import errors
from penstock.client.errors import LogTruncated, MalformedResponse
from penstock.records.extents import READ_COMMITTED, READ_UNCOMMITTED
from penstock.records.header import CONTROL_FLAG
from penstock.records.transactions import AbortedRange, ranges_until
from penstock.wire.kafka.framing import MalformedRequest, read_uvarint, skip_tags

BY_ID_FROM: Final = 13
"""First version of Fetch that identifies a topic by its id."""
_REPLICA_ID_UNTIL: Final = 14
OFFSET_OUT_OF_RANGE: Final = 1
_TOP: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_REPLICA: Final = struct.Struct(">i")
_PARTS: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")

# Batch layout: base offset at 0, length at 8, leader epoch at 12, attributes at 21, last offset
# delta at 23, producer id at 43; the first record begins at 61.
_BATCH: Final = struct.Struct(">qiib4xhi")
_PRODUCER_ID: Final = struct.Struct(">q")
_BATCH_HEADER_BYTES: Final = 61
_LENGTH_END: Final = 12


class ReadPosition(NamedTuple):
    """Next offset to read, and the leader epoch of the record before it, -1 if unknown."""

    epoch: int
    offset: int


class FetchedPartition(Struct, frozen=True, kw_only=True):
    """Partition of a Fetch response; `records` is a view of the frame."""

    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Aborted transactions that overlap the fetched range: producer id and first offset."""
    records: memoryview
    parts: ReadPosition | None = None
    """Point at which the leader's log diverges from the records that were read: an epoch and its
    end.
    """
    leader: tuple[int, int] | None = None
    """Current leader of the partition and its epoch, if the response names another broker."""


class Asked(NamedTuple):
    """Offset from which a Fetch request reads a partition, with leader epochs; -1 if unknown."""

    offset: int
    epoch: int = -1
    """Leader epoch of the record before the offset."""
    leader_epoch: int = -1


class FetchRequest(Struct, frozen=True, kw_only=True):
    node_id: int
    asked: Mapping[int, Asked]


class Run(Struct, frozen=True, kw_only=True):
    """Whole stored batches of one partition, contiguous in memory, that are ready to be decoded.

    Only records in [start_offset, end_offset) are requested; `end_offset` None means no limit.
    `behind` is the position after the batches. Batches in `aborted` must be skipped.
    """

    partition: int
    data: memoryview
    start_offset: int
    end_offset: int | None
    behind: ReadPosition
    aborted: tuple[AbortedRange, ...] = ()


class Cursor(Struct):
    """Position of a reader in a partition; it follows the log without end if `end` is None.

    `readable` is the end of the readable log in the partition's last response.
    """

    position: int
    end: int | None
    readable: int = -1
    epoch: int = -1
    """Leader epoch of the record before the position; -1 before the first record."""

    @property
    def done(self) -> bool:
        return self.end is not None and self.position >= self.end

    @property
    def behind(self) -> bool:
        """Whether more records are readable now, so the broker responds without waiting."""
        return self.position < self.readable and not self.done


class FetchCore(Struct):
    topic: str
    cursors: dict[int, Cursor]
    topic_id: UUID | None = None
    isolation: int = READ_UNCOMMITTED
    max_bytes: int = errors.FETCH_BYTES
    partition_max_bytes: int = errors.FETCH_PARTITION_BYTES
    max_wait_ms: int = errors.FETCH_WAIT_MS
    leaders: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Leader of each partition (-1 for none), and its epoch."""
    _turn: int = field(default=0)

    @property
    def done(self) -> bool:
        return all(cursor.done for cursor in self.cursors.values())

    def learn(self, partition: int, leader: tuple[int, int]) -> bool:
        """Store a partition's leader with its epoch; return whether the epoch is newer.

        A leader with an older epoch is ignored, because some brokers know of a change later than
        others.
        """
        known = self.leaders.get(partition, (-1, -1))[1]
        if leader[1] >= known:
            self.leaders[partition] = leader
        return leader[1] > known

    def nodes(self) -> set[int]:
        return {node for node, _ in self.leaders.values() if node >= 0}

    def without_leader(self) -> list[int]:
        leaders = self.leaders
        return [
            p
            for p, cursor in self.cursors.items()
            if not cursor.done and leaders.get(p, (-1, -1))[0] < 0
        ]

    def request(
        self, node_id: int, under_way: Collection[FetchRequest] = ()
    ) -> FetchRequest | None:
        """Return the next request to a broker; None if no partition of it can be requested now.

        `under_way` holds the unanswered requests to this broker. A second request lets the broker
        work while a response is decoded. But a broker handles the requests of a connection in
        order, and may wait for records before it responds. So a second request is returned only if
        it has partitions with readable records. A first request leaves half of the partitions with
        readable records to the second.

        The order of partitions rotates, because a broker fills a response in the order of the
        request.
        """
        asked = {p for request in under_way for p in request.asked}
        leaders = self.leaders
        unread = [
            p
            for p, cursor in self.cursors.items()
            if p in leaders and leaders[p][0] == node_id and not cursor.done and p not in asked
        ]
        behind = [p for p in unread if self.cursors[p].behind]
        if not unread or (under_way and not behind):
            return None
        self._turn += 1
        start = self._turn % len(unread)
        unread = unread[start:] + unread[:start]
        if not under_way:
            left = set(behind[(len(behind) + 1) // 2 :])
            unread = [p for p in unread if p not in left]
        cursors = self.cursors
        return FetchRequest(
            node_id=node_id,
            asked={p: Asked(cursors[p].position, cursors[p].epoch, leaders[p][1]) for p in unread},
        )

    def body(self, request: FetchRequest, version: int) -> Mapping[str, Any]:
        return fetch_body(
            self.topic,
            self.topic_id,
            request.asked,
            version=version,
            isolation=self.isolation,
            max_bytes=self.max_bytes,
            partition_max_bytes=self.partition_max_bytes,
            max_wait_ms=self.max_wait_ms,
        )

    def outdated(self, partition: int, request: FetchRequest) -> bool:
        """Whether a response must be discarded, because a newer leader epoch is known."""
        return request.asked[partition].leader_epoch < self.leaders[partition][1]

    def check(self, fetched: FetchedPartition) -> None:
        parts, cursor = fetched.parts, self.cursors[fetched.partition]
        if parts is not None:
            raise LogTruncated(
                self.topic,
                fetched.partition,
                read=ReadPosition(cursor.epoch, cursor.position),
                left=ReadPosition(parts.epoch, min(parts.offset, cursor.position)),
            )

    def advance(self, fetched: FetchedPartition) -> Run | None:
        """Move the cursor past a response's batches; return these batches for decoding, if any."""
        cursor = self.cursors[fetched.partition]
        committed = self.isolation == READ_COMMITTED
        cursor.readable = fetched.last_stable_offset if committed else fetched.high_watermark
        if not len(fetched.records) or cursor.done:
            return None
        start = cursor.position
        found = walk_batches(fetched.records, cursor.end)
        if found.behind.offset > cursor.position:
            cursor.epoch, cursor.position = found.behind
        if not found.size_bytes:
            return None
        return Run(
            partition=fetched.partition,
            data=fetched.records[: found.size_bytes],
            start_offset=start,
            end_offset=cursor.end,
            behind=found.behind,
            aborted=ranges_until(fetched.aborted, found.markers),
        )


def fetch_body(
    topic: str,
    topic_id: UUID | None,
    asked: Mapping[int, Asked],
    *,
    version: int,
    isolation: int,
    max_bytes: int,
    partition_max_bytes: int,
    max_wait_ms: int,
) -> dict[str, Any]:
    return request_body(
        [topic_body(topic, topic_id, asked, version, partition_max_bytes)],
        version=version,
        isolation=isolation,
        max_bytes=max_bytes,
        max_wait_ms=max_wait_ms,
    )


def request_body(
    topics: Sequence[Mapping[str, Any]],
    *,
    version: int,
    isolation: int,
    max_bytes: int,
    max_wait_ms: int,
) -> dict[str, Any]:
    """Return the body of a Fetch of several topics, each made by `topic_body`."""
    return {
        **({"replica_id": -1} if version <= _REPLICA_ID_UNTIL else {}),
        "max_wait": max_wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "topics": topics,
        "forgotten_topics_data": (),
    }


def topic_body(
    topic: str,
    topic_id: UUID | None,
    asked: Mapping[int, Asked],
    version: int,
    partition_max_bytes: int,
) -> dict[str, Any]:
    """Return one topic of the body of a Fetch, with the positions of its partitions."""
    return {
        **({"topic_id": topic_id} if version >= BY_ID_FROM else {"topic": topic}),
        "partitions": [
            {
                "partition": partition,
                "current_leader_epoch": position.leader_epoch,
                "fetch_offset": position.offset,
                "last_fetched_epoch": position.epoch,
                "partition_max_bytes": partition_max_bytes,
            }
            for partition, position in asked.items()
        ],
    }


def read_fetch(
    frame: memoryview, offset: int, where: str, version: int
) -> tuple[int, list[FetchedPartition]]:
    """Decode a Fetch response of version 12 or later to its error code and its partitions.

    Raises:
        MalformedResponse: the response does not follow the schema.
    """
    error_code, found = read_topics(frame, offset, where, version)
    return error_code, [partition for _, partition in found]


def read_topics(
    frame: memoryview, offset: int, where: str, version: int
) -> tuple[int, list[tuple[bytes, FetchedPartition]]]:
    """Decode a Fetch response as `read_fetch`; each partition with the id or name of its topic.

    Raises:
        MalformedResponse: the response does not follow the schema.
    """
    try:
        _, error_code, _ = _TOP.unpack_from(frame, offset)
        topics, offset = read_uvarint(frame, offset + _TOP.size)
        found: list[tuple[bytes, FetchedPartition]] = []
        for _ in range(topics - 1):
            length = 17
            if version < BY_ID_FROM:
                length, offset = read_uvarint(frame, offset)
            key = bytes(frame[offset : offset + length - 1])
            count, offset = read_uvarint(frame, offset + length - 1)
            for _ in range(count - 1):
                partition, offset = _read_partition(frame, offset)
                found.append((key, partition))
            offset = skip_tags(frame, offset)
    except (struct.error, IndexError, MalformedRequest) as error:
        raise MalformedResponse(f"{where} sent a truncated response to Fetch: {error}") from None
    return error_code, found


def _read_partition(frame: memoryview, offset: int) -> tuple[FetchedPartition, int]:
    index, error_code, high, stable, start = _PARTITION.unpack_from(frame, offset)
    count, offset = read_uvarint(frame, offset + _PARTITION.size)
    aborted: list[tuple[int, int]] = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(frame, offset))
        offset = skip_tags(frame, offset + _ABORTED.size)
    length, offset = read_uvarint(frame, offset + _REPLICA.size)
    end = offset + max(0, length - 1)
    if end > len(frame):
        raise IndexError(
            f"the records have {length - 1} bytes, but {len(frame) - offset} bytes are left"
        )
    parts, leader, behind = _read_tags(frame, end)
    partition = FetchedPartition(
        partition=index,
        error_code=error_code,
        high_watermark=high,
        last_stable_offset=stable,
        log_start_offset=start,
        aborted=tuple(aborted),
        records=frame[offset:end],
        parts=parts,
        leader=leader,
    )
    return partition, behind


def _read_tags(
    frame: memoryview, offset: int
) -> tuple[ReadPosition | None, tuple[int, int] | None, int]:
    """Return the divergence point, the leader, and the offset after a partition's tagged fields."""
    parts, leader = None, None
    count, offset = read_uvarint(frame, offset)
    for _ in range(count):
        tag, offset = read_uvarint(frame, offset)
        length, offset = read_uvarint(frame, offset)
        if tag == 0:
            parts = ReadPosition(*_PARTS.unpack_from(frame, offset))
        elif tag == 1:
            leader = _LEADER.unpack_from(frame, offset)
        offset += length
    if offset > len(frame):
        raise IndexError(f"the tagged fields end at {offset}, but there are {len(frame)} bytes")
    return parts, leader, offset


class Walked(NamedTuple):
    """Total size of the whole batches at the beginning of a fetch, and the position after them.

    `markers` holds the producer id and offset of each control batch among them.
    """

    size_bytes: int
    behind: ReadPosition
    markers: list[tuple[int, int]]


def walk_batches(records: memoryview, end_offset: int | None = None) -> Walked:
    """Find the whole batches with offsets below `end_offset`, by their headers.

    If there is none, the offset of the position after them is -1.
    """
    markers: list[tuple[int, int]] = []
    position = 0
    size, epoch, next_offset = len(records), -1, -1
    while position + _BATCH_HEADER_BYTES <= size:
        base, length, batch_epoch, _, attributes, delta = _BATCH.unpack_from(records, position)
        end = position + _LENGTH_END + length
        if end > size or length < _BATCH_HEADER_BYTES - _LENGTH_END:
            break
        if end_offset is not None and base >= end_offset:
            next_offset = end_offset
            break
        if attributes & CONTROL_FLAG:
            markers.append((*_PRODUCER_ID.unpack_from(records, position + 43), base))
        epoch, next_offset = batch_epoch, base + delta + 1
        position = end
    return Walked(position, ReadPosition(epoch, next_offset), markers)
