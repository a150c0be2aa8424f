"""How records are printed: kcat's format strings and JSON envelope.

    %t topic   %p partition   %o offset   %k key   %s value   %h headers   %T timestamp (ms)
    %K key bytes   %S value bytes   %% percent   \\n \\r \\t \\0 \\xNN escapes

A format is compiled once into literals and columns; a batch is then printed by joining columns,
so the cost is that of making Python bytes of the columns that the format names.

Source: kcat's `format.c`, `json.c` and its manual page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

DEFAULT_FORMAT: Final = "%s\\n"
_LETTERS: Final = "tpoksKShT"
_ESCAPE = re.compile(r"\\(n|r|t|0|\\|x[0-9a-fA-F]{2})")
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_COLUMNS: Final = {
    "t": (),
    "p": ("partition",),
    "o": ("offset",),
    "k": ("key",),
    "K": ("key",),
    "s": ("value",),
    "S": ("value",),
    "h": ("headers",),
    "T": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class Format:
    """A compiled format: literal bytes, and letters that stand for fields."""

    parts: tuple[bytes | str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that must be read to print it."""
        names = {name for part in self.parts if isinstance(part, str) for name in _COLUMNS[part]}
        return tuple(sorted(names)) or ("offset",)


def parse_format(text: str) -> Format:
    """Compile a format string.

    Raises:
        click.UsageError: a letter that means nothing, or a percent sign at the end.
    """
    parts: list[bytes | str] = []
    for index, piece in enumerate(re.split(r"(%.|%$)", text, flags=re.DOTALL)):
        if index % 2 == 0:
            if piece:
                parts.append(_unescape(piece))
        elif piece == "%%":
            parts.append(b"%")
        elif len(piece) == 2 and piece[1] in _LETTERS:
            parts.append(piece[1])
        else:
            raise click.UsageError(f"format {text!r}: {piece!r} means nothing; known: %{_LETTERS}")
    return Format(tuple(parts))


def _unescape(text: str) -> bytes:
    pieces: list[bytes] = []
    for index, piece in enumerate(_ESCAPE.split(text)):
        if index % 2 == 0:
            pieces.append(piece.encode())
        elif piece[0] == "x":
            pieces.append(bytes([int(piece[1:], 16)]))
        else:
            pieces.append(_ESCAPES[piece])
    return b"".join(pieces)


def render(batch: Any, layout: Format, topic: str) -> bytes:
    """All records of a batch as the format has them."""
    fields: list[Sequence[bytes]] = []
    for part in layout.parts:
        if isinstance(part, bytes):
            fields.append([part] * batch.num_rows)
        else:
            fields.append(_FIELDS[part](batch, topic))
    if len(fields) == 1:
        return b"".join(fields[0])
    return b"".join([piece for row in zip(*fields, strict=True) for piece in row])


def _texts(name: str) -> Callable[[Any, str], Sequence[bytes]]:
    def read(batch: Any, topic: str) -> Sequence[bytes]:
        return [str(value).encode() for value in batch.column(name).to_pylist()]

    return read


def _bytes(name: str) -> Callable[[Any, str], Sequence[bytes]]:
    def read(batch: Any, topic: str) -> Sequence[bytes]:
        values: list[bytes | None] = batch.column(name).to_pylist()
        return [b"" if value is None else value for value in values]

    return read


def _sizes(name: str) -> Callable[[Any, str], Sequence[bytes]]:
    def read(batch: Any, topic: str) -> Sequence[bytes]:
        values: list[bytes | None] = batch.column(name).to_pylist()
        return [b"-1" if value is None else str(len(value)).encode() for value in values]

    return read


def _headers(batch: Any, topic: str) -> Sequence[bytes]:
    return [
        b",".join(
            header["key"].encode()
            + b"="
            + (b"NULL" if header["value"] is None else bytes(header["value"]))
            for header in headers or ()
        )
        for headers in batch.column("headers").to_pylist()
    ]


_FIELDS: Final[dict[str, Callable[[Any, str], Sequence[bytes]]]] = {
    "t": lambda batch, topic: [topic.encode()] * batch.num_rows,
    "p": _texts("partition"),
    "o": _texts("offset"),
    "T": _texts("timestamp"),
    "k": _bytes("key"),
    "s": _bytes("value"),
    "K": _sizes("key"),
    "S": _sizes("value"),
    "h": _headers,
}

JSON_COLUMNS: Final = (
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)


def render_json(batch: Any, topic: str, leaders: Mapping[int, int]) -> Iterator[str]:
    """Each record as kcat's envelope, one object a line; `broker` is its partition's leader.

    Bytes that are not UTF-8 have U+FFFD in place of what cannot be read.
    """
    types = {0: "create", 1: "logappend"}
    columns = {name: batch.column(name).to_pylist() for name in JSON_COLUMNS}
    for row in zip(*columns.values(), strict=True):
        record = dict(zip(columns, row, strict=True))
        envelope: dict[str, object] = {
            "topic": topic,
            "partition": record["partition"],
            "offset": record["offset"],
            "tstype": types.get(record["timestamp_type"], "unknown"),
            "ts": record["timestamp"],
            "broker": leaders.get(record["partition"], -1),
        }
        if record["headers"]:
            pairs = ((h["key"], _text(h["value"])) for h in record["headers"])
            envelope["headers"] = [word for pair in pairs for word in pair]
        envelope["key"] = _text(record["key"])
        envelope["payload"] = _text(record["value"])
        yield json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
