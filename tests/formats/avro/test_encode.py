"""Columns as Avro values: fastavro and our decoder read back what is written."""

from __future__ import annotations

import io
import itertools
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.formats.avro import column_of_schema, parse
from penstock.formats.avro_decode import decode
from penstock.formats.avro_encode import Unencodable, encode
from penstock.formats.values import Values
from tests.formats.avro.evolution import arrow_form, with_dicts
from tests.formats.avro.reference import encode as reference
from tests.formats.avro.reference import records
from tests.formats.avro.test_resolution import (
    DEFAULTS,
    TIME_MICROS,
    TIME_MILLIS,
    WRONG_DEFAULTS,
    record,
)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_what_is_decoded_is_encoded_again(data: Any) -> None:
    schema, values = data.draw(records(itertools.count()))
    drawn = data.draw(st.lists(values, max_size=5))
    node = parse(schema)
    content = pa.array([reference(schema, value) for value in drawn], pa.binary())
    rows, _ = decode(node, Values.of(content))
    written = encode(node, rows)
    assert decode(node, Values.of(written))[0].equals(rows)
    half = encode(node, rows.slice(1))
    assert half.equals(written.slice(1))
    for ours, encoded in zip(rows.to_pylist(), written.to_pylist(), strict=True):
        theirs = fastavro.schemaless_reader(io.BytesIO(encoded), schema, None)
        assert with_dicts(schema, ours) == arrow_form(schema, theirs)


WRONG: list[tuple[Any, Any, str]] = [
    (record(("a", "int")), pa.array([{"a": 2**31}]), "field a: some numbers do not fit an int"),
    (record(("a", "int")), pa.array([{"a": -(2**63)}]), "field a: some numbers do not fit an int"),
    (record(("a", "long")), pa.array([{"a": None}], pa.struct([("a", pa.int64())])),
     "field a: 1 rows are null, but the schema has no null"),
    (record(("a", "long")), pa.array([{"b": 1}]), "field a: is missing in the data"),
    (record(("a", "long", 1)), pa.array([{"b": 1}]), "the schema has no field b"),
    (record(("a", "string")), pa.array([{"a": [1]}]), "field a: list<.*> cannot be written"),
    (record(("a", {"type": "enum", "name": "E", "symbols": ["A"]})), pa.array([{"a": "B"}]),
     "field a: 'B' is not a symbol of the enum E"),
    (record(("a", {"type": "fixed", "name": "F", "size": 2})), pa.array([{"a": b"abc"}]),
     "field a: some values do not have 2 bytes"),
    (record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1})),
     pa.array([{"a": Decimal("12.34")}]), "field a: decimal128.* cannot be written"),
    (record(("a", {"type": "map", "values": "long"})), pa.array([{"a": 1}]), "must be a map"),
    (record(("a", ["long", "string"])), pa.array([{"a": 1}]), "must be a struct of member0"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "rows", "said"), WRONG)
def test_what_does_not_fit_is_named(schema: Any, rows: Any, said: str) -> None:
    with pytest.raises(Unencodable, match=said):
        encode(parse(schema), rows)


@pytest.mark.parametrize(("kind", "default", "expected"), DEFAULTS)
def test_a_missing_column_has_the_default(kind: Any, default: Any, expected: Any) -> None:
    node = parse(record(("a", "int"), ("new", kind, default)))
    for count in (0, 3):
        rows = pa.array([{"a": n} for n in range(count)], pa.struct([("a", pa.int32())]))
        decoded, errors = decode(node, Values.of(encode(node, rows)))
        assert errors.null_count == count
        for n, row in enumerate(decoded.to_pylist()):
            assert row["a"] == n
            assert row["new"] == expected or repr(row["new"]) == repr(expected)


@pytest.mark.parametrize(("kind", "default"), WRONG_DEFAULTS)
def test_a_default_of_another_type_is_named(kind: Any, default: Any) -> None:
    node = parse(record(("a", "int"), ("new", kind, default)))
    with pytest.raises(Unencodable, match=r"field new: the schema is wrong: .*INVALID_DEFAULT"):
        encode(node, pa.array([{"a": 1}]))


def test_other_types_of_columns_are_converted() -> None:
    micros = {"type": "long", "logicalType": "timestamp-micros"}
    schema = record(
        ("a", "long"), ("b", "string"), ("c", micros), ("d", ["null", "double"]), ("e", "int", 7),
        ("f", [TIME_MILLIS, TIME_MICROS]),
    )  # fmt: skip
    rows = pa.StructArray.from_arrays(
        [
            pa.array([1, 2], pa.int8()),
            pa.array(["x", "y"]).dictionary_encode(),
            pa.array([1, 2], pa.timestamp("ms")),
            pa.array([1.5, None], pa.float32()),
            pa.array([1, 2**40]),
        ],
        names=["a", "b", "c", "d", "f"],
    )
    node = parse(schema)
    decoded, errors = decode(node, Values.of(encode(node, rows)))
    assert errors.null_count == 2
    assert decoded.type == column_of_schema(node).type
    first, second = decoded.to_pylist()
    assert (first["a"], first["b"], first["d"], first["e"]) == (1, "x", 1.5, 7)
    assert (second["c"].microsecond, second["d"], second["f"]) == (2000, None, 2**40)
