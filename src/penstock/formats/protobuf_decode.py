"""Decoder of Protobuf's wire format: a kernel reads values by tables made from the message type.

    decoded, errors = decode(message, values)

`kernels/protobuf.py` describes the tables, and the rules for repeated fields. Unlike some
libraries, this decoder rejects groups among unknown fields, and varints of ten bytes with more than
64 bits.

Source: the Protocol Buffers guide "Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.formats.columns import Column
from penstock.formats.framing import PLACES, WORDS
from penstock.formats.leaves import Leaves
from penstock.formats.protobuf import Field, Message, Scalar, column_of_field, column_of_message
from penstock.formats.value_format import DEPTH_MAX
from penstock.formats.values import Values
from penstock.kernels import protobuf as kernel

_KINDS: Final = {
    "int32": kernel.SIGNED_32, "sfixed32": kernel.SIGNED_32, "enum": kernel.SIGNED_32,
    "float": kernel.SIGNED_32, "sint32": kernel.ZIGZAG_32,
    "uint32": kernel.UNSIGNED_32, "fixed32": kernel.UNSIGNED_32,
    "int64": kernel.SIGNED_64, "sfixed64": kernel.SIGNED_64, "double": kernel.SIGNED_64,
    "sint64": kernel.ZIGZAG_64, "uint64": kernel.UNSIGNED_64, "fixed64": kernel.UNSIGNED_64,
    "bool": kernel.BOOLEAN, "string": kernel.STRING, "bytes": kernel.BYTES,
}  # fmt: skip
_SPECIAL: Final = {"timestamp": kernel.TIMESTAMP, "duration": kernel.DURATION}
_WORDS: Final = {
    **dict(enumerate(WORDS)),
    kernel.NO_TAG: "a tag without a field number",
    kernel.GROUP: "has a group",
    kernel.WIRE_6: "has wire type 6, which does not exist",
    kernel.WIRE_7: "has wire type 7, which does not exist",
    kernel.NO_TEXT: "text is not UTF-8",
    kernel.AGAIN: "the message comes more than once",
    kernel.NO_TIMESTAMP: "does not fit a timestamp",
    kernel.NO_DURATION: "does not fit a duration",
    kernel.NO_NANOS: "has nanoseconds beyond one second, or with the wrong sign",
    kernel.FINER: 'has a finer fraction of a second than microseconds; decimals = "round" keeps'
    " the digits that fit",
}
_TABLES_MAX: Final = 64


def decode(
    message: Message, values: Values, *, exact: bool = True
) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode values to structs, and return an error text for each value that cannot be decoded.

    If `exact`, nanoseconds that microseconds cannot hold are an error; otherwise they are cut.

    Both arrays have one element per value, in order. For a null value both elements are null.
    """
    tables = _tables(message, exact)
    leaves = Leaves(root=tables.root, rows=len(values), size_bytes=values.size_bytes)
    messages = np.array(tables.messages, np.int64)
    fields = np.array(tables.fields, np.int64)
    seen, last = np.zeros((2, len(fields)), np.int64)
    frames = np.zeros((DEPTH_MAX + 2, kernel.FRAME_WIDTH), np.int64)
    row, full = 0, 0
    while row < len(values):
        row, full = kernel.read_protobuf(
            messages, fields, leaves.table, leaves.valid, leaves.words, leaves.octets,
            leaves.marks, seen, last, frames,
            values.data, values.starts, values.ends, values.problems, row,
        )  # fmt: skip
        if row < len(values):
            leaves.grow(full)
    return leaves.array(), values.texts(tables.words)


@dataclass(slots=True)
class _Tables:
    root: Column
    exact: bool
    messages: list[list[int]] = field(default_factory=list)
    fields: list[list[int]] = field(default_factory=list)
    groups: dict[tuple[int, str], int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    items: dict[int, tuple[str, str]] = field(default_factory=dict)

    def words(self, place: int, reason: int) -> str:
        return f"{self._place(place)}{_WORDS[reason]}"

    def _place(self, place: int) -> str:
        if place < len(PLACES):
            return PLACES[place]
        number = place - len(PLACES)
        if number < len(self.messages):
            return self.labels[number]
        number, item = divmod(number - len(self.messages), 2)
        return self.items[number][item]

    def add(self, message: Message, column: int, where: str) -> int:
        number, first = len(self.messages), len(self.fields)
        special = _SPECIAL.get(message.special or "", kernel.STRUCT)
        self.labels[number] = _label(where)
        self.messages.append([first, first + len(message.fields), column, special, -1, self.exact])
        self.fields += [[] for _ in message.fields]
        columns = {}
        column += 1
        for each in message.fields:
            columns[each.name] = column
            column += column_of_field(each).size
        ordered = sorted(message.fields, key=lambda each: each.number)
        for at, each in enumerate(ordered, first):
            inner = f"{where}.{each.name}" if where else each.name
            self.fields[at] = self._field(each, at, columns[each.name], number, inner)
        return number

    def _field(self, each: Field, at: int, column: int, message: int, where: str) -> list[int]:
        holds = each.holds
        within = where + ("{}" if each.is_map else "[]") if each.repeated else where
        self.items[at] = (_label(where), _label(within))
        target = column + 1 if each.repeated else column
        group = -1
        if each.oneof is not None:
            group = self.groups.setdefault((message, each.oneof), len(self.groups))
        flags = kernel.REPEATED * each.repeated + kernel.PRESENCE * each.presence
        if isinstance(holds, Scalar):
            flags += kernel.PACKABLE * (each.repeated and holds.packable)
            return [each.number, holds.wire, _KINDS[holds.kind], target, -1, group, flags]
        inner = self.add(holds, target, within)
        value = holds.fields[-1]
        if each.is_map and isinstance(value.holds, Message):
            first, behind = self.messages[inner][: kernel.BEHIND + 1]
            self.messages[inner][kernel.WHOLE] = next(
                number
                for number in range(first, behind)
                if self.fields[number][kernel.NUMBER] == value.number
            )
        return [each.number, holds.wire, 0, target, inner, group, flags]


def _label(where: str) -> str:
    return f"field {where}: " if where else ""


@lru_cache(_TABLES_MAX)
def _tables(message: Message, exact: bool) -> _Tables:
    tables = _Tables(column_of_message(message), exact)
    tables.add(message, 0, "")
    return tables
