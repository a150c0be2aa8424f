"""Partition values as texts, in the table's log and in the names of directories.

The log and the directories use the same text, because some readers, such as Polars, take the values
from directory names. The text does not depend on the session's time zone: timestamps are written in
UTC, with the suffix Z. An empty string means null, as in Delta's protocol. In a directory name,
`NULL_PARTITION` also means null.

Source: the Delta transaction protocol, "Partition Value Serialization"; Spark's
`ExternalCatalogUtils.escapePathName`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    FractionalType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.schema import quoted
from penstock.spark.tables.rules import Rule

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX: Final = 255
"""Bytes of the longest directory name that file systems accept."""
_ESCAPED: Final = [*range(0x20), 0x7F, *b"\"#%'*/:=?\\{[]^"]
"""Code points that are percent-encoded in directory names."""
_PERCENT: Final = {code: f"%{code:02X}" for code in _ESCAPED}
_SPECIAL: Final = "".join(f"\\u{code:04x}" for code in _ESCAPED[1:])
_DAY_MICROS: Final = 86_400_000_000
_FIRST_MICROS: Final = -62_135_596_800_000_000
_LAST_MICROS: Final = 253_402_300_799_999_999
_FRACTION_DIGITS: Final = 6


def partition_texts(schema: StructType, partition_by: Sequence[str]) -> list[str]:
    """Return SQL expressions for the columns of a batch, with partition columns as texts.

    A partition value that breaks `partition_rules` becomes null; the batch is then rejected.
    """
    columns: list[str] = []
    for field in schema:
        name = quoted(field.name)
        if field.name not in partition_by:
            columns.append(name)
            continue
        text = _text(field.dataType, name)
        broken = _unfit(field.name, field.dataType)
        columns.append(
            f"if({broken[0]}, null, {text}) as {name}" if broken else f"{text} as {name}"
        )
    return columns


def partition_rules(schema: StructType, partition_by: Sequence[str]) -> list[Rule]:
    """Return the rules that partition values must meet so that all readers can read the table.

    Dates are limited because `deltalake` cannot open a table with a partition outside of the years
    1 to 9999.
    """
    found: list[Rule] = []
    for column in partition_by:
        if broken := _unfit(column, schema[column].dataType):
            condition, limit = broken
            text = f"substr(cast({quoted(column)} as string), 1, 80)"
            found.append(
                Rule(
                    broken=condition,
                    example=text,
                    said=f"partition column {column} allows {limit}",
                )
            )
    return found


def merged_rules(schema: StructType, partition_by: Sequence[str]) -> list[Rule]:
    """Return the rules for partition values of upserts, which `deltalake` writes.

    Floating-point values are limited further: `deltalake` puts all digits of a number into the
    directory name, which would become too long.
    """
    found = partition_rules(schema, partition_by)
    for column in partition_by:
        if isinstance(schema[column].dataType, FractionalType):
            name = quoted(column)
            size = f"abs(cast({name} as double))"
            limit = "absolute values from 1e-100 to 1e100, zero, NaN and infinity"
            found.append(
                Rule(
                    broken=f"({size} > 1e100D and {size} < double('inf'))"
                    f" or ({size} > 0 and {size} < 1e-100D)",
                    example=f"cast({name} as string)",
                    said=f"partition column {column} allows {limit}",
                )
            )
    return found


def with_null_texts(batch: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return a batch whose text partition columns have null for '' and for `NULL_PARTITION`."""
    for field in batch.schema:
        if field.name in partition_by and isinstance(field.dataType, StringType):
            batch = batch.withColumn(field.name, F.expr(_text(field.dataType, quoted(field.name))))
    return batch


def _unfit(column: str, kind: DataType) -> tuple[str, str] | None:
    """Return the SQL condition for forbidden partition values, and the limit in words.

    Returns None if every value of the type is allowed.
    """
    name = quoted(column)
    if isinstance(kind, StringType):
        room = NAME_BYTES_MAX - len(f"{column}=".encode())
        plain = f"translate({name}, '{_SPECIAL}', '')"
        return (
            f"3 * octet_length({name}) - 2 * octet_length({plain}) > {room}"
            f" or contains({name}, char(0))",
            f"at most {room} bytes (special characters count as three) and no zero byte",
        )
    if isinstance(kind, (DateType, TimestampNTZType)):
        return f"year({name}) not between 1 and 9999", "the years 1 to 9999"
    if isinstance(kind, TimestampType):
        micros = f"unix_micros({name})"
        return f"{micros} not between {_FIRST_MICROS} and {_LAST_MICROS}", "the years 1 to 9999"
    if isinstance(kind, DecimalType) and kind.scale:
        # `deltalake` writes -1.5 as `-1.-5`, which it cannot read.
        return f"{name} < 0 and {name} % 1 != 0", "no negative values with a fraction"
    return None


def _text(kind: DataType, name: str) -> str:
    if isinstance(kind, TimestampType):
        return _utc(name)
    if isinstance(kind, StringType):
        return f"nullif(nullif({name}, ''), '{NULL_PARTITION}')"
    if isinstance(kind, FractionalType) and not isinstance(kind, DecimalType):
        # Some readers compare texts and would not find -0.0 when they look for 0.0.
        return f"if({name} = 0, '0.0', cast({name} as string))"
    return f"cast({name} as string)"


def _utc(name: str) -> str:
    micros = f"unix_micros({name})"
    of_day = f"pmod({micros}, {_DAY_MICROS})"
    days = f"cast(({micros} - {of_day}) div {_DAY_MICROS} as int)"

    def digits(value: str, count: int) -> str:
        return f"lpad(cast({value} as string), {count}, '0')"

    hours = digits(f"{of_day} div 3600000000", 2)
    minutes = digits(f"{of_day} div 60000000 % 60", 2)
    seconds = digits(f"{of_day} div 1000000 % 60", 2)
    fraction = digits(f"{of_day} % 1000000", _FRACTION_DIGITS)
    day = f"cast(date_from_unix_date({days}) as string)"
    return f"concat({day}, 'T', {hours}, ':', {minutes}, ':', {seconds}, '.', {fraction}, 'Z')"


def partition_values(relative: str, partition_by: Sequence[str]) -> dict[str, str | None]:
    """Return the partition values in the directory names of a path."""
    values: dict[str, str | None] = {}
    for part in relative.split("/"):
        name, equals, text = part.partition("=")
        if equals and unquote(name) in partition_by:
            values[unquote(name)] = None if text == NULL_PARTITION else unquote(text)
    return values


def directories(values: Sequence[tuple[str, str | None]]) -> str:
    """Return the directory path that names these partition values; empty for no values."""
    names = (
        f"{_escaped(name)}={NULL_PARTITION if value is None else _escaped(value)}"
        for name, value in values
    )
    return "/".join(names)


def _escaped(text: str) -> str:
    return text.translate(_PERCENT)


def texts_of(values: pa.ChunkedArray) -> list[str | None]:
    """Return partition values as texts of the log, from the values that `deltalake` parsed."""
    kind = values.type
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return [text and text.replace(" ", "T") for text in texts]
    return texts
