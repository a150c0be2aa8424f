"""Reader's schemas made from a writer's schema by small edits, and their values from an oracle."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tests.formats.avro.reference import schemas

NUMBERS = {
    "int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
    "string": ["bytes"], "bytes": ["string"],
}  # fmt: skip
DEFAULTS = [
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("boolean", st.booleans()),
    ("string", st.text(st.characters(codec="utf-8"), max_size=5)),
    ("double", st.floats(allow_nan=False, allow_infinity=False)),
    (["null", "long"], st.none()),
    (["string", "null"], st.just("text")),
    ({"type": "array", "items": "long"}, st.lists(st.integers(-5, 5), max_size=3)),
    ({"type": "map", "values": "string"}, st.dictionaries(st.sampled_from(["a", "ü"]),
                                                          st.just("x"), max_size=2)),
]  # fmt: skip
LONGEST_DECIMAL = 38


@st.composite
def evolved(draw: Any, schema: Any, numbers: Any) -> Any:
    """A schema that a reader may have for data of `schema`; most of the edits are compatible."""
    if isinstance(schema, list):
        return draw(_union(schema, numbers))
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "record":
            made = draw(_record(schema, numbers))
        case "array":
            made = schema | {"items": draw(evolved(schema["items"], numbers))}
        case "map":
            made = schema | {"values": draw(evolved(schema["values"], numbers))}
        case "enum":
            made = draw(_renamed(draw(_enum(schema))))
        case "fixed":
            made = draw(_renamed(schema))
        case _:
            made = draw(_simple(schema, kind))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from([["null", made], [made, "null"]]))
    return made


@st.composite
def _union(draw: Any, schema: list[Any], numbers: Any) -> Any:
    """The branches in another order, with one more, or one of them alone, which may fail."""
    how = draw(st.sampled_from(["same", "same", "order", "more", "one"]))
    if how == "one":
        return draw(st.sampled_from([part for part in schema if part != "null"]))
    if how == "more":
        taken = {part if isinstance(part, str) else part["type"] for part in schema}
        free = [part for part in ("null", "boolean") if part not in taken]
        # The value does not show which of two numbers is its branch.
        numbers_twice = {"int", "long"} <= taken or {"float", "double"} <= taken
        return schema if numbers_twice else [*schema, *free[:1]]
    return draw(st.permutations(schema)) if how == "order" else schema


@st.composite
def _record(draw: Any, schema: Any, numbers: Any) -> Any:
    fields = []
    for field in schema["fields"]:
        how = draw(st.sampled_from(["same", "same", "same", "other name", "gone"]))
        if how == "gone":
            continue
        made = {"name": field["name"], "type": draw(evolved(field["type"], numbers))}
        if how == "other name":
            made |= {"name": f"{field['name']}x", "aliases": [field["name"]]}
        fields.append(made)
    for number in range(draw(st.integers(0, 2)) or not fields):
        if draw(st.integers(0, 19)) == 0:
            kind, _ = draw(schemas(numbers, 0))
            fields.append({"name": f"n{number}", "type": kind})
        else:
            kind, values = draw(st.sampled_from(DEFAULTS))
            fields.append({"name": f"n{number}", "type": kind, "default": draw(values)})
    made = schema | {"fields": draw(st.permutations(fields))}
    return draw(_renamed(made))


@st.composite
def _renamed(draw: Any, schema: Any) -> Any:
    how = draw(st.sampled_from(["same"] * 4 + ["namespace", "alias", "name"]))
    # The namespace of a record is that of the types in it, and so of their aliases.
    if how == "namespace" and schema["type"] != "record":
        return schema | {"namespace": "other"}
    if how == "alias":
        return schema | {"name": f"{schema['name']}Y", "aliases": [schema["name"]]}
    # Readers of another name read nothing, so there are few of them.
    if how == "name" and draw(st.integers(0, 9)) == 0:
        return schema | {"name": f"{schema['name']}Z"}
    return schema


@st.composite
def _enum(draw: Any, schema: Any) -> Any:
    how = draw(st.sampled_from(["same", "more", "first", "fewer", "default"]))
    symbols = schema["symbols"]
    changed = {
        "same": symbols, "more": [*symbols, "Z"], "first": ["Z", *symbols],
        "fewer": symbols[1:], "default": ["Z", *symbols[1:]],
    }[how]  # fmt: skip
    return schema | {"symbols": changed} | ({"default": "Z"} if how == "default" else {})


@st.composite
def _simple(draw: Any, schema: Any, kind: str) -> Any:
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    if logical == "decimal":
        more = draw(st.integers(schema["scale"], LONGEST_DECIMAL))
        return schema | {"precision": more}
    if logical in ("timestamp-millis", "timestamp-micros"):
        return schema | {"logicalType": draw(st.sampled_from(["timestamp-millis", logical]))}
    if logical is not None:
        return schema
    others = NUMBERS.get(kind, [])
    how = draw(st.sampled_from(["same", "same", "other", "wrong"]))
    if how == "other" and others:
        return draw(st.sampled_from(others))
    if how == "wrong" and draw(st.integers(0, 9)) == 0:
        return "boolean" if kind != "boolean" else "string"
    return schema


def arrow_form(schema: Any, value: Any) -> Any:
    """Return a value that the oracle read with `schema` as `to_pylist` does; maps become dicts."""
    if isinstance(schema, list):
        return _union_form(schema, value)
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = None if isinstance(schema, str) else schema.get("logicalType")
    match (kind, logical):
        case ("float", _):
            return struct.unpack("<f", struct.pack("<f", value))[0]
        case ("double", _):
            return float(value)
        case ("fixed", "uuid"):
            return str(UUID(bytes=value))
        case ("array", _):
            return [arrow_form(schema["items"], item) for item in value]
        case ("map", _):
            return {key: arrow_form(schema["values"], item) for key, item in value.items()}
        case ("record", _):
            return {f["name"]: arrow_form(f["type"], value[f["name"]]) for f in schema["fields"]}
    return value


def _union_form(schema: list[Any], value: Any) -> Any:
    valued = [branch for branch in schema if branch != "null"]
    if value is None:
        return None
    if len(valued) == 1:
        return arrow_form(valued[0], value)
    if set(map(str, valued)) <= {"int", "long"}:
        return value
    if set(map(str, valued)) <= {"float", "double"}:
        return float(value)
    chosen = next(n for n, branch in enumerate(valued) if isinstance(value, _python(branch)))
    return {
        f"member{n}": arrow_form(branch, value) if n == chosen else None
        for n, branch in enumerate(valued)
    }


def _python(branch: Any) -> type | tuple[type, ...]:
    kind = branch if isinstance(branch, str) else branch.get("logicalType", branch["type"])
    return {
        "boolean": bool, "string": str, "bytes": bytes, "long": int, "int": int, "float": float,
        "double": float, "date": date, "decimal": Decimal, "uuid": bytes, "array": list,
        "map": dict, "record": dict, "enum": str, "fixed": bytes,
    }.get(kind, datetime)  # fmt: skip


def with_dicts(schema: Any, value: Any) -> Any:
    """Return a value of `to_pylist` with dicts for maps."""
    if value is None:
        return None
    if isinstance(schema, list):
        valued = [branch for branch in schema if branch != "null"]
        if isinstance(value, dict) and list(value)[:1] == ["member0"]:
            return {
                f"member{n}": with_dicts(branch, value[f"member{n}"])
                for n, branch in enumerate(valued)
            }
        return with_dicts(valued[0], value)
    match None if isinstance(schema, str) else schema["type"]:
        case "array":
            return [with_dicts(schema["items"], item) for item in value]
        case "map":
            return {key: with_dicts(schema["values"], item) for key, item in value}
        case "record":
            return {f["name"]: with_dicts(f["type"], value[f["name"]]) for f in schema["fields"]}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return value
