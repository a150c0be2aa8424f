"""A JSON Schema accepts the values that its own reference accepts, and says why it does not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pyspark.sql import SparkSession

from penstock.formats import ValueFormat
from penstock.spark.formats.decoders import decoder

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Order",
    "type": "object",
    "required": ["id", "note"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 0, "exclusiveMaximum": 1000},
        "note": {"type": ["string", "null"], "minLength": 2, "maxLength": 4},
        "amount": {"type": "number", "exclusiveMinimum": 0, "maximum": 10.5, "multipleOf": 0.1},
        "code": {"type": "string", "pattern": "^[a-c]+$"},
        "kind": {"enum": ["x", "y"]},
        "rank": {"type": "integer", "enum": [1, 2, 3]},
        "fixed": {"type": "string", "const": "v1"},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2},
        "at": {"type": "string", "format": "date-time"},
        "day": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        "who": {"type": "string", "format": "uuid"},
        "place": {"$ref": "#/$defs/place"},
        "more": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": True,
    },
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "deep": {"$ref": "#/$defs/deep"}},
            "required": ["x"],
        },
        "deep": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
}
SCALARS: list[Any] = [
    None, True, False, -5, 0, 1, 2, 999, 1000, "", "a", "abc", "v1", "x", 0.1, 0.25, 10.5,
    10.6, 1.0, 2.0, -1.5, 1e2, "2026-01-02", "2026-13-02", "2026-01-02T03:04:05Z",
    "2026-01-02T03:04:05", "2026-01-02T03:04:05+02:00", "6fa459ea-ee8a-3ca4-894e-db77e160355e",
]  # fmt: skip
GOOD: dict[str, list[Any]] = {
    "id": [0, 5, 999, 2.0], "note": ["ab", "abcd", None, "üü"], "amount": [0.1, 10.5, 2],
    "code": ["abc"], "kind": ["x", "y"], "rank": [1, 2], "fixed": ["v1"],
    "tags": [["a"], ["a", "b"]], "at": ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123+02:00"],
    "day": [None, "2026-01-02"], "who": ["6fa459ea-ee8a-3ca4-894e-db77e160355e"],
    "place": [{"x": 1}, {"x": 1.5, "deep": None}, {"x": 0, "deep": True, "else": 1}],
    "more": [{}, {"a": 1}], "any": [1, "x", [1], None],
}  # fmt: skip


def thing(chance: random.Random) -> Any:
    """Anything."""
    match chance.randrange(4):
        case 0:
            return [chance.choice(SCALARS) for _ in range(chance.randrange(4))]
        case 1:
            names = chance.sample(["x", "deep", "z"], chance.randrange(4))
            return {name: chance.choice(SCALARS) for name in names}
    return chance.choice(SCALARS)


def document(chance: random.Random) -> dict[str, Any]:
    """Mostly good members, with up to two that are anything or missing."""
    names = {name for name in GOOD if chance.random() < 0.5} | {"id", "note"}
    made = {name: chance.choice(GOOD[name]) for name in sorted(names)}
    for _ in range(chance.randrange(3)):
        name = chance.choice([*sorted(GOOD), "unknown"])
        if chance.random() < 0.8:
            made[name] = thing(chance)
        else:
            made.pop(name, None)
    return made


@pytest.mark.spark
@pytest.mark.slow
def test_what_the_reference_accepts(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    values = [document(chance) for _ in range(400)]
    path = tmp_path / "order.json"
    path.write_text(json.dumps(SCHEMA))
    made = decoder(ValueFormat(kind="json-schema", schema_file=path))
    rows = [(number, json.dumps(value).encode()) for number, value in enumerate(values)]
    frame = made.decode(spark.createDataFrame(rows, "n int, value binary"))
    assert frame.schema["_value"].dataType == made.schema
    found = frame.orderBy("n").select("_error", "_value.id").collect()
    checker = jsonschema.FormatChecker()
    reference = jsonschema.Draft202012Validator(SCHEMA, format_checker=checker)
    accepted = sum(row["_error"] is None for row in found)
    assert 100 < accepted < 300
    for value, row in zip(values, found, strict=True):
        right = reference.is_valid(value) and right_time(value)
        assert (row["_error"] is None) == right, (value, row["_error"])
        assert row["id"] == (value["id"] if right else None)


def right_time(value: dict[str, Any]) -> bool:
    """Check generated times, for which the reference needs another package."""
    at = value.get("at", "2026-01-02T03:04:05Z")
    return at in [*GOOD["at"], "2026-01-02T03:04:05+02:00"]


@pytest.mark.spark
@pytest.mark.slow
def test_errors_name_the_field_and_the_keyword(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    path.write_text(json.dumps(SCHEMA))
    made = decoder(ValueFormat(kind="json-schema", schema_file=path))
    good = {"id": 1, "note": None}
    cases: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"id": -1}, "field id: below minimum 0"),
        ({"id": 1000}, "field id: not below exclusiveMaximum 1000"),
        ({"id": None}, "field id: null"),
        ({"note": "a"}, "field note: shorter than minLength 2"),
        ({"note": "abcde"}, "field note: longer than maxLength 4"),
        # The reference divides as floating-point units do, and finds that it is not a multiple.
        ({"amount": 0.3}, None),
        ({"amount": 0.25}, "field amount: not a multipleOf 0.1"),
        ({"amount": "1"}, "field amount: '1' is not double"),
        ({"code": "xyz"}, "field code: does not match pattern ^[a-c]+$"),
        ({"kind": "z"}, "field kind: is not one of enum"),
        ({"rank": 4}, "field rank: is not one of enum"),
        ({"fixed": "v2"}, "field fixed: is not const 'v1'"),
        ({"tags": []}, "field tags: fewer items than minItems 1"),
        ({"tags": ["a", "b", "c"]}, "field tags: more items than maxItems 2"),
        ({"tags": ["a", 1]}, "field tags[]: 1 is not string"),
        ({"at": "2026-01-02T03:04:05"}, "field at: '2026-01-02T03:04:05' is not timestamp"),
        ({"day": "x"}, "field day: 'x' is not date"),
        ({"who": "x"}, "field who: is not a uuid"),
        ({"place": {}}, "field place.x: missing"),
        ({"place": {"x": 1, "deep": 1}}, "field place.deep: 1 is not boolean"),
        ({"more": {"a": 1.5}}, "field more{}: 1.5 is not bigint"),
        ({"other": 1}, "field other: is not in the schema"),
    ]
    rows = [(n, json.dumps(good | more).encode()) for n, (more, _) in enumerate(cases)]
    found = made.decode(spark.createDataFrame(rows, "n int, value binary")).orderBy("n").collect()
    assert [row["_error"] for row in found] == [error for _, error in cases]
