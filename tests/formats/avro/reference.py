"""A second, plain way to write Avro: one value at a time, as the specification reads."""

from __future__ import annotations

import struct
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st

EPOCH = datetime(1970, 1, 1)
WIDE = Context(prec=60)


def long(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(content: bytes) -> bytes:
    return long(len(content)) + content


def unscaled(value: Decimal, scale: int) -> int:
    return int(value.scaleb(scale, WIDE))


def blocks(items: list[bytes], how: int) -> bytes:
    """Items in blocks of `how` of them; odd blocks say their size in bytes."""
    out = b""
    for number, first in enumerate(range(0, len(items), how)):
        block = items[first : first + how]
        content = b"".join(block)
        head = long(len(block)) if number % 2 == 0 else long(-len(block)) + long(len(content))
        out += head + content
    return out + long(0)


def micros(value: datetime) -> int:
    return (value.replace(tzinfo=None) - EPOCH) // timedelta(microseconds=1)


def encode(schema: Any, value: Any, how: int = 2) -> bytes:  # noqa: C901  (one case per type)
    if isinstance(schema, list):
        number, inner = value
        return long(number) + encode(schema[number], inner, how)
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    match (kind, logical):
        case ("null", _):
            return b""
        case ("boolean", _):
            return b"\x01" if value else b"\x00"
        case ("int", "date"):
            return long((value - date(1970, 1, 1)).days)
        case ("long", "timestamp-millis"):
            return long(micros(value) // 1000)
        case ("long", "timestamp-micros" | "local-timestamp-micros"):
            return long(micros(value))
        case ("int" | "long", _):
            return long(value)
        case ("float", _):
            return struct.pack("<f", value)
        case ("double", _):
            return struct.pack("<d", value)
        case ("bytes", "decimal"):
            number = unscaled(value, schema["scale"])
            size = max(1, (number.bit_length() + 8) // 8)
            return sized(number.to_bytes(size, "big", signed=True))
        case ("fixed", "decimal"):
            return unscaled(value, schema["scale"]).to_bytes(schema["size"], "big", signed=True)
        case ("fixed", "uuid"):
            return uuid.UUID(value).bytes
        case ("bytes", _):
            return sized(value)
        case ("string", _):
            return sized(value.encode())
        case ("enum", _):
            return long(schema["symbols"].index(value))
        case ("fixed", _):
            return bytes(value)
        case ("array", _):
            return blocks([encode(schema["items"], item, how) for item in value], how)
        case ("map", _):
            entries = [
                sized(key.encode()) + encode(schema["values"], item, how) for key, item in value
            ]
            return blocks(entries, how)
        case ("record", _):
            return b"".join(encode(f["type"], value[f["name"]], how) for f in schema["fields"])
    raise ValueError(kind)


def expected(schema: Any, value: Any) -> Any:  # noqa: C901  (one case per type)
    """Return a value as Arrow's `to_pylist` does."""
    if isinstance(schema, list):
        number, inner = value
        valued = [branch for branch in schema if branch != "null"]
        if schema[number] == "null":
            return None
        made = expected(schema[number], inner)
        if len(valued) == 1 or set(valued) <= {"int", "long"}:
            return made
        if all(branch in ("float", "double") for branch in valued):
            return made
        chosen = valued.index(schema[number])
        return {f"member{n}": made if n == chosen else None for n in range(len(valued))}
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    match (kind, logical):
        case ("float", _):
            return struct.unpack("<f", struct.pack("<f", value))[0]
        case ("long", "timestamp-millis"):
            whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
            return whole.replace(tzinfo=UTC)
        case ("long", "timestamp-micros"):
            return value.replace(tzinfo=UTC)
        case ("array", _):
            return [expected(schema["items"], item) for item in value]
        case ("map", _):
            last = dict(value)
            order = sorted(
                last, key=lambda key: max(n for n, (k, _) in enumerate(value) if k == key)
            )
            return [(key, expected(schema["values"], last[key])) for key in order]
        case ("record", _):
            return {f["name"]: expected(f["type"], value[f["name"]]) for f in schema["fields"]}
    return value


TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLOATS = st.floats(allow_nan=False, width=32)
TIMES = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    return st.integers(-bound, bound).map(lambda number: Decimal(number).scaleb(-scale, WIDE))


def simple() -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """A schema without parts, and a strategy of its values."""
    return st.sampled_from(
        [
            ("boolean", st.booleans()),
            ("int", st.integers(-(2**31), 2**31 - 1)),
            ("long", st.integers(-(2**63), 2**63 - 1)),
            ("long", st.integers(-100, 100)),
            ("float", FLOATS),
            ("double", st.floats(allow_nan=False)),
            ("bytes", st.binary(max_size=20)),
            ("string", TEXT),
            ({"type": "int", "logicalType": "date"}, st.dates(date(1, 1, 1), date(9999, 1, 1))),
            ({"type": "long", "logicalType": "timestamp-millis"}, TIMES),
            ({"type": "long", "logicalType": "timestamp-micros"}, TIMES),
            ({"type": "long", "logicalType": "local-timestamp-micros"}, TIMES),
            (
                {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
                decimals(38, 9),
            ),
            (
                {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
                decimals(9, 2),
            ),
        ]
    )


@st.composite
def named(draw: Any, numbers: Any) -> Any:
    name = f"N{next(numbers)}"
    return draw(
        st.sampled_from(
            [
                ({"type": "enum", "name": name, "symbols": ["A", "B", "C"]},
                 st.sampled_from(["A", "B", "C"])),
                ({"type": "fixed", "name": name, "size": 5}, st.binary(min_size=5, max_size=5)),
                ({"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"},
                 st.uuids().map(str)),
                ({"type": "fixed", "name": name, "size": 12, "logicalType": "decimal",
                  "precision": 20, "scale": 4}, decimals(20, 4)),
            ]
        )
    )  # fmt: skip


@st.composite
def schemas(draw: Any, numbers: Any, depth: int = 2) -> Any:
    """A schema and a strategy of its values."""
    kinds = ["simple", "simple", "named", "nullable"]
    if depth:
        kinds += ["array", "map", "record", "union"]
    match draw(st.sampled_from(kinds)):
        case "simple":
            return draw(simple())
        case "named":
            return draw(named(numbers))
        case "nullable":
            schema, values = draw(simple())
            if draw(st.booleans()):
                return ["null", schema], st.one_of(
                    st.just((0, None)), st.tuples(st.just(1), values)
                )
            return [schema, "null"], st.one_of(st.just((1, None)), st.tuples(st.just(0), values))
        case "array":
            schema, values = draw(schemas(numbers, depth - 1))
            return {"type": "array", "items": schema}, st.lists(values, max_size=5)
        case "map":
            schema, values = draw(schemas(numbers, depth - 1))
            pairs = st.tuples(st.sampled_from(["a", "b", "", "ü"]), values)
            return {"type": "map", "values": schema}, st.lists(pairs, max_size=5)
        case "union":
            parts = draw(
                st.sampled_from([["int", "long"], ["null", "float", "double"],
                                 ["string", "null", "long"], ["boolean", "bytes"]])
            )  # fmt: skip
            plain = {"int": st.integers(-5, 5), "long": st.integers(-(2**40), 2**40),
                     "float": FLOATS, "double": FLOATS, "string": TEXT, "null": st.none(),
                     "boolean": st.booleans(), "bytes": st.binary(max_size=3)}  # fmt: skip
            return parts, st.one_of(
                [st.tuples(st.just(n), plain[part]) for n, part in enumerate(parts)]
            )
    return draw(records(numbers, depth - 1))


@st.composite
def records(draw: Any, numbers: Any, depth: int = 2) -> Any:
    parts = draw(st.lists(schemas(numbers, depth), min_size=1, max_size=4))
    fields = [{"name": f"f{n}", "type": schema} for n, (schema, _) in enumerate(parts)]
    values = st.fixed_dictionaries({f"f{n}": values for n, (_, values) in enumerate(parts)})
    return {"type": "record", "name": f"R{next(numbers)}", "fields": fields}, values
