"""Hand-written codecs of Fetch and ShareFetch. Responses are lists of buffers, so that records are
never copied.

    request    [replica id i32 (-14)] max wait i32, min bytes i32, max bytes i32, isolation i8,
               session id i32 (7+), session epoch i32 (7+), [topic [partition]],
               forgotten [topic [index i32]] (7+), rack string (11+)
    topic      name string (-12) or id uuid (13+)
    partition  index i32, leader epoch i32 (9+), fetch offset i64, last epoch i32 (12+),
               log start i64 (5+), max bytes i32
    response   throttle i32, error i16 (7+), session id i32 (7+), [topic [partition]]
    partition  index i32, error i16, high watermark i64, last stable offset i64,
               log start i64 (5+), aborted [producer id i64, first offset i64],
               preferred replica i32 (11+), records bytes

From version 12 on, lengths are compact and there are tagged fields. Tests compare every byte with
kio's codec.

Source: `FetchRequest.json`, `FetchResponse.json`; KIP-227 (sessions), KIP-392, KIP-516, KIP-903.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.wire.kafka.decoder import ELEMENTS_MAX
from penstock.wire.kafka.framing import (
    Endpoint,
    Leader,
    MalformedRequest,
    compact_text,
    current_leader,
    diverging_epoch,
    endpoint_array,
    node_endpoints,
    read_uvarint,
    skip_tags,
    uvarint,
)

FLEXIBLE_FROM: Final = 12
LEADERS_FROM: Final = 16
TOPIC_IDS_FROM: Final = 13
REPEATED_TAIL_BYTES_MAX: Final = 512
"""Largest part after the partitions of a request that is compared with the next one."""

PartitionRequest = tuple[int, int, int, int, int]
"""(index, leader epoch, fetch offset, last fetched epoch, max bytes); absent epochs are -1."""
TopicRequest = tuple[bytes, list[PartitionRequest]]
Buffer = bytes | bytearray | memoryview
Aborted = tuple[int, int]
"""Producer id and first offset of an aborted transaction. Readers skip batches of this producer
from there to its abort marker."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_HEAD = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_V4_PARTITION = struct.Struct(">iqi")
_V5_PARTITION = struct.Struct(">iqqi")
_V9_PARTITION = struct.Struct(">iiqqi")
_V12_PARTITION = struct.Struct(">iiqiqi")

_V4_RESULT = struct.Struct(">ihqqii")  # … aborted count, records length
_V5_RESULT = struct.Struct(">ihqqqii")
_V11_RESULT = struct.Struct(">ihqqqiii")  # … aborted count, preferred replica, records length
_V12_RESULT = struct.Struct(">ihqqqBi")  # … aborted count + 1, preferred replica
_RESULT_HEAD = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_FLEXIBLE_ABORTED = struct.Struct(">qqx")


class FetchRequest:
    """Decoded request, without references to its frame."""

    __slots__ = (
        "forgotten", "isolation_level", "max_bytes", "max_wait_ms", "min_bytes", "rack",
        "replica_id", "session_epoch", "session_id", "topics",
    )  # fmt: skip

    def __init__(self) -> None:
        self.replica_id = -1
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = 0x7FFFFFFF
        self.isolation_level = 0
        self.session_id = 0
        self.session_epoch = -1
        self.topics: list[TopicRequest] = []
        self.forgotten: list[tuple[bytes, tuple[int, ...]]] = []
        self.rack = ""


class RepeatedRows(Struct, frozen=True):
    """Bytes of a request for one topic, by which a connection's next request is compared with it.

    The rows of its partitions may be rotated, because librdkafka begins each request one partition
    later.
    """

    head: bytes
    rows_twice: bytes
    tail: bytes
    row_bytes: int

    @classmethod
    def of(cls, frame: memoryview, offset: int, version: int, count: int) -> RepeatedRows | None:
        """Split a decoded request that has `count` rows.

        Return None if rows have tagged fields, or if the fields after them are longer than
        `REPEATED_TAIL_BYTES_MAX`.
        """
        flexible = version >= FLEXIBLE_FROM
        start = offset + _HEAD.size + (4 if version < 15 else 0) + (8 if version >= 7 else 0)
        _, start = _count(frame, start, ELEMENTS_MAX, flexible=flexible)
        _, start = _key(frame, start, version)
        _, start = _count(frame, start, ELEMENTS_MAX, flexible=flexible)
        if flexible:
            row_bytes = _V12_PARTITION.size + 1
        else:
            rows = _V9_PARTITION if version >= 9 else _V5_PARTITION if version >= 5 else None
            row_bytes = (rows or _V4_PARTITION).size
        end = start + count * row_bytes
        found = bytes(frame[start:end])
        tagged = flexible and found[row_bytes - 1 :: row_bytes] != bytes(count)
        if tagged or len(frame) - end > REPEATED_TAIL_BYTES_MAX:
            return None
        return cls(bytes(frame[offset:start]), found * 2, bytes(frame[end:]), row_bytes)

    def equal(self, frame: memoryview, offset: int) -> bool:
        """Return whether a request of the same version has the same fields and partitions."""
        rows = self.rows_twice
        start = offset + len(self.head)
        end = start + len(rows) // 2
        if (
            len(frame) != end + len(self.tail)
            or frame[offset:start] != self.head
            or frame[end:] != self.tail
        ):
            return False
        found = bytes(frame[start:end])  # comparing bytes is faster than comparing views
        at = rows.find(found[: self.row_bytes])
        return at % self.row_bytes == 0 and rows.startswith(found, at)


class PartitionAnswer(Struct):
    """Partition of a response. `buffers` have whole batches, `size_bytes` in total."""

    index: int
    error: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[Buffer] = ()
    size_bytes: int = 0
    aborted: Sequence[Aborted] | None = None
    """Aborted transactions in the range of the records, for `read_committed`; else None."""
    preferred_replica: int = -1
    """Broker from which the consumer should fetch instead; -1 for none. If it is set, there are no
    records."""
    leader: Leader | None = None
    """Leader of the partition, if it is not this broker."""
    parts: tuple[int, int] | None = None
    """Leader epoch and end offset at which the log diverges from the client's (from version 12)."""


def throttled(pieces: list[Buffer], throttle_ms: int) -> None:
    """Set the throttle time, the first field of a response body, in the body's pieces."""
    pieces[0] = _I32.pack(throttle_ms) + pieces[0][_I32.size :]


TopicAnswer = tuple[bytes, Sequence[PartitionAnswer]]


def decode_request(frame: memoryview, offset: int, version: int) -> FetchRequest:
    """Read the body of a request of version 4 to 18 that starts at `offset` of its frame.

    Raises:
        MalformedRequest: the bytes do not follow the schema. Bytes after the request are ignored,
            as in Apache Kafka.
    """
    try:
        request, _ = _decode(frame, offset, version)
    except (struct.error, IndexError):
        raise MalformedRequest(
            f"Fetch: the request ends after {len(frame) - offset} bytes, within a field"
        ) from None
    except UnicodeDecodeError:
        raise MalformedRequest("Fetch: the rack is not UTF-8") from None
    return request


def _decode(frame: memoryview, offset: int, version: int) -> tuple[FetchRequest, int]:
    request = FetchRequest()
    flexible = version >= FLEXIBLE_FROM
    if version < 15:
        (request.replica_id,) = _I32.unpack_from(frame, offset)
        offset += 4
    (
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
    ) = _HEAD.unpack_from(frame, offset)
    offset += 13
    if version >= 7:
        request.session_id, request.session_epoch = _SESSION.unpack_from(frame, offset)
        offset += 8
    count, offset = _count(frame, offset, ELEMENTS_MAX, flexible=flexible)
    budget = ELEMENTS_MAX - count
    for _ in range(count):
        key, offset = _key(frame, offset, version)
        partitions, offset = _partitions(frame, offset, budget, version)
        budget -= len(partitions)
        request.topics.append((key, partitions))
        if flexible:
            offset = skip_tags(frame, offset)
    if version >= 7:
        offset = _forgotten(frame, offset, budget, version, request)
    if version >= 11:
        request.rack, offset = _text(frame, offset, flexible=flexible)
    return request, (_request_tags(frame, offset, version, request) if flexible else offset)


def _partitions(
    frame: memoryview, offset: int, budget: int, version: int
) -> tuple[list[PartitionRequest], int]:
    count, offset = _count(frame, offset, budget, flexible=version >= FLEXIBLE_FROM)
    if version >= FLEXIBLE_FROM:
        partitions: list[PartitionRequest] = []
        unpack, width = _V12_PARTITION.unpack_from, _V12_PARTITION.size
        for _ in range(count):
            index, epoch, fetch_offset, last_epoch, _, limit = unpack(frame, offset)
            partitions.append((index, epoch, fetch_offset, last_epoch, limit))
            offset += width
            offset = offset + 1 if frame[offset] == 0 else skip_tags(frame, offset)
        return partitions, offset
    if version >= 9:
        end = offset + count * _V9_PARTITION.size
        rows9 = _V9_PARTITION.iter_unpack(_slice(frame, offset, end))
        return [(index, epoch, at, -1, limit) for index, epoch, at, _, limit in rows9], end
    if version >= 5:
        end = offset + count * _V5_PARTITION.size
        rows5 = _V5_PARTITION.iter_unpack(_slice(frame, offset, end))
        return [(index, -1, at, -1, limit) for index, at, _, limit in rows5], end
    end = offset + count * _V4_PARTITION.size
    rows4 = _V4_PARTITION.iter_unpack(_slice(frame, offset, end))
    return [(index, -1, at, -1, limit) for index, at, limit in rows4], end


def _slice(frame: memoryview, offset: int, end: int) -> memoryview:
    if end > len(frame):
        raise IndexError
    return frame[offset:end]


def _forgotten(
    frame: memoryview, offset: int, budget: int, version: int, request: FetchRequest
) -> int:
    flexible = version >= FLEXIBLE_FROM
    count, offset = _count(frame, offset, budget, flexible=flexible)
    budget -= count
    for _ in range(count):
        key, offset = _key(frame, offset, version)
        length, offset = _count(frame, offset, budget, flexible=flexible)
        budget -= length
        request.forgotten.append((key, struct.unpack_from(f">{length}i", frame, offset)))
        offset += 4 * length
        if flexible:
            offset = skip_tags(frame, offset)
    return offset


def _count(frame: memoryview, offset: int, budget: int, *, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, offset = read_uvarint(frame, offset)
        count -= 1
    else:
        (count,) = _I32.unpack_from(frame, offset)
        offset += 4
    left = len(frame) - offset
    if count < 0 or count > budget or count * 4 > left:
        raise MalformedRequest(
            f"Fetch: an array has {count} elements, but {left} bytes are left, and at most"
            f" {budget} more elements are allowed"
        )
    return count, offset


def _key(frame: memoryview, offset: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS_FROM:
        length = 16
    elif version >= FLEXIBLE_FROM:
        length, offset = read_uvarint(frame, offset)
        length -= 1
    else:
        (length,) = _I16.unpack_from(frame, offset)
        offset += 2
    return bytes(_field(frame, offset, length)), offset + length


def _text(frame: memoryview, offset: int, *, flexible: bool) -> tuple[str, int]:
    if flexible:
        length, offset = read_uvarint(frame, offset)
        length -= 1
    else:
        (length,) = _I16.unpack_from(frame, offset)
        offset += 2
    return str(_field(frame, offset, length), "utf-8"), offset + length


def _field(frame: memoryview, offset: int, length: int) -> memoryview:
    if length < 0 or offset + length > len(frame):
        raise MalformedRequest(
            f"Fetch: a field has length {length}, but {len(frame) - offset} bytes are left"
        )
    return frame[offset : offset + length]


def _request_tags(frame: memoryview, offset: int, version: int, request: FetchRequest) -> int:
    count, offset = read_uvarint(frame, offset)
    for _ in range(count):
        tag, offset = read_uvarint(frame, offset)
        length, offset = read_uvarint(frame, offset)
        _field(frame, offset, length)
        if tag == 1 and version >= 15:
            (request.replica_id,) = _I32.unpack_from(frame, offset)
        offset += length
    return offset


class ResponseWriter:
    """Encoder of one response body as a list of buffers. All bytes between records are joined."""

    __slots__ = ("_flexible", "_pending", "_pieces", "_version", "size_bytes")

    def __init__(self, version: int) -> None:
        self._version = version
        self._flexible = version >= FLEXIBLE_FROM
        self._pending: list[bytes] = []
        self._pieces: list[Buffer] = []
        self.size_bytes = 0

    def write(
        self,
        topics: Sequence[TopicAnswer],
        *,
        error: int = 0,
        session_id: int = 0,
        endpoints: Sequence[Endpoint] = (),
    ) -> list[Buffer]:
        """Return the buffers of the body; `endpoints` are the addresses of leaders in `topics`."""
        pending = self._pending
        if self._version >= 7:
            pending.append(struct.pack(">ihi", 0, error, session_id))
        else:
            pending.append(bytes(4))
        pending.append(self._length(len(topics)))
        for key, partitions in topics:
            self._key(key)
            pending.append(self._length(len(partitions)))
            for partition in partitions:
                self._partition(partition)
            if self._flexible:
                pending.append(b"\0")
        if self._flexible:
            pending.append(node_endpoints(endpoints if self._version >= LEADERS_FROM else ()))
        self._join()
        return self._pieces

    def _length(self, count: int) -> bytes:
        return uvarint(count + 1) if self._flexible else _I32.pack(count)

    def _key(self, key: bytes) -> None:
        if self._version < FLEXIBLE_FROM:
            self._pending.append(_I16.pack(len(key)))
        elif self._version < TOPIC_IDS_FROM:
            self._pending.append(uvarint(len(key) + 1))
        self._pending.append(key)

    def _join(self) -> None:
        if self._pending:
            joined = b"".join(self._pending)
            self._pending.clear()
            self._pieces.append(joined)
            self.size_bytes += len(joined)

    def _partition(self, answer: PartitionAnswer) -> None:
        pending = self._pending
        head = (
            answer.index,
            answer.error,
            answer.high_watermark,
            answer.last_stable_offset,
        )
        size, nearer = answer.size_bytes, answer.preferred_replica
        if answer.aborted:
            self._with_aborted(answer, answer.aborted)
        elif self._flexible:
            aborted = 0 if answer.aborted is None else 1
            pending.append(_V12_RESULT.pack(*head, answer.log_start_offset, aborted, nearer))
            pending.append(uvarint(size + 1))
        elif self._version >= 11:
            aborted = -1 if answer.aborted is None else 0
            pending.append(_V11_RESULT.pack(*head, answer.log_start_offset, aborted, nearer, size))
        elif self._version >= 5:
            aborted = -1 if answer.aborted is None else 0
            pending.append(_V5_RESULT.pack(*head, answer.log_start_offset, aborted, size))
        else:
            pending.append(_V4_RESULT.pack(*head, -1 if answer.aborted is None else 0, size))
        if size:
            self._join()
            self._pieces.extend(answer.buffers)
            self.size_bytes += size
        if self._flexible and answer.parts is not None:
            pending.append(diverging_epoch(answer.parts))
        elif self._flexible:
            named = answer.leader is not None and self._version >= LEADERS_FROM
            pending.append(current_leader(1, answer.leader) if named else b"\0")

    def _with_aborted(self, answer: PartitionAnswer, aborted: Sequence[Aborted]) -> None:
        """Append the fields before the records, for a partition with aborted transactions."""
        pending, version = self._pending, self._version
        head = answer.index, answer.error, answer.high_watermark, answer.last_stable_offset
        pending.append(_RESULT_HEAD.pack(*head))
        if version >= 5:
            pending.append(_I64.pack(answer.log_start_offset))
        pending.append(self._length(len(aborted)))
        entry = _FLEXIBLE_ABORTED if self._flexible else _ABORTED
        pending += [entry.pack(*transaction) for transaction in aborted]
        if version >= 11:
            pending.append(_I32.pack(answer.preferred_replica))
        pending.append(self._length(answer.size_bytes))


# Hand-written encoder of ShareFetch responses: lists of buffers, so that records are not copied.
#
#     response   throttle i32, error i16, message string?, lock timeout i32, [topic [partition]],
#                endpoints [id i32, host string, port i32, rack string?]
#     partition  index i32, error i16, message string?, acknowledge error i16, message string?,
#                leader id i32, leader epoch i32, records bytes, acquired [first i64, last i64,
#                deliveries i16]
#
# All lengths are compact, and all structs have tagged fields. Tests compare every byte with kio's
# codec.
#
# Source: `ShareFetchResponse.json`; KIP-932, KIP-951 (endpoints).


_SHARE_HEAD: Final = struct.Struct(">ih")
_PARTITION: Final = struct.Struct(">ih")
_LEADER: Final = struct.Struct(">iix")
_ACQUIRED: Final = struct.Struct(">qqhx")


class SharePartitionAnswer(Struct):
    """Partition of a response. `buffers` have whole batches, `size_bytes` in total.

    `acquired` has ranges of acquired records: first offset, last offset, number of deliveries.
    """

    index: int
    error: int = 0
    message: str | None = None
    acknowledge_error: int = 0
    acknowledge_message: str | None = None
    leader: Leader = (-1, -1)
    buffers: Sequence[Buffer] = ()
    size_bytes: int = 0
    acquired: Sequence[tuple[int, int, int]] = ()


def encode_response(
    topics: Sequence[tuple[bytes, Sequence[SharePartitionAnswer]]],
    *,
    lock_timeout_ms: int,
    endpoints: Sequence[Endpoint] = (),
) -> list[Buffer]:
    """Return the buffers of a response body of version 1 or 2; records are not copied."""
    pieces: list[Buffer] = []
    pending = [
        _SHARE_HEAD.pack(0, 0),
        b"\0",
        _I32.pack(lock_timeout_ms),
        uvarint(len(topics) + 1),
    ]
    for topic_id, partitions in topics:
        pending += (topic_id, uvarint(len(partitions) + 1))
        for partition in partitions:
            pending += (
                _PARTITION.pack(partition.index, partition.error),
                compact_text(partition.message),
                _I16.pack(partition.acknowledge_error),
                compact_text(partition.acknowledge_message),
                _LEADER.pack(*partition.leader),
                uvarint(partition.size_bytes + 1),
            )
            if partition.size_bytes:
                pieces.append(b"".join(pending))
                pending.clear()
                pieces += partition.buffers
            pending.append(uvarint(len(partition.acquired) + 1))
            pending += [_ACQUIRED.pack(*acquired) for acquired in partition.acquired]
            pending.append(b"\0")
        pending.append(b"\0")
    pending += (endpoint_array(endpoints), b"\0")
    pieces.append(b"".join(pending))
    return pieces
