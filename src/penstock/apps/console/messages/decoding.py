"""Decoding of keys and values: as documents that filters read, and as texts that pages show.

| format     | document                                                                       |
|------------|--------------------------------------------------------------------------------|
| `auto`     | JSON by the registry's schema if the value names one, else the bytes           |
| `registry` | JSON by the registry's schema; other values are null                           |
| `avro`     | JSON by the topic's schema file                                                |
| `protobuf` | JSON by the topic's schema file                                                |
| `json`     | the bytes                                                                      |
| `msgpack`  | JSON; other values are null                                                    |
| `text`     | the bytes                                                                      |
| `hex`      | two digits a byte                                                              |

With `auto`, pages show a value as JSON, text, MessagePack or hexadecimal digits, by its content.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.apps.console.messages.parameters import FORMATS
from penstock.client.schemas import SchemaClient
from penstock.client.value_texts import ValueTexts, row_texts
from penstock.formats.framing import KEY_HEADER, VALUE_HEADER, header_values
from penstock.formats.readers import Reader

_ID_HEADERS: Final = {"key": KEY_HEADER, "value": VALUE_HEADER}
_FRAME_BYTES_MIN: Final = 6
_CONTAINERS: Final = ("{", "[")
_HEX: Final = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], np.uint8)


class Shown(Struct, frozen=True, kw_only=True):
    """Key or value as a page shows it. `kind` names its format; `error` is why it has another."""

    kind: str
    text: str
    size_bytes: int
    is_json: bool = False
    error: str = ""


class Side(Struct, frozen=True, kw_only=True):
    """Format of keys or values; `reader` is that of a schema file."""

    format: str = "auto"
    reader: Reader | None = None


class Masks(Protocol):
    """Masks of records."""

    @property
    def sides(self) -> Collection[str]:
        """The parts with masked fields, of key and value."""

    def applied(self, batch: Any) -> Any:
        """Return records with masked columns. Blocks; call it in a thread."""


class Decoder:
    """Decoder of the keys and values of one topic; for one thread at a time.

    It decodes records that `masked` has returned. Masked keys and values are JSON or text, so their
    formats do not apply.
    """

    def __init__(
        self, key: Side, value: Side, schemas: SchemaClient | None, masks: Masks | None = None
    ) -> None:
        """`schemas` is the client of the registry; None without a registry."""
        self._masks = masks
        masked = () if masks is None else masks.sides
        sides = {"key": key, "value": value}
        self._sides = {name: Side() if name in masked else side for name, side in sides.items()}
        self._registered = {
            side: None if schemas is None or side in masked else ValueTexts(schemas, header)
            for side, header in _ID_HEADERS.items()
        }

    @classmethod
    def plain(cls) -> Decoder:
        """Return a decoder that shows bytes by their content."""
        return cls(Side(), Side(), None)

    def masked(self, batch: Any) -> Any:
        """Return records as the caller may see them; raises as `documents`."""
        return batch if self._masks is None else self._masks.applied(batch)

    def columns(self, roots: frozenset[str]) -> set[str]:
        """Return the further columns that are needed to mask and decode these parts of records."""
        if self._masks is not None:
            return {*_ID_HEADERS, "headers"}
        framed = any(
            side in roots and self._sides[side].format in ("auto", "registry")
            for side in self._sides
        )
        has_registry = self._registered["value"] is not None
        return {"headers"} if framed and has_registry else set()

    def documents(self, side: str, values: Any, headers: Any) -> Any:
        """Return keys or values as documents, in bytes; null if they cannot be decoded.

        Raises:
            PenstockError: the registry does not answer.
        """
        return self._decoded(side, values, headers)[0]

    def objects(self, side: str, values: Any, headers: Any) -> Any:
        """Return keys or values as `documents`, and MessagePack as JSON; raises as `documents`."""
        documents = self.documents(side, values, headers)
        packed = pc.greater_equal(pc.binary_slice(documents, 0, 1), b"\x80")
        if not pc.any(packed).as_py():
            return documents
        found = pc.if_else(packed, documents, pa.scalar(None, pa.binary()))
        unpacked = pa.array(map(_unpacked, found.to_pylist()), pa.binary())
        return pc.if_else(packed, unpacked, documents)

    def shown(self, side: str, values: Any, headers: Any) -> list[Shown]:
        """Return keys or values as they are shown; raises as `documents`."""
        documents, errors = self._decoded(side, values, headers)
        rows = zip(values.to_pylist(), documents.to_pylist(), errors.to_pylist(), strict=True)
        return [_shown(self._sides[side].format, *row) for row in rows]

    def _decoded(self, side: str, values: Any, headers: Any) -> tuple[Any, Any]:
        given, registered = self._sides[side], self._registered[side]
        good = pa.nulls(len(values), pa.string())
        if given.reader is not None:
            rows, errors = given.reader.read(values)
            return row_texts(rows).cast(pa.binary()), errors
        if given.format == "hex":
            return _hex(values), good
        if given.format == "msgpack":
            return pa.array(map(_unpacked, values.to_pylist()), pa.binary()), good
        if registered is None or given.format not in ("auto", "registry"):
            return values, good
        keeps = given.format == "auto"
        if keeps and not _framed(side, values, headers):
            return values, good
        texts, errors = registered.read(values, headers)
        documents = texts.cast(pa.binary())
        return pc.coalesce(documents, values) if keeps else documents, errors


def _framed(side: str, values: Any, headers: Any) -> bool:
    """Return whether a value names a schema, in its first bytes or in a header."""
    if headers is not None and header_values(headers, _ID_HEADERS[side]) is not None:
        return True
    named = values.filter(pc.starts_with(values, b"\0"))
    longest = pc.max(pc.binary_length(named)).as_py()
    return longest is not None and longest >= _FRAME_BYTES_MIN


def _shown(chosen: str, value: bytes | None, document: bytes | None, error: str | None) -> Shown:
    if value is None:
        return Shown(kind="null", text="null", size_bytes=0)
    if document is not None and chosen in ("avro", "protobuf", "registry", "msgpack"):
        return _document(FORMATS[chosen].partition(" ")[0], value, document)
    if chosen == "auto" and error is None and document is not None and document != value:
        return _document("Registry", value, document)
    if chosen == "auto":
        return _guessed(value)
    if chosen == "json" and _is_json(value):
        return _document("JSON", value, value)
    if chosen == "text":
        return Shown(kind="text", text=_text(value), size_bytes=len(value))
    wrong = "" if chosen == "hex" else error or f"the bytes are not {FORMATS[chosen]}"
    return Shown(kind="hex", text=value.hex(), size_bytes=len(value), error=wrong)


def _document(kind: str, value: bytes, document: bytes) -> Shown:
    return Shown(kind=kind, text=_text(document), size_bytes=len(value), is_json=True)


def _guessed(value: bytes) -> Shown:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        document = _unpacked(value) if value[0] >= 0x80 else None
        if document is not None and document[:1] in (b"{", b"["):
            return _document("MessagePack", value, document)
        return Shown(kind="hex", text=value.hex(), size_bytes=len(value))
    if text.lstrip().startswith(_CONTAINERS) and _is_json(value):
        return Shown(kind="JSON", text=text, size_bytes=len(value), is_json=True)
    if "\0" in text:
        return Shown(kind="hex", text=value.hex(), size_bytes=len(value))
    return Shown(kind="text", text=text, size_bytes=len(value))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _is_json(value: bytes) -> bool:
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return True


def pretty(text: str) -> str:
    """Return JSON with line breaks; other texts unchanged. Numbers keep their digits."""
    try:
        return msgspec.json.format(text.encode(), indent=2).decode()
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text


def _unpacked(value: bytes | None) -> bytes | None:
    """Return a MessagePack value as JSON; None for other bytes."""
    if not value:
        return None
    try:
        found = msgspec.msgpack.decode(value)
        return msgspec.json.encode(found, enc_hook=str)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None


def _hex(values: Any) -> Any:
    """Return the hexadecimal digits of each value, as bytes."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if data is None or not len(values):
        return values
    used = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    digits = _HEX[used].reshape(-1)
    places = ((bounds - bounds[0]).astype(np.int64) * 2).astype(np.int32)
    made = pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(places), pa.py_buffer(digits)], 0
    )
    return pc.if_else(values.is_valid(), made, pa.scalar(None, pa.binary()))
