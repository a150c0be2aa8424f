"""The two forms of the schema agree, by Spark's own translation."""

from __future__ import annotations

from pyspark.sql.pandas.types import to_arrow_schema

from penstock.spark.schema import COLUMN_NAMES, arrow_schema, spark_schema


def test_arrow_is_what_spark_makes_of_it() -> None:
    assert to_arrow_schema(spark_schema(COLUMN_NAMES), timezone="UTC").equals(
        arrow_schema(COLUMN_NAMES)
    )
    assert all(field.nullable for field in spark_schema(COLUMN_NAMES))


def test_columns_keep_the_order_asked_for() -> None:
    assert spark_schema(["offset", "value"]).names == ["offset", "value"]
    assert arrow_schema(["offset", "value"]).names == ["offset", "value"]
