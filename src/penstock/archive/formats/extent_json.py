"""Extents as JSON: what brokers and those who work for them from afar send each other.

    {"object_id": 7, "key": "wal/07/…", "kind": "wal", "position": 24, "size_bytes": 900,
     "base_offset": 10, "next_offset": 30, "max_timestamp": 1, "append_time_ms": -1,
     "layout": "<base64>"}

The fields are those of `Extent`; `position` is its byte offset.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any, ClassVar

from penstock.base.errors import InvalidError
from penstock.records.extents import Extent


class NoExtent(InvalidError):
    """JSON that is no extent."""

    code: ClassVar[str] = "invalid_request"


def extent_to_json(extent: Extent) -> dict[str, Any]:
    """An extent as JSON has it."""
    return {
        "object_id": extent.object_id,
        "key": extent.key,
        "kind": extent.kind,
        "position": extent.byte_offset,
        "size_bytes": extent.size_bytes,
        "base_offset": extent.base_offset,
        "next_offset": extent.next_offset,
        "max_timestamp": extent.max_timestamp,
        "append_time_ms": extent.append_time_ms,
        "layout": b64encode(extent.layout).decode("ascii"),
    }


def extent_from_json(item: Mapping[str, Any]) -> Extent:
    """What `extent_to_json` wrote.

    Raises:
        NoExtent: a field is missing or of another kind.
    """
    try:
        kind = item["kind"]
        if kind not in ("wal", "segment"):
            raise ValueError(f"kind {kind!r}")
        return Extent(
            object_id=int(item["object_id"]),
            key=str(item["key"]),
            kind=kind,
            byte_offset=int(item["position"]),
            size_bytes=int(item["size_bytes"]),
            base_offset=int(item["base_offset"]),
            next_offset=int(item["next_offset"]),
            max_timestamp=int(item["max_timestamp"]),
            append_time_ms=int(item["append_time_ms"]),
            layout=b64decode(item["layout"], validate=True),
        )
    except (KeyError, TypeError, ValueError, NotBase64) as error:
        raise NoExtent(f"an extent is not in the form expected: {error!r}") from None
