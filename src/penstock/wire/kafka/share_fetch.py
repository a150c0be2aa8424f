"""Hand-written encoder of ShareFetch responses: lists of buffers, so that records are not copied.

    response   throttle i32, error i16, message string?, lock timeout i32, [topic [partition]],
               endpoints [id i32, host string, port i32, rack string?]
    partition  index i32, error i16, message string?, acknowledge error i16, message string?,
               leader id i32, leader epoch i32, records bytes, acquired [first i64, last i64,
               deliveries i16]

All lengths are compact, and all structs have tagged fields. Tests compare every byte with kio's
codec.

Source: `ShareFetchResponse.json`; KIP-932, KIP-951 (endpoints).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.wire.kafka.leader_hints import Endpoint, Leader, compact_text, endpoint_array
from penstock.wire.kafka.primitives import uvarint

Buffer = bytes | bytearray | memoryview

_HEAD: Final = struct.Struct(">ih")
_I32: Final = struct.Struct(">i")
_PARTITION: Final = struct.Struct(">ih")
_I16: Final = struct.Struct(">h")
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
    pending = [_HEAD.pack(0, 0), b"\0", _I32.pack(lock_timeout_ms), uvarint(len(topics) + 1)]
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
