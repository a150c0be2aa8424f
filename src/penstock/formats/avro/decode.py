"""Avro's binary encoding, vectorised over all values of a batch.

    decoded, errors = decode(schema, lanes)

A datum has no tags: the schema alone says what comes next, so that all values of a batch move
through it together, field by field (see `vectorised/cursor.py`). Where values part ways, in the
branches of a union, each branch moves its own lanes. The items of arrays and maps are found first
(`blocks.py`) and then read together, the items of all values as lanes of one batch.

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
from penstock.formats.vectorised.cursor import Lanes, Longs

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


def decode(schema: Record, lanes: Lanes) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode the values that the lanes stand before, and say what is wrong with those that are not.

    Shapes: one struct of `arrow_type(schema)` and one error per value, in order; both are null
    where there is no value.
    """
    columns = [read(child, lanes, name) for name, child in schema.fields]
    lanes.fail(lanes.position != lanes.end, "bytes follow the value")
    names = [name for name, _ in schema.fields]
    made = arrays.structs(names, columns, lanes.problem != 0)
    return made, lanes.problems.texts(lanes.problem)


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


def read(node: Node, lanes: Lanes, where: str) -> pa.Array:
    """One value per lane, null or anything where the lane has failed; moves the lanes."""
    label = f"field {where}: "
    match node:
        case Primitive():
            return _primitive(node, lanes, label)
        case Fixed(size_bytes=size, logical=logical):
            start = lanes.advance(size, label)
            if logical == "uuid":
                return arrays.uuids(lanes.octets, start)
            return arrays.binaries(lanes.octets, start, np.where(lanes.good, size, 0))
        case Decimal(size_bytes=size):
            start, length = lanes.sized(label) if size is None else _fixed(lanes, size, label)
            return arrays.decimals(lanes, start, length, node.precision, node.scale, label)
        case Enum(symbols=symbols):
            return arrays.choose(symbols, lanes.index(len(symbols), label, "no such symbol"))
        case Items(item=item):
            owner, items = find_items(lanes, (item,), where)
            values = read(item, items, f"{where}[]")
            lanes.inherit(owner, items)
            return arrays.lists(np.bincount(owner, minlength=len(lanes)), values)
        case Named(value=value):
            owner, items = find_items(lanes, (Primitive(kind="string"), value), where)
            keys = read(Primitive(kind="string"), items, f"{where}{{}}")
            values = read(value, items, f"{where}{{}}")
            lanes.inherit(owner, items)
            return arrays.maps(np.bincount(owner, minlength=len(lanes)), keys, values)
        case Record(fields=fields):
            columns = [read(child, lanes, f"{where}.{name}") for name, child in fields]
            return arrays.structs([name for name, _ in fields], columns)
        case Union():
            return _union(node, lanes, where)


def _fixed(lanes: Lanes, size: int, label: str) -> tuple[Longs, Longs]:
    start = lanes.advance(size, label)
    return start, np.where(lanes.good, size, 0)


def _primitive(node: Primitive, lanes: Lanes, label: str) -> pa.Array:
    match node.kind:
        case "null":
            return pa.nulls(len(lanes))
        case "boolean":
            flags = lanes.octets.data[lanes.advance(1, label)]
            lanes.fail(lanes.good & (flags > 1), f"{label}is not a boolean")
            return pa.array(flags == 1)
        case "int" | "long":
            return _whole(node, lanes, label)
        case "float":
            bits = lanes.octets.word(lanes.advance(4, label)).astype(np.uint32)
            return pa.array(bits.view(np.float32))
        case "double":
            return pa.array(lanes.octets.word(lanes.advance(8, label)).view(np.float64))
        case "bytes":
            return arrays.binaries(lanes.octets, *lanes.sized(label))
        case "string":
            return arrays.texts(lanes, *lanes.sized(label), label)


def _whole(node: Primitive, lanes: Lanes, label: str) -> pa.Array:
    value = lanes.zigzag(label)
    if node.kind == "int":
        lanes.fail((value > _INT_MAX) | (value < -_INT_MAX - 1), f"{label}does not fit an int")
        return arrays.as_type(value.astype(np.int32), arrow_type(node))
    if node.logical in ("timestamp-millis", "local-timestamp-millis"):
        far = (value > _MILLIS_MAX) | (value < -_MILLIS_MAX)
        lanes.fail(far, f"{label}does not fit a timestamp")
        value = np.where(lanes.good, value, 0) * 1000
    return arrays.as_type(value, arrow_type(node))


def _union(node: Union, lanes: Lanes, where: str) -> pa.Array:
    index = find_branch(node, lanes, f"field {where}: ")
    read_branches: list[tuple[Longs, pa.Array]] = []
    for number, branch in enumerate(node.branches):
        if branch == NULL:
            continue
        rows = np.flatnonzero(index == number)
        read_branches.append((rows, _branch(branch, lanes, rows, where)))
    if not read_branches:
        return pa.nulls(len(lanes))
    if len(read_branches) == 1:
        rows, values = read_branches[0]
        return arrays.spread(values, rows, len(lanes))
    return _joined(node, read_branches, len(lanes))


def _branch(branch: Node, lanes: Lanes, rows: Longs, where: str) -> pa.Array:
    if rows.size == len(lanes):
        return read(branch, lanes, where)
    part = lanes.at(rows)
    values = read(branch, part, where)
    lanes.put(rows, part)
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
