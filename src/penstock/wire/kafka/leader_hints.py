"""Tagged fields with which error responses name the leader of a partition and its address.

    partition   tag 0 (Produce) or 1 (Fetch): leader id i32, leader epoch i32
                tag 0 (Fetch): leader epoch i32, end offset i64: the point at which the log diverges
                from the client's
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
"""Broker id of a leader, and its leader epoch."""
Endpoint = tuple[int, str, int, str | None]

_LEADER: Final = struct.Struct(">BBBiix")
_DIVERGING: Final = struct.Struct(">BBBiqx")
_I32: Final = struct.Struct(">i")


def current_leader(tag: int, leader: Leader | None) -> bytes:
    """Return the tagged fields of a partition with its leader; without a leader there are none."""
    return b"\0" if leader is None else _LEADER.pack(1, tag, 9, *leader)


def diverging_epoch(parts: tuple[int, int]) -> bytes:
    """Return the tagged fields of a partition in a Fetch response whose log diverges at `parts`."""
    return _DIVERGING.pack(1, 0, 13, *parts)


def node_endpoints(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the tagged fields of a response with the addresses of leaders."""
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
