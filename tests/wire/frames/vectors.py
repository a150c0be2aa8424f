"""The protocol's test vectors as the codec's objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.wire.frames import FrameType, Header

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "host-protocol"
FORMATS = ("OPAQUE", "RECORD_BATCH")


def load(name: str) -> dict[str, Any]:
    """Vectors of one file."""
    loaded: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return loaded


def _value(name: str, value: Any) -> Any:
    if name == "type":
        return FrameType.Value(value)
    if name == "format":
        return FORMATS.index(value)
    if name in ("lengths", "offsets", "event_counts"):
        return bytes.fromhex(value)
    if name == "ranges":
        return [int(number) for number in value]
    texts = ("topic", "reason", "client_name")
    return int(value) if isinstance(value, str) and name not in texts else value


def header_of(fields: Mapping[str, Any]) -> Header:
    """The header that a vector describes."""
    return Header(**{name: _value(name, value) for name, value in fields.items()})


def fields_of(header: Header) -> Header:
    """A header without what a later version added to it."""
    known = Header()
    known.CopyFrom(header)
    known.DiscardUnknownFields()
    return known


FRAMES = load("frames.json")
REFUSED = load("refused.json")
CONVERSATIONS = load("conversations.json")
FRAME_BYTES_MAX: int = FRAMES["frame_bytes_max"]
