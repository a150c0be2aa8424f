"""Schema inference: finds the schema of JSON values from a sample of them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)
from pyspark.sql.types import ArrayType, DataType, DecimalType, NullType, StructType

from penstock.formats.errors import InvalidFormat
from penstock.formats.value_format import INFER
from penstock.spark.formats.ddl import read_ddl
from penstock.spark.schema import quoted


def infer_json(frame: DataFrame, column: str = "value", *, rows_max: int) -> str:
    """Return a schema in Spark's DDL whose field types cover all sampled values.

    Args:
        frame: a batch with the values; not a stream.
        rows_max: largest number of values to sample; nulls do not count.

    Raises:
        InvalidFormat: the sample is empty, or has no JSON object.
    """
    text = frame[column].cast("string")
    sample = frame.select(text.alias("t")).where(text.isNotNull()).limit(rows_max)
    # Text that is not JSON gives a null variant, which the aggregate ignores.
    variant = F.try_parse_json(F.when(F.is_valid_utf8("t"), F.col("t")))
    row = sample.select(variant.alias("v")).select(
        F.count(F.lit(1)).alias("rows"),
        F.schema_of_variant_agg(
            F.when(F.schema_of_variant("v").startswith("OBJECT<"), F.col("v"))
        ).alias("found"),
    ).head()  # fmt: skip
    if row is None or not row["rows"]:
        raise InvalidFormat(
            "schema", INFER, "there are no values yet to infer the schema from; set the schema"
        )
    found = str(row["found"])
    if not found.startswith("OBJECT<"):
        raise InvalidFormat(
            "schema", INFER, f"none of {row['rows']} sampled values is a JSON object with fields"
        )
    return _as_ddl(found)


def _as_ddl(found: str) -> str:
    """Return the DDL for a result of `schema_of_variant_agg`.

    Decimals become doubles, as in Spark's own JSON reader. Fields that are always null become
    strings.
    """
    ddl = found.replace("OBJECT<", "STRUCT<")
    made = read_ddl(f"v {ddl}").fields[0].dataType
    if not isinstance(made, StructType) or not made.fields:
        raise InvalidFormat("schema", INFER, "the sampled objects have no fields")
    return ", ".join(f"{quoted(field.name)} {_type(field.dataType)}" for field in made.fields)


def _type(data_type: DataType) -> str:
    match data_type:
        case StructType():
            inner = (f"{quoted(field.name)}: {_type(field.dataType)}" for field in data_type.fields)
            return f"struct<{', '.join(inner)}>" if data_type.fields else "variant"
        case ArrayType():
            return f"array<{_type(data_type.elementType)}>"
        case DecimalType():
            return "double"
        case NullType():
            return "string"
    return data_type.simpleString()
