"""Tagged fields by which an error names the partition's leader and its address.

    partition   tag 0 (Produce) or 1 (Fetch): leader id i32, leader epoch i32
                tag 0 (Fetch): an epoch i32, and its end offset i64 in a log that diverges there
                from the fetching one
    response    tag 0: [node id i32, host string, port i32, rack string or null]

Source: KIP-951, KIP-595; `ProduceResponse.json` (from version 10), `FetchResponse.json` (from
versions 16 and 12).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from penstock.wire.kafka.primitives import uvarint

Leader = tuple[int, int]
"""A broker's id, and the epoch in which it leads."""
Endpoint = tuple[int, str, int, str | None]

_LEADER: Final = struct.Struct(">BBBiix")
_DIVERGING: Final = struct.Struct(">BBBiqx")
_I32: Final = struct.Struct(">i")


def current_leader(tag: int, leader: Leader | None) -> bytes:
    """Return the section of tagged fields of a partition."""
    return b"\0" if leader is None else _LEADER.pack(1, tag, 9, *leader)


def diverging_epoch(parts: tuple[int, int]) -> bytes:
    """Return the section of tagged fields of a fetched partition whose log diverges."""
    return _DIVERGING.pack(1, 0, 13, *parts)


def node_endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the section of tagged fields of a response."""
    if not endpoints:
        return b"\0"
    field = endpoint_array(endpoints)
    return b"\1\0" + uvarint(len(field)) + field


def endpoint_array(endpoints: Sequence[Endpoint]) -> bytes:
    pieces = [uvarint(len(endpoints) + 1)]
    for node_id, host, port, rack in endpoints:
        pieces += (_I32.pack(node_id), compact_text(host), _I32.pack(port), compact_text(rack))
        pieces.append(b"\0")
    return b"".join(pieces)


def compact_text(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
