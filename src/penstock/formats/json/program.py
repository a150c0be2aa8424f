"""Tables of numbers that describe a shape to the kernels, and the arrays that kernels fill.

Each node of a shape has a column of flags and, unless it is an object, a column of words. All
columns are in two contiguous arrays, the arenas. A column's length depends on the *level* of its
node: level 0 counts the rows, and each list or map has a level that counts its items. When a level
is full, its columns are doubled, and the kernel reads the row again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.json.json_schema import ZONED, Items, Leaf, Named, Record, Shape
from penstock.formats.json.plain import HOLDS, Conversion
from penstock.formats.value_format import JSON_DEPTH_MAX
from penstock.kernels import json_layout as layout

Longs = npt.NDArray[np.int64]
KINDS: Final = {
    pa.string(): layout.TEXT, pa.bool_(): layout.BOOLEAN, pa.int8(): layout.INTEGER,
    pa.int16(): layout.INTEGER, pa.int32(): layout.INTEGER, pa.int64(): layout.INTEGER,
    pa.float64(): layout.DOUBLE, pa.float32(): layout.FLOAT,
    pa.timestamp("us", "UTC"): layout.TIMESTAMP, pa.timestamp("us"): layout.NTZ,
    pa.date32(): layout.DATE, pa.binary(): layout.TEXT, None: layout.ANY,
}  # fmt: skip
ITEMS_FIRST: Final = 1_024
MARKS_FIRST: Final = 1_024


def arrow_type(shape: Shape) -> pa.DataType:
    """Return the Arrow type of a shape; all of its parts are nullable.

    Binary values, and values of any type, are text, which Spark converts.
    """
    match shape:
        case Leaf():
            texts = (None, pa.binary())
            return pa.string() if shape.data_type in texts else shape.data_type
        case Record():
            return pa.struct([(part.name, arrow_type(part.shape)) for part in shape.fields])
        case Items():
            return pa.list_(arrow_type(shape.item))
        case Named():
            return pa.map_(pa.string(), arrow_type(shape.value))


def unsupported(shape: Shape, where: str = "") -> list[str]:
    """Return the parts of a shape that only Spark can read, each with its field and the reason."""
    match shape:
        case Leaf():
            return [f"field {where}: {reason}" for reason in _reasons(shape)]
        case Record():
            prefix = f"{where}." if where else ""
            return [
                reason
                for part in shape.fields
                for reason in unsupported(part.shape, f"{prefix}{part.name}")
            ]
        case Items():
            return unsupported(shape.item, f"{where}[]")
        case Named():
            return unsupported(shape.value, f"{where}{{}}")


def _reasons(leaf: Leaf) -> list[str]:
    if leaf.data_type is None:
        return ["any JSON, which becomes a variant"]
    found = []
    if leaf.data_type == pa.binary():
        found.append(f"type {leaf.data_type}")
    if leaf.collation not in (None, "UTF8_BINARY"):
        found.append(f"collation {leaf.collation}")
    if leaf.pattern not in (None, ZONED):
        found.append(f"times of the form {leaf.pattern}")
    return found + [
        f"keyword {check.keyword}" for check in leaf.checks if check.keyword not in HOLDS
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column in the arenas: its level, and the number of words of each value."""

    level: int
    width: int


@dataclass(slots=True)
class Program:
    """Tables that describe a record to the kernels; node 0 is the record itself."""

    conversion: Conversion
    nodes: list[list[int]] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    fields: list[list[int]] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=dict)
    columns: list[Column] = field(default_factory=list)
    names: bytearray = field(default_factory=bytearray)
    lists: list[int] = field(default_factory=lambda: [0])
    """Node of each level's list or map; level 0, which counts the rows, has none."""

    @classmethod
    def of(cls, record: Record, conversion: Conversion) -> Program:
        made = cls(conversion)
        made._add(record, 0)
        return made

    def _column(self, level: int, width: int) -> int:
        self.columns.append(Column(level=level, width=width))
        return len(self.columns) - 1

    def _add(self, shape: Shape, level: int) -> int:
        number = len(self.nodes)
        row = [0] * layout.NODE_WIDTH
        self.nodes.append(row)
        self.shapes.append(shape)
        row[layout.NULLABLE] = shape.nullable
        row[layout.LEVEL] = level
        width = 0 if isinstance(shape, Record) else 1
        match shape:
            case Leaf():
                width = self._leaf(shape, row)
            case Record():
                row[layout.WORDS] = row[layout.FLAGS] = self._column(level, 0)
                self._record(shape, row, number, level)
                return number
            case Items():
                row[layout.KIND] = layout.LIST
                self._list(shape.item, row, number)
            case Named():
                row[layout.KIND] = layout.MAP
                level_inside = self._list(shape.value, row, number)
                key = self._column(level_inside, 1)
                row[layout.KEY_WORDS] = row[layout.KEY_FLAGS] = key
        row[layout.WORDS] = row[layout.FLAGS] = self._column(level, width)
        return number

    def _record(self, record: Record, row: list[int], number: int, level: int) -> None:
        row[layout.KIND] = layout.RECORD
        row[layout.CLOSED] = record.closed
        row[layout.REQUIRED_COUNT] = sum(part.required for part in record.fields)
        parts = [self._add(part.shape, level) for part in record.fields]
        self.children[number] = parts
        row[layout.FIELDS] = len(self.fields)
        row[layout.FIELD_COUNT] = len(parts)
        for part, node in zip(record.fields, parts, strict=True):
            name = part.name.encode()
            self.fields.append([len(self.names), len(name), node, part.required, 0])
            self.names += name

    def _list(self, item: Shape, row: list[int], number: int) -> int:
        level = len(self.lists)
        self.lists.append(number)
        row[layout.ITEM_LEVEL] = level
        row[layout.ITEM] = self._add(item, level)
        self.children[number] = [row[layout.ITEM]]
        return level

    def _leaf(self, leaf: Leaf, row: list[int]) -> int:
        made: Any = leaf.data_type
        row[layout.EXACT] = self.conversion.exact
        if made is None:
            row[layout.KIND] = layout.ANY
            return 1
        if pa.types.is_decimal(made):
            bound = 10**made.precision
            row[layout.KIND] = layout.DECIMAL
            row[layout.SCALE] = made.scale
            row[layout.BOUND_HIGH], row[layout.BOUND_LOW] = bound >> 64, _signed(bound & 2**64 - 1)
            row[layout.TEXT_TOO] = leaf.text_too
            return 2
        row[layout.KIND] = KINDS[made]
        if pa.types.is_integer(made):
            high = 2 ** (made.bit_width - 1) - 1
            row[layout.LOW], row[layout.HIGH] = -high - 1, high
        if pa.types.is_timestamp(made):
            row[layout.ZONE] = (
                layout.ZONE_UTC if self.conversion.zone == "UTC" else layout.ZONE_NAMED
            )
            if leaf.pattern is not None:
                row[layout.ZONE] = layout.ZONE_NEEDED
        return 1


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


def _table(rows: list[list[int]], width: int) -> Longs:
    return np.array(rows, np.int64).reshape(len(rows), width)


class Arenas:
    """Arguments of a kernel besides the values: tables of the program, and memory to write to."""

    def __init__(self, program: Program, rows: int, heap_bytes: int) -> None:
        self.program = program
        self.nodes = _table(program.nodes, layout.NODE_WIDTH)
        self._columns_of = self.nodes[:, [layout.WORDS, layout.FLAGS, layout.KEY_WORDS]].copy()
        self.fields = _table(program.fields, layout.FIELD_WIDTH)
        self.names = np.frombuffer(bytes(program.names), np.uint8)
        self.levels = np.zeros((len(program.lists), layout.LEVEL_WIDTH), np.int64)
        self.levels[:, layout.CAPACITY] = ITEMS_FIRST
        self.levels[0, layout.COUNT] = self.levels[0, layout.CAPACITY] = rows
        self.stack = np.zeros((JSON_DEPTH_MAX, layout.STACK_WIDTH), np.int64)
        self.noted = np.zeros((layout.NAMES_MAX, layout.NAME_WIDTH), np.int64)
        self.marks = np.zeros((MARKS_FIRST, layout.MARK_WIDTH), np.int64)
        self.heap = np.empty(heap_bytes, np.uint8)
        self.state = np.zeros(layout.STATE_SIZE, np.int64)
        self.words = np.zeros(0, np.int64)
        self.flags = np.zeros(0, np.uint8)
        self.columns = np.zeros((len(program.columns), 4), np.int64)
        self._lay_out()

    def _lay_out(self) -> None:
        level = np.array([column.level for column in self.program.columns])
        width = np.array([column.width for column in self.program.columns])
        room = self.levels[level, layout.CAPACITY]
        ends = np.cumsum(room * width), np.cumsum(room)
        columns = np.stack([level, ends[0] - room * width, ends[1] - room, width], axis=1)
        words, flags = np.zeros(ends[0][-1], np.int64), np.zeros(ends[1][-1], np.uint8)
        if self.words.size or self.flags.size:
            self._move(columns, words, flags)
        self.columns, self.words, self.flags = columns, words, flags
        numbers = self._columns_of
        self.nodes[:, layout.WORDS] = columns[numbers[:, 0], 1]
        self.nodes[:, layout.FLAGS] = columns[numbers[:, 1], 2]
        maps = self.nodes[:, layout.KIND] == layout.MAP
        self.nodes[maps, layout.KEY_WORDS] = columns[numbers[maps, 2], 1]
        self.nodes[maps, layout.KEY_FLAGS] = columns[numbers[maps, 2], 2]

    def _move(self, columns: Longs, words: Longs, flags: npt.NDArray[np.uint8]) -> None:
        for (level, word, flag, width), (_, new_word, new_flag, _) in zip(
            self.columns.tolist(), columns.tolist(), strict=True
        ):
            count = int(self.levels[level, layout.COUNT])
            words[new_word : new_word + count * width] = self.words[word : word + count * width]
            flags[new_flag : new_flag + count] = self.flags[flag : flag + count]
            # Marks have positions of words, which have moved.
            at = self.marks[: self.state[layout.MARKS], layout.MARK_WORD]
            moved = (at >= word) & (at < word + count * width)
            at[moved] += _OFFSET + new_word - word
        at[at >= _OFFSET] -= _OFFSET

    def grow(self) -> None:
        """Double the level, or the array of marks, that the kernel reported as full."""
        level = int(self.state[layout.LACKING])
        if level < 0:
            self.marks = np.concatenate([self.marks, np.zeros_like(self.marks)])
            return
        self.levels[level, layout.CAPACITY] *= 2
        self._lay_out()

    def words_of(self, column: int) -> Any:
        level, start, _, width = self.columns[column].tolist()
        return self.words[start : start + width * int(self.levels[level, layout.COUNT])]

    def flags_of(self, column: int) -> Any:
        level, _, start, _ = self.columns[column].tolist()
        return self.flags[start : start + int(self.levels[level, layout.COUNT])]

    def column_of(self, node: int) -> int:
        return int(self._columns_of[node, 0])

    def key_column_of(self, node: int) -> int:
        return int(self._columns_of[node, 2])


_OFFSET: Final = 1 << 48
"""Added to positions that have moved already, so that they do not move twice."""
