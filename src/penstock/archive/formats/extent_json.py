"""Extents as JSON, for exchange between brokers and remote workers.

    {"object_id": 7, "key": "wal/07/…", "kind": "wal", "position": 24, "size_bytes": 900,
     "base_offset": 10, "next_offset": 30, "max_timestamp": 1, "append_time_ms": -1,
     "layout": "<base64>"}

The fields are those of `Extent`; `position` is its byte offset.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from penstock.base.errors import InvalidError
from penstock.base.settings import LONG_MAX
from penstock.records.extents import Extent

Long = Annotated[int, msgspec.Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
"""Signed integer of 64 bits."""


class _Extent(msgspec.Struct):
    """Fields of `Extent` in the same order, for validation of the JSON."""

    object_id: Long
    key: str
    kind: Literal["wal", "segment"]
    position: Long
    size_bytes: Long
    base_offset: Long
    next_offset: Long
    max_timestamp: Long
    append_time_ms: Long
    layout: bytes


class NoExtent(InvalidError):
    """JSON that is not a valid extent."""

    code: ClassVar[str] = "invalid_request"


def extent_to_json(extent: Extent) -> dict[str, Any]:
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
    """Decode the result of `extent_to_json`.

    Raises:
        NoExtent: the JSON is not a valid extent.
    """
    try:
        found = msgspec.convert(item, _Extent)
    except (msgspec.ValidationError, ValueError) as error:
        raise NoExtent(f"invalid extent in JSON: {error}") from None
    return Extent(*msgspec.structs.astuple(found))
