"""Errors of a format whose schema Spark cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from penstock.formats import InvalidFormat, ValueFormat
from penstock.spark.formats.decoders import decoder


@pytest.mark.parametrize(
    ("settings", "name", "reason"),
    [
        ({"kind": "json", "schema": "a nonsense b"}, "schema", "Spark's DDL"),
        ({"kind": "json", "schema": "a interval"}, "schema", "cannot be read from JSON"),
        ({"kind": "json", "schema": "a decimal(0,0)"}, "schema", "cannot be read from JSON"),
        ({"kind": "json", "schema": "a void"}, "schema", "cannot be read from JSON"),
        ({"kind": "json", "schema": "a map<int, int>"}, "schema", "must be strings"),
        ({"kind": "json", "schema": "a int, a int"}, "schema", "occurs twice"),
        ({"kind": "avro", "schema_file": Path("/none.avsc")}, "schema_file", "cannot be read"),
    ],
)
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_schemas_that_cannot_be(settings: Any, name: str, reason: str) -> None:
    with pytest.raises(InvalidFormat) as raised:
        decoder(ValueFormat(**settings))
    assert raised.value.name == name
    assert reason in raised.value.reason


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_schema_stays_what_it_was() -> None:
    leaves = [
        "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal(38,2)",
        "string", "timestamp", "timestamp_ntz", "date", "binary", "variant",
    ]  # fmt: skip
    columns = [f"c{number} {leaf}" for number, leaf in enumerate(leaves)]
    columns += ["t string collate UTF8_LCASE", "n array<map<string,struct<a:int>>>"]
    made = decoder(ValueFormat(kind="json", schema=", ".join(columns)))
    assert made.schema == StructType.fromDDL(", ".join(columns))
