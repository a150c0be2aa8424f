"""Columns that are written, and errors of others."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType

from penstock.spark.errors import InvalidRows
from penstock.spark.schema import COLUMN_NAMES, spark_schema
from penstock.spark.sink.options import written_columns


def schema(text: str) -> StructType:
    """Parsed without a session: `name type` parts, comma separated at the top level."""
    parts = [part.strip().split(" ", 1) for part in text.split(";")]
    made = StructType()
    for name, kind in parts:
        made = made.add(name, KINDS[kind])
    return made


KINDS = {
    name: StructType.fromJson(
        {
            "type": "struct",
            "fields": [{"name": "x", "type": kind, "nullable": True, "metadata": {}}],
        }
    )["x"].dataType
    for name, kind in {
        "string": "string",
        "binary": "binary",
        "int": "integer",
        "bigint": "long",
        "double": "double",
        "timestamp": "timestamp",
        "timestamp_ntz": "timestamp_ntz",
    }.items()
}


def test_takes_the_columns_of_the_source() -> None:
    found = written_columns(spark_schema(COLUMN_NAMES), topic=None)
    assert found == ("key", "value", "headers", "timestamp", "topic", "partition")
    found = written_columns(spark_schema(COLUMN_NAMES), topic="orders")
    assert "topic" not in found


def test_leaves_other_columns_out() -> None:
    assert written_columns(schema("value string;amount double"), topic="t") == ("value",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("key string", "no column named value; its columns: key"),
        (
            "value double",
            r"value has type double, but must be string, binary, or a struct .*to_json\(value\)",
        ),
        ("value string;key bigint", r"column key has type bigint.*cast\(key as string\)"),
        ("value string;partition bigint", r"partition has type bigint, but must be int"),
        ("value string;timestamp timestamp_ntz", r"timestamp has type timestamp_ntz.*bigint"),
        ("value string;headers string", r"column headers has type string, but .*struct<key:string"),
    ],
)
def test_names_the_column_and_the_fix(given: str, said: str) -> None:
    with pytest.raises(InvalidRows, match=said):
        written_columns(schema(given), topic="t")


def test_wants_a_topic() -> None:
    with pytest.raises(InvalidRows, match="no topic is set"):
        written_columns(schema("value string"), topic=None)
    assert written_columns(schema("value string;topic string"), topic=None) == ("value", "topic")
