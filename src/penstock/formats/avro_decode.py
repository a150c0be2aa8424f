"""Decoder of Avro's binary encoding: a kernel runs a program, made from the schema, on each value.

    decoded, errors = decode(schema, values)

An Avro datum must fill its value, so bytes after it are an error. A value that cannot be decoded
becomes null, and its error names the field. `kernels/avro.py` describes the steps of a program.

Source: the Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.formats.avro import (
    NULL,
    Decimal,
    Enum,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    column_of_schema,
    plain_union,
    size_min,
    valued,
)
from penstock.formats.columns import Column
from penstock.formats.framing import PLACES, WORDS
from penstock.formats.leaves import Leaves
from penstock.formats.values import Values
from penstock.kernels import avro as kernel

_OPERATIONS: Final = {
    "null": kernel.NOTHING, "boolean": kernel.BOOLEAN, "int": kernel.INT, "long": kernel.LONG,
    "float": kernel.FLOAT, "double": kernel.DOUBLE, "bytes": kernel.BYTES, "string": kernel.STRING,
    "date": kernel.INT, "timestamp-millis": kernel.MILLIS, "timestamp-micros": kernel.LONG,
    "local-timestamp-millis": kernel.MILLIS, "local-timestamp-micros": kernel.LONG,
}  # fmt: skip
_STRING: Final = Primitive(kind="string")
_PROGRAMS_MAX: Final = 64
_WORDS: Final = {
    **dict(enumerate(WORDS)),
    kernel.NO_BOOLEAN: "is not a boolean",
    kernel.NO_INT: "does not fit an int",
    kernel.NO_TIMESTAMP: "does not fit a timestamp",
    kernel.NO_SYMBOL: "no such symbol",
    kernel.NO_BRANCH: "no such branch of the union",
    kernel.BELOW_ZERO: "a length below zero",
    kernel.NO_TEXT: "text is not UTF-8",
    kernel.NO_DECIMAL: "has more digits than ",
    kernel.EMPTY: "is a decimal without bytes",
    kernel.FOLLOWS: "bytes follow the value",
}


def decode(schema: Record, values: Values) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode values to structs, and return an error text for each value that cannot be decoded.

    Both arrays have one element per value, in order. For a null value both elements are null.
    """
    program = _program(schema)
    leaves = Leaves(root=program.root, rows=len(values), size_bytes=values.size_bytes)
    left = np.zeros(kernel.NESTING_MAX, np.int64)
    steps = np.array(program.steps, np.int64)
    row, full = 0, 0
    while row < len(values):
        row, full = kernel.read_avro(
            steps, leaves.table, leaves.valid, leaves.words, leaves.octets, leaves.marks,
            values.data, values.starts, values.ends, values.problems, row, left,
        )  # fmt: skip
        if row < len(values):
            leaves.grow(full)
    return leaves.array(), values.texts(program.words)


@dataclass(slots=True)
class _Program:
    root: Column
    steps: list[tuple[int, ...]] = field(default_factory=list)
    labels: list[str] = field(default_factory=lambda: list(PLACES))
    decimals: dict[int, str] = field(default_factory=dict)
    """Type of each decimal, by the number of its step."""

    def words(self, place: int, reason: int) -> str:
        more = self.decimals[place] if reason == kernel.NO_DECIMAL else ""
        return f"{self.labels[place]}{_WORDS[reason]}{more}"

    def add(self, where: str, operation: int, column: int, *more: int) -> int:
        self.steps.append((operation, column, *more, *[0] * (kernel.STEP_WIDTH - 2 - len(more))))
        self.labels.append(f"field {where}: " if where else "")
        return len(self.steps) - 1

    def jump(self, step: int, column: int) -> None:
        self.add("", kernel.JUMP, column, step)

    def go_on(self, step: int) -> None:
        """Set the target of an earlier jump to the step that is added next."""
        operation, column, _, *more = self.steps[step]
        self.steps[step] = (operation, column, len(self.steps), *more)

    def read(self, node: Node, column: int, where: str) -> int:
        """Add the steps that read a value into a column; return the number of the next column."""
        match node:
            case Primitive(kind=kind, logical=logical):
                self.add(where, _OPERATIONS[logical or kind], column)
            case Fixed(size_bytes=size, logical=logical):
                self.add(where, kernel.BYTES if logical is None else kernel.UUID, column, size)
            case Decimal(precision=precision, scale=scale, size_bytes=size):
                self.decimals[len(self.labels)] = f"decimal({precision},{scale})"
                bound = np.array(divmod(10**precision, 2**64), np.uint64).view(np.int64)
                high, low = bound.tolist()
                self.add(where, kernel.DECIMAL, column, size or 0, low, high)
            case Enum(symbols=symbols):
                self.add(where, kernel.ENUM, column, len(symbols))
            case Items(item=item):
                return self._items((item,), column, where, f"{where}[]")
            case Named(value=value):
                return self._items((_STRING, value), column, where, f"{where}{{}}")
            case Record(fields=fields):
                return self._record(fields, column, where)
            case Union():
                return self._union(node, column, where)
        return column + 1

    def _record(self, fields: tuple[tuple[str, Node], ...], column: int, where: str) -> int:
        self.add("", kernel.STRUCT, column)
        behind = column + 1
        for name, child in fields:
            behind = self.read(child, behind, f"{where}.{name}" if where else name)
        return behind

    def _items(self, parts: tuple[Node, ...], column: int, where: str, within: str) -> int:
        self.add("", kernel.LIST, column)
        size = max(1, sum(map(size_min, parts)))
        block = self.add(where, kernel.BLOCK, column + 1, 0, size)
        behind = column + 1
        if len(parts) > 1:
            self.add("", kernel.STRUCT, behind)
            behind += 1
        for part in parts:
            behind = self.read(part, behind, within)
        self.jump(block, 0)
        self.go_on(block)
        return behind

    def _union(self, node: Union, column: int, where: str) -> int:
        self.add(where, kernel.BRANCH, column, len(node.branches))
        jumps = [self.add("", kernel.JUMP, 0) for _ in node.branches]
        ends = []
        behind = column + 1
        for number, branch in enumerate(node.branches):
            self.go_on(jumps[number])
            if branch == NULL:
                self.add("", kernel.NOTHING, column)
            else:
                behind = self._member(node, number, column, where)
            ends.append(self.add("", kernel.JUMP, 0))
        for end in ends:
            self.go_on(end)
        return behind

    def _member(self, node: Union, number: int, column: int, where: str) -> int:
        """Add the steps of a union's branch; return the number of the column after the union.

        A union of several types is a struct with a member per branch. The members of the other
        branches become null.
        """
        branch, branches = node.branches[number], valued(node)
        if len(branches) == 1:
            return self.read(branch, column, where)
        if plain_union(branches) is not None:
            if branch == Primitive(kind="float"):
                self.add(where, kernel.WIDE_FLOAT, column)
                return column + 1
            return self.read(branch, column, where)
        self.add("", kernel.STRUCT, column)
        behind = column + 1
        for other, member in enumerate(node.branches):
            if member == NULL:
                continue
            if other == number:
                behind = self.read(member, behind, where)
            else:
                self.add("", kernel.NOTHING, behind)
                behind += column_of_schema(member).size
        return behind


@lru_cache(_PROGRAMS_MAX)
def _program(schema: Record) -> _Program:
    program = _Program(column_of_schema(schema))
    program.read(schema, 0, "")
    program.add("", kernel.END, 0)
    return program
