"""Hand-written codec of Produce, the most frequent request. Records are views of the frame.

    request    [transactional id] acks i16 timeout i32 [topic [index i32, records bytes]]
    topic      name string (versions 3 to 12) or id uuid (13)
    response   [topic [index i32, error i16, base offset i64, append time i64 (2+),
               log start i64 (5+), record errors (8+), error message (8+)]] throttle i32 (1+)

From version 9 on, strings, arrays and records have compact lengths, and structs have tagged fields.
Requests of versions 0 to 2 are rejected with responses in their own format. Tests compare every
byte with kio's codec.

Source: `ProduceRequest.json`, `ProduceResponse.json`; KIP-467 (record errors), KIP-516 (ids).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from penstock.wire.kafka.decoder import ELEMENTS_MAX
from penstock.wire.kafka.framing import (
    Endpoint,
    Leader,
    MalformedRequest,
    current_leader,
    node_endpoints,
    read_uvarint,
    skip_tags,
    uvarint,
)

FLEXIBLE_FROM: Final = 9
LEADERS_FROM: Final = 10
TOPIC_IDS_FROM: Final = 13
SINGLE_KEY_BYTES_MAX: Final = 126
"""Longest topic name of a request for one partition that the short forms of the codec accept. Its
compact length takes one byte."""

Partition = tuple[int, memoryview | None]
Topic = tuple[bytes, list[Partition]]
"""Bytes of a topic's name or id, and its partitions, each with its records."""

_ACKS_TIMEOUT = struct.Struct(">hi")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
_PAIR = struct.Struct(">ii")

_V0 = struct.Struct(">ihq")
_V2 = struct.Struct(">ihqq")
_V5 = struct.Struct(">ihqqq")
_V8 = struct.Struct(">ihqqqih")
_V9 = struct.Struct(">ihqqqBBx")
_SINGLE_HEAD = struct.Struct(">BhiBB")
_PLAIN_SINGLE_HEAD = struct.Struct(">hhiih")
_NO_ERRORS: Final = b"\0\0\0\0\xff\xff\0\0\0\0"
"""No record errors, message and throttle time; up to version 7 only the first four bytes."""


class ProduceRequest(Struct, eq=False):
    """Decoded request. The records in `topics` are views of the frame."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[Topic]


class PartitionResult(Struct):
    """Result of the append to one partition. `error` is Kafka's number, 0 for success."""

    index: int
    error: int = 0
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    leader: Leader | None = None
    """Leader of the partition, if it is not this broker."""


TopicResult = tuple[bytes, list[PartitionResult]]


def decode_request(frame: memoryview, offset: int, version: int) -> ProduceRequest:
    """Read the body of a request of version 3 to 13 that starts at `offset` of its frame.

    Raises:
        MalformedRequest: the bytes do not follow the schema. Bytes after the request are ignored,
            as in Apache Kafka.
    """
    try:
        if version >= FLEXIBLE_FROM:
            request, _ = _decode_flexible(frame, offset, version)
        else:
            request, _ = _decode_plain(frame, offset)
    except (struct.error, IndexError):
        raise MalformedRequest(
            f"Produce: the request ends after {len(frame) - offset} bytes, within a field"
        ) from None
    except UnicodeDecodeError:
        raise MalformedRequest("Produce: the transactional id is not UTF-8") from None
    return request


def decode_single(
    frame: memoryview, offset: int, version: int
) -> tuple[int, int, bytes, int, memoryview] | None:
    """Read the most frequent form: not transactional, one topic, one partition, no tagged fields.

    Return acks, timeout, topic, partition and records. Return None for other forms and for
    truncated bytes; the caller then reads them with `decode_request`.
    """
    try:
        if version < FLEXIBLE_FROM:
            return _decode_plain_single(frame, offset)
        some_id, acks, timeout_ms, topics, size = _SINGLE_HEAD.unpack_from(frame, offset)
        if version >= TOPIC_IDS_FROM:
            offset, size = offset + 8, 16
        else:
            offset, size = offset + 9, size - 1
        if some_id or topics != 2 or not 0 <= size <= SINGLE_KEY_BYTES_MAX:
            return None
        key, partitions, index, length, high = _compact_single(size).unpack_from(frame, offset)
        records_at = offset + size + 6
        if length > 127:
            if high > 127:
                length, records_at = read_uvarint(frame, records_at - 1)
            else:
                length, records_at = length & 127 | high << 7, records_at + 1
        end = records_at + length - 1
        if partitions != 2 or not length or end + 3 != len(frame):
            return None
        if frame[end] or frame[end + 1] or frame[end + 2]:  # tagged fields
            return None
    except (struct.error, IndexError):
        return None
    return acks, timeout_ms, key, index, frame[records_at:end]


def _decode_plain_single(
    frame: memoryview, offset: int
) -> tuple[int, int, bytes, int, memoryview] | None:
    no_id, acks, timeout_ms, topics, size = _PLAIN_SINGLE_HEAD.unpack_from(frame, offset)
    if no_id != -1 or topics != 1 or not 0 <= size <= SINGLE_KEY_BYTES_MAX:
        return None
    key, partitions, index, length = _plain_single(size).unpack_from(frame, offset + 14)
    records_at = offset + 26 + size
    if partitions != 1 or records_at + length != len(frame):
        return None
    return acks, timeout_ms, key, index, frame[records_at:]


@cache
def _compact_single(key_bytes: int) -> struct.Struct:
    return struct.Struct(f">{key_bytes}sBiBB")


@cache
def _plain_single(key_bytes: int) -> struct.Struct:
    return struct.Struct(f">{key_bytes}siii")


def _decode_flexible(frame: memoryview, offset: int, version: int) -> tuple[ProduceRequest, int]:
    size = len(frame)
    length, offset = read_uvarint(frame, offset)
    transactional_id = None
    if length:
        end = _within(offset + length - 1, size)
        transactional_id = str(frame[offset:end], "utf-8")
        offset = end
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, offset)
    count, offset = read_uvarint(frame, offset + 6)
    budget = _claim(count - 1, 3, size - offset, ELEMENTS_MAX)
    topics: list[Topic] = []
    for _ in range(count - 1):
        length = 16
        if version < TOPIC_IDS_FROM:
            length, offset = read_uvarint(frame, offset)
            length -= 1
        end = _within(offset + length, size)
        key = bytes(frame[offset:end])
        partitions, offset, budget = _partitions(frame, end, budget)
        topics.append((key, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), skip_tags(frame, offset)


def _partitions(frame: memoryview, offset: int, budget: int) -> tuple[list[Partition], int, int]:
    size = len(frame)
    count, offset = read_uvarint(frame, offset)
    budget = _claim(count - 1, 6, size - offset, budget)
    unpack = _I32.unpack_from
    partitions: list[Partition] = []
    for _ in range(count - 1):
        (index,) = unpack(frame, offset)
        length, offset = read_uvarint(frame, offset + 4)
        records = None
        if length:
            end = offset + length - 1
            if end > size:
                _within(end, size)
            records = frame[offset:end]
            offset = end
        partitions.append((index, records))
        offset = offset + 1 if frame[offset] == 0 else skip_tags(frame, offset)
    return partitions, skip_tags(frame, offset), budget


def _decode_plain(frame: memoryview, offset: int) -> tuple[ProduceRequest, int]:
    size = len(frame)
    (length,) = _I16.unpack_from(frame, offset)
    offset += 2
    transactional_id = None
    if length >= 0:
        end = _within(offset + length, size)
        transactional_id = str(frame[offset:end], "utf-8")
        offset = end
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, offset)
    (count,) = _I32.unpack_from(frame, offset + 6)
    offset += 10
    budget = _claim(count, 6, size - offset, ELEMENTS_MAX)
    topics: list[Topic] = []
    for _ in range(count):
        (length,) = _I16.unpack_from(frame, offset)
        offset += 2
        end = _within(offset + length, size) if length >= 0 else _claim(length, 0, 0, 0)
        key = bytes(frame[offset:end])
        (partition_count,) = _I32.unpack_from(frame, end)
        offset = end + 4
        budget = _claim(partition_count, 8, size - offset, budget)
        partitions: list[Partition] = []
        for _ in range(partition_count):
            index, length = _PAIR.unpack_from(frame, offset)
            offset += 8
            records = None
            if length >= 0:
                end = _within(offset + length, size)
                records = frame[offset:end]
                offset = end
            partitions.append((index, records))
        topics.append((key, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics), offset


def _within(end: int, size: int) -> int:
    if end > size:
        raise MalformedRequest(f"Produce: a field reaches {end - size} bytes beyond the frame")
    return end


def _claim(count: int, bytes_each: int, left: int, budget: int) -> int:
    if count < 0 or count > budget or count * bytes_each > left:
        raise MalformedRequest(
            f"Produce: an array or text has length {count}, but {left} bytes are left, and at most"
            f" {budget} more array elements are allowed"
        )
    return budget - count


@cache
def _single_packer(version: int, key_bytes: int) -> struct.Struct:
    if version < FLEXIBLE_FROM:
        start, end = 8 if version >= 5 else 0, len(_NO_ERRORS) if version >= 8 else 4
        return struct.Struct(f">iiih{key_bytes}siihqq{start}s{end}s")
    topics = "B" if version >= TOPIC_IDS_FROM else "H"
    return struct.Struct(f">iix{topics}{key_bytes}sBihqqqBxxxxxxxx")


def encode_single_frame(
    version: int,
    correlation_id: int,
    key: bytes,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """Return the response frame for one successful append, from version 3 on.

    `key` has at most `SINGLE_KEY_BYTES_MAX` bytes.
    """
    size = len(key)
    packer = _single_packer(version, size)
    # Values are passed one by one, because passing a tuple takes longer than packing.
    if version < FLEXIBLE_FROM:
        return packer.pack(
            packer.size - 4, correlation_id, 1, size, key, 1, index, 0, base_offset,
            log_append_time_ms, _I64.pack(log_start_offset), _NO_ERRORS,
        )  # fmt: skip
    topics = 2 if version >= TOPIC_IDS_FROM else 2 << 8 | size + 1  # number, and length of the name
    return packer.pack(
        packer.size - 4, correlation_id, topics, key, 2, index, 0, base_offset,
        log_append_time_ms, log_start_offset, 1,
    )  # fmt: skip


def encode_response(
    version: int,
    topics: Sequence[TopicResult],
    endpoints: Sequence[Endpoint] = (),
    throttle_ms: int = 0,
) -> bytes:
    """Return the body of a response of version 0 to 13.

    `endpoints` are the addresses of the leaders that `topics` names.
    """
    if version >= FLEXIBLE_FROM:
        return _encode_flexible(version, topics, endpoints, throttle_ms)
    pieces = [_I32.pack(len(topics))]
    for name, results in topics:
        pieces += (_I16.pack(len(name)), name, _I32.pack(len(results)))
        pieces += [_plain_partition(version, result) for result in results]
    if version >= 1:
        pieces.append(_I32.pack(throttle_ms))
    return b"".join(pieces)


def _plain_partition(version: int, result: PartitionResult) -> bytes:
    head = (result.index, result.error, result.base_offset)
    if version < 2:
        return _V0.pack(*head)
    if version < 5:
        return _V2.pack(*head, result.log_append_time_ms)
    times = (result.log_append_time_ms, result.log_start_offset)
    if version < 8:
        return _V5.pack(*head, *times)
    if result.message is None and not result.record_errors:
        return _V8.pack(*head, *times, 0, -1)
    pieces = [_V5.pack(*head, *times), _I32.pack(len(result.record_errors))]
    for batch_index, message in result.record_errors:
        pieces += (_I32.pack(batch_index), _plain_text(message))
    pieces.append(_plain_text(result.message))
    return b"".join(pieces)


def _plain_text(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()[:32767]
    return _I16.pack(len(encoded)) + encoded


def _compact_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def _encode_flexible(
    version: int, topics: Sequence[TopicResult], endpoints: Sequence[Endpoint], throttle_ms: int
) -> bytes:
    pack = _V9.pack
    pieces = [uvarint(len(topics) + 1)]
    for key, results in topics:
        if version < TOPIC_IDS_FROM:
            pieces.append(uvarint(len(key) + 1))
        pieces += (key, uvarint(len(results) + 1))
        for result in results:
            if result.message is None and not result.record_errors and result.leader is None:
                pieces.append(
                    pack(
                        result.index,
                        result.error,
                        result.base_offset,
                        result.log_append_time_ms,
                        result.log_start_offset,
                        1,
                        0,
                    )
                )
            else:
                pieces.append(_flexible_error(version, result))
        pieces.append(b"\0")
    pieces += (_I32.pack(throttle_ms), node_endpoints(endpoints if version >= LEADERS_FROM else ()))
    return b"".join(pieces)


def _flexible_error(version: int, result: PartitionResult) -> bytes:
    pieces = [
        _V5.pack(
            result.index,
            result.error,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        ),
        uvarint(len(result.record_errors) + 1),
    ]
    for batch_index, message in result.record_errors:
        pieces += (_I32.pack(batch_index), _compact_text(message), b"\0")
    leader = result.leader if version >= LEADERS_FROM else None
    pieces += (_compact_text(result.message), current_leader(0, leader))
    return b"".join(pieces)
