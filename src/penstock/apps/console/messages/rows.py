"""Records as pages and exports show them. Their content is data: it is never trusted as markup.

Control characters and marks that change the direction of text are replaced by visible signs, so
they cannot disturb a page or make a text look like another one. Exports have the original bytes.
"""

from __future__ import annotations

import base64
import re
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from penstock.apps.console import formats
from penstock.apps.console.messages.decoding import Decoder, Shown
from penstock.apps.console.messages.expressions import SIDES
from penstock.apps.console.messages.scanning import SCHEMA

PREVIEW_CHARS: Final = 240
"""Characters of a key or value in a list."""
SHOWN_CHARS: Final = 16_384
"""Characters of a key or value on a record's page; of all, at most `SHOWN_CHARS_MAX`."""
SHOWN_CHARS_MAX: Final = 1 << 20
HEX_BYTES: Final = 2048
"""Bytes of the hexadecimal view; of all, at most `HEX_BYTES_MAX`."""
HEX_BYTES_MAX: Final = 131_072
_HEX_LINE: Final = 16
_DIRECTIONS: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE: Final = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTIONS}\ufeff\ud800-\udfff]")
_SPACES: Final = re.compile(r"\s+")
_PRINTABLE: Final = bytes(byte if 0x20 <= byte < 0x7F else ord(".") for byte in range(256))


def visible(text: str) -> str:
    """Return a text with signs in place of invisible characters; line ends and tabs are kept."""
    return _INVISIBLE.sub(_sign, text.replace("\r\n", "\n"))


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\\u{code:04x}"


class Row(Struct, frozen=True, kw_only=True):
    """Record of a list. The beginnings of key and value are on one line; `size_bytes` is both.

    `time` and `size` are the texts that pages show.
    """

    partition: int
    offset: int
    timestamp: int
    time: str
    key: str
    key_kind: str
    value: str
    value_kind: str
    size_bytes: int
    size: str
    headers: int


class Record(Struct, frozen=True, kw_only=True):
    """Record of a page of its own."""

    partition: int
    offset: int
    timestamp: int
    key: Shown
    value: Shown
    headers: list[tuple[str, Shown]]
    key_bytes: bytes | None
    value_bytes: bytes | None
    header_items: list[dict[str, Any]]


def rows_of(table: Any, decoder: Decoder) -> list[Row]:
    """Return the rows of a table of records. Blocks; call it in a thread."""
    keys, values = _sides(table, decoder)
    parts = zip(
        *(table.column(name).to_pylist() for name in ("partition", "offset", "timestamp")),
        keys,
        values,
        pc.list_value_length(table.column("headers")).to_pylist(),
        strict=True,
    )
    return [
        Row(
            partition=partition,
            offset=offset,
            timestamp=timestamp,
            time=formats.moment(timestamp),
            key=_preview(key),
            key_kind=key.kind,
            value=_preview(value),
            value_kind=value.kind,
            size_bytes=key.size_bytes + value.size_bytes,
            size=formats.size(key.size_bytes + value.size_bytes),
            headers=headers,
        )
        for partition, offset, timestamp, key, value, headers in parts
    ]


def record_of(table: Any, decoder: Decoder) -> Record:
    """Return the only record of a table. Blocks; call it in a thread."""
    keys, values = _sides(table, decoder)
    row = table.to_pylist()[0]
    names, contents = ([item[part] for item in row["headers"]] for part in ("key", "value"))
    shown = Decoder.plain().shown("value", pa.array(contents, pa.binary()), None)
    return Record(
        partition=row["partition"],
        offset=row["offset"],
        timestamp=row["timestamp"],
        key=keys[0],
        value=values[0],
        headers=list(zip(names, shown, strict=True)),
        key_bytes=row["key"],
        value_bytes=row["value"],
        header_items=row["headers"],
    )


def _sides(table: Any, decoder: Decoder) -> tuple[list[Shown], list[Shown]]:
    headers = table.column("headers").combine_chunks()
    keys, values = (
        decoder.shown(side, table.column(side).combine_chunks(), headers) for side in SIDES
    )
    return keys, values


def _preview(shown: Shown) -> str:
    text = _SPACES.sub(" ", visible(shown.text[: 4 * PREVIEW_CHARS])).strip()
    if len(text) > PREVIEW_CHARS or len(shown.text) > 4 * PREVIEW_CHARS:
        return f"{text[:PREVIEW_CHARS]}…"
    return text


def hex_lines(content: bytes, count: int) -> str:
    """Return the first `count` bytes as lines of offset, hexadecimal digits and characters."""
    lines = []
    for at in range(0, min(len(content), count), _HEX_LINE):
        part = content[at : min(at + _HEX_LINE, count)]
        digits = part.hex(" ").ljust(3 * _HEX_LINE - 1)
        lines.append(f"{at:08x}  {digits}  {part.translate(_PRINTABLE).decode()}")
    return "\n".join(lines)


# Exports


def json_lines(table: Any, decoder: Decoder) -> bytes:
    """Return records as JSON Lines. Blocks; call it in a thread.

    `key` and `value` are JSON, texts, or null; for other bytes, `key_base64` and `value_base64`
    have them.
    """
    keys, values = _sides(table, decoder)
    lines = []
    for row, key, value in zip(table.to_pylist(), keys, values, strict=True):
        fields = {name: row[name] for name in ("partition", "offset", "timestamp")}
        fields |= _field("key", row["key"], key) | _field("value", row["value"], value)
        fields["headers"] = [
            {"key": item["key"], **_header_field(item["value"])} for item in row["headers"]
        ]
        lines.append(msgspec.json.encode(fields))
    lines.append(b"")
    return b"\n".join(lines)


def _field(name: str, content: bytes | None, shown: Shown) -> dict[str, Any]:
    if content is None:
        return {name: None}
    if shown.is_json:
        compact = msgspec.json.format(shown.text.encode(), indent=-1)
        return {name: msgspec.Raw(compact)}
    if shown.kind == "hex":
        return {f"{name}_base64": base64.b64encode(content).decode()}
    return {name: shown.text}


def _header_field(content: bytes | None) -> dict[str, Any]:
    try:
        return {"value": None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(content or b"").decode()}


class ParquetExport:
    """Writer of records as a Parquet file, whose bytes are taken piece by piece.

    The columns are those of `SCHEMA`, and `decoded` with the values as JSON or text.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._schema = SCHEMA.append(pa.field("decoded", pa.string()))
        self._sink = _Pieces()
        self._writer = pq.ParquetWriter(self._sink, self._schema, compression="zstd")

    def write(self, table: Any) -> bytes:
        """Add records; return the bytes that are ready. Blocks; call it in a thread."""
        values, headers = (table.column(name).combine_chunks() for name in ("value", "headers"))
        shown = self._decoder.shown("value", values, headers)
        texts = [None if item.kind in ("hex", "null") else item.text for item in shown]
        self._writer.write_table(table.append_column("decoded", pa.array(texts, pa.string())))
        return self._sink.take()

    def close(self) -> bytes:
        """Return the end of the file."""
        self._writer.close()
        return self._sink.take()


class _Pieces:
    """File that keeps what was written since the last `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        self._size += len(self._pieces[-1])
        return len(self._pieces[-1])

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing, because nothing is buffered."""

    def close(self) -> None:
        """Do nothing, because the pieces are in memory."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
