"""Avro's binary encoding, vectorised over all values of a batch.

    decoded, errors = decode(schema, cursors)

A datum has no tags: the schema alone says what comes next, so that all values of a batch move
through it together, field by field (see `vectorised/cursor.py`). Where values part ways, in the
branches of a union, each branch moves its own cursors. The items of arrays and maps are found first
(`blocks.py`) and then read together, the items of all values as cursors of one batch.

A datum must end where its value does. A value that does not decode is null, and its error says
which field was wrong.

Source: the Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.formats.avro.blocks import find_branch, find_items
from penstock.formats.avro.schema import (
    Decimal,
    Enum,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Union,
)
from penstock.formats.vectorised import arrays
from penstock.formats.vectorised.cursor import Cursors, Longs

NULL: Final = Primitive(kind="null")
_INT_MAX: Final = 2**31 - 1
_MILLIS_MAX: Final = (2**63 - 1) // 1000
_PLAIN: Final = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": arrays.TIMESTAMP,
    "timestamp-micros": arrays.TIMESTAMP,
    "local-timestamp-millis": arrays.TIMESTAMP_NTZ,
    "local-timestamp-micros": arrays.TIMESTAMP_NTZ,
    "uuid": pa.string(),
}
_LONGS: Final = frozenset({Primitive(kind="int"), Primitive(kind="long")})
_DOUBLES: Final = frozenset({Primitive(kind="float"), Primitive(kind="double")})


def decode(schema: Record, cursors: Cursors) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode the values at the cursors, and say what is wrong with those that cannot be.

    Shapes: one struct of `arrow_type(schema)` and one error per value, in order; both are null
    where there is no value.
    """
    columns = [read(child, cursors, name) for name, child in schema.fields]
    cursors.fail(cursors.position != cursors.end, "bytes follow the value")
    names = [name for name, _ in schema.fields]
    made = arrays.structs(names, columns, cursors.problem != 0)
    return made, cursors.problems.texts(cursors.problem)


def arrow_type(node: Node) -> pa.DataType:
    """The type of the column that a schema becomes."""
    match node:
        case Primitive(kind=kind, logical=logical):
            return _PLAIN[kind] if logical is None else _LOGICAL[logical]
        case Fixed(logical=logical):
            return pa.binary() if logical is None else _LOGICAL[logical]
        case Decimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case Enum():
            return pa.string()
        case Items(item=item):
            return pa.list_(arrow_type(item))
        case Named(value=value):
            return pa.map_(pa.string(), arrow_type(value))
        case Record(fields=fields):
            return pa.struct([pa.field(name, arrow_type(child)) for name, child in fields])
        case Union():
            return _union_type(node)


def _union_type(node: Union) -> pa.DataType:
    valued = _valued(node)
    if len(valued) < 2:
        return arrow_type(valued[0]) if valued else pa.null()
    plain = _plain_union(valued)
    if plain is not None:
        return plain
    return pa.struct(
        [pa.field(f"member{number}", arrow_type(branch)) for number, branch in enumerate(valued)]
    )


def _valued(node: Union) -> list[Node]:
    return [branch for branch in node.branches if branch != NULL]


def _plain_union(valued: list[Node]) -> pa.DataType | None:
    """The one number type that holds all branches, as in Spark's own reader."""
    if _LONGS.issuperset(valued):
        return pa.int64()
    return pa.float64() if _DOUBLES.issuperset(valued) else None


def read(node: Node, cursors: Cursors, where: str) -> pa.Array:
    """One value per cursor, null or anything where the cursor has failed; moves the cursors."""
    label = f"field {where}: "
    match node:
        case Primitive():
            return _primitive(node, cursors, label)
        case Fixed(size_bytes=size, logical=logical):
            start = cursors.advance(size, label)
            if logical == "uuid":
                return arrays.uuids(cursors.octets, start)
            return arrays.binaries(cursors.octets, start, np.where(cursors.good, size, 0))
        case Decimal(size_bytes=size):
            start, length = cursors.sized(label) if size is None else _fixed(cursors, size, label)
            return arrays.decimals(cursors, start, length, node.precision, node.scale, label)
        case Enum(symbols=symbols):
            return arrays.choose(symbols, cursors.index(len(symbols), label, "no such symbol"))
        case Items(item=item):
            owner, items = find_items(cursors, (item,), where)
            values = read(item, items, f"{where}[]")
            cursors.inherit(owner, items)
            return arrays.lists(np.bincount(owner, minlength=len(cursors)), values)
        case Named(value=value):
            owner, items = find_items(cursors, (Primitive(kind="string"), value), where)
            keys = read(Primitive(kind="string"), items, f"{where}{{}}")
            values = read(value, items, f"{where}{{}}")
            cursors.inherit(owner, items)
            return arrays.maps(np.bincount(owner, minlength=len(cursors)), keys, values)
        case Record(fields=fields):
            columns = [read(child, cursors, f"{where}.{name}") for name, child in fields]
            return arrays.structs([name for name, _ in fields], columns)
        case Union():
            return _union(node, cursors, where)


def _fixed(cursors: Cursors, size: int, label: str) -> tuple[Longs, Longs]:
    start = cursors.advance(size, label)
    return start, np.where(cursors.good, size, 0)


def _primitive(node: Primitive, cursors: Cursors, label: str) -> pa.Array:
    match node.kind:
        case "null":
            return pa.nulls(len(cursors))
        case "boolean":
            flags = cursors.octets.data[cursors.advance(1, label)]
            cursors.fail(cursors.good & (flags > 1), f"{label}is not a boolean")
            return pa.array(flags == 1)
        case "int" | "long":
            return _whole(node, cursors, label)
        case "float":
            bits = cursors.octets.word(cursors.advance(4, label)).astype(np.uint32)
            return pa.array(bits.view(np.float32))
        case "double":
            return pa.array(cursors.octets.word(cursors.advance(8, label)).view(np.float64))
        case "bytes":
            return arrays.binaries(cursors.octets, *cursors.sized(label))
        case "string":
            return arrays.texts(cursors, *cursors.sized(label), label)


def _whole(node: Primitive, cursors: Cursors, label: str) -> pa.Array:
    value = cursors.zigzag(label)
    if node.kind == "int":
        cursors.fail((value > _INT_MAX) | (value < -_INT_MAX - 1), f"{label}does not fit an int")
        return arrays.as_type(value.astype(np.int32), arrow_type(node))
    if node.logical in ("timestamp-millis", "local-timestamp-millis"):
        far = (value > _MILLIS_MAX) | (value < -_MILLIS_MAX)
        cursors.fail(far, f"{label}does not fit a timestamp")
        value = np.where(cursors.good, value, 0) * 1000
    return arrays.as_type(value, arrow_type(node))


def _union(node: Union, cursors: Cursors, where: str) -> pa.Array:
    index = find_branch(node, cursors, f"field {where}: ")
    read_branches: list[tuple[Longs, pa.Array]] = []
    for number, branch in enumerate(node.branches):
        if branch == NULL:
            continue
        rows = np.flatnonzero(index == number)
        read_branches.append((rows, _branch(branch, cursors, rows, where)))
    if not read_branches:
        return pa.nulls(len(cursors))
    if len(read_branches) == 1:
        rows, values = read_branches[0]
        return arrays.spread(values, rows, len(cursors))
    return _joined(node, read_branches, len(cursors))


def _branch(branch: Node, cursors: Cursors, rows: Longs, where: str) -> pa.Array:
    if rows.size == len(cursors):
        return read(branch, cursors, where)
    part = cursors.at(rows)
    values = read(branch, part, where)
    cursors.put(rows, part)
    return values


def _joined(node: Union, branches: list[tuple[Longs, pa.Array]], count: int) -> pa.Array:
    """Several branches: one number column, or a struct with a field per branch."""
    plain = _plain_union(_valued(node))
    if plain is None:
        columns = [arrays.spread(values, rows, count) for rows, values in branches]
        missing = np.ones(count, np.bool_)
        for rows, _ in branches:
            missing[rows] = False
        return arrays.structs([f"member{n}" for n in range(len(columns))], columns, missing)
    made: Any = np.zeros(count, np.int64 if plain == pa.int64() else np.float64)
    missing = np.ones(count, np.bool_)
    for rows, values in branches:
        # By Arrow: NumPy warns of some floats that are no numbers when it widens them.
        made[rows] = values.cast(plain).to_numpy(zero_copy_only=False)
        missing[rows] = False
    return pa.array(made, mask=missing)
