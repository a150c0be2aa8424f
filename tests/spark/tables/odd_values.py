"""Odd values of every type that a table has, and the readers that must agree on them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.tables import read_table
from tests.formats.drawn import SPARK_EXAMPLES, drawn

DAY_MICROS: Final = 86_400_000_000
YEAR_1_DAYS, YEAR_10000_DAYS = -719_162, 2_932_897
AUTUMN_MICROS: Final = 1_761_440_400_000_000
"""2025-10-26 01:00 UTC, when Berlin's clocks show 02:00 for the second time."""

floats = (
    st.sampled_from(
        [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 5e-324, 1.5, -2.5, 1e300]
    )
    | st.floats()
)
days = st.sampled_from(
    [YEAR_1_DAYS, YEAR_1_DAYS - 1, YEAR_10000_DAYS, YEAR_10000_DAYS - 1, -1, 0, 20_000]
) | st.integers(-(10**7), 10**7)
"""Days since 1970, of the years from about -25000 to 29000."""
moments = (
    st.sampled_from(
        [
            YEAR_1_DAYS * DAY_MICROS,
            YEAR_1_DAYS * DAY_MICROS - 1,
            YEAR_10000_DAYS * DAY_MICROS,
            YEAR_10000_DAYS * DAY_MICROS - 1,
            YEAR_1_DAYS * DAY_MICROS + 86_400_000_123,
            -1,
            0,
            1_234_567,
        ]
    )
    | st.integers(AUTUMN_MICROS - 3_600_000_000, AUTUMN_MICROS + 3_600_000_000)
    | st.integers(0, 2 * 10**18)
    | st.integers(-(2**63) + DAY_MICROS, 2**63 - DAY_MICROS)
)
"""Microseconds since 1970."""
_ODD_TEXTS: Final = [
    b"", b"\xff", b"a\xc3(", b"\xed\xa0\x80", b"x" * 33, b"y" * 31 + "😀".encode(), b"z" * 5000,
    "😀".encode() * 32, "é".encode(), b"__HIVE_DEFAULT_PARTITION__", b"\x00", b"a/b%=:",
]  # fmt: skip
texts = (
    st.sampled_from(_ODD_TEXTS)
    | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(max_size=8)
)
"""Bytes that become strings, valid or not."""


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    odd = st.sampled_from([0, 1, -1, most, -most, most - 1, 10 ** (precision - 1)])
    return (odd | st.integers(-most, most)).map(lambda digits: Decimal(f"{digits}e-{scale}"))


def whole(bits: int) -> st.SearchStrategy[int]:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.sampled_from([least, most, 0]) | st.integers(least, most)


_NESTED: Final = pa.struct(
    [("f", pa.float64()), ("s", pa.binary()), ("t", pa.timestamp("us", "UTC"))]
)
_DEEP: Final = pa.list_(pa.struct([
    ("x.y", pa.date32()),
    ("m", pa.map_(pa.binary(), pa.struct([
        ("d", pa.decimal128(38, 10)), ("t", pa.timestamp("us", "UTC")), ("f", pa.float64()),
        ("s", pa.binary()), ("l", pa.list_(pa.decimal128(5, 2))),
    ]))),
]))  # fmt: skip
_DEEPEST: Final = st.fixed_dictionaries({
    "d": st.none() | decimals(38, 10), "t": st.none() | moments, "f": st.none() | floats,
    "s": st.none() | texts, "l": st.none() | st.lists(st.none() | decimals(5, 2), max_size=2),
})  # fmt: skip
deep = st.lists(
    st.none() | st.fixed_dictionaries({
        "x.y": st.none() | days,
        "m": st.none() | st.dictionaries(texts, st.none() | _DEEPEST, max_size=2).map(
            lambda held: list(held.items())),
    }),
    max_size=3,
)  # fmt: skip
"""Structs in maps in structs in lists, with nulls and emptiness at each depth."""
COLUMNS: Final[dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]] = {
    "flag": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), whole(8)),
    "small": (pa.int16(), whole(16)),
    "middle": (pa.int32(), whole(32)),
    "big": (pa.int64(), whole(64)),
    "f": (pa.float32(), floats.map(lambda value: pa.scalar(value, pa.float32()).as_py())),
    "d": (pa.float64(), floats),
    "dec5": (pa.decimal128(5, 2), decimals(5, 2)),
    "dec15": (pa.decimal128(15, 9), decimals(15, 9)),
    "dec18": (pa.decimal128(18, 6), decimals(18, 6)),
    "dec38": (pa.decimal128(38, 10), decimals(38, 10)),
    "s": (pa.binary(), texts),
    "b": (pa.binary(), texts),
    "day": (pa.date32(), days),
    "at": (pa.timestamp("us", "UTC"), moments),
    "local": (pa.timestamp("us"), moments),
    "nested": (_NESTED, st.fixed_dictionaries({"f": floats, "s": texts, "t": moments})),
    "list": (pa.list_(pa.float64()), st.lists(st.none() | floats, max_size=3)),
    "held": (pa.map_(pa.binary(), pa.int64()), st.dictionaries(texts, whole(64)).map(
        lambda held: list(held.items()))),
    "deep": (_DEEP, deep),
}  # fmt: skip
STRINGS: Final = {
    "s": "cast(s as string)",
    "nested": "if(nested is null, null, named_struct('f', nested.f, 's', cast(nested.s as string),"
    " 't', nested.t))",
    "held": "cast(held as map<string, bigint>)",
    "deep": "cast(deep as array<struct<`x.y`: date, m: map<string, struct<d: decimal(38,10), "
    "t: timestamp, f: double, s: string, l: array<decimal(5,2)>>>>>)",
}
"""The SQL that makes strings of bytes."""


def rows_of(names: Sequence[str], count: int = SPARK_EXAMPLES) -> pa.Table:
    """Rows of these columns with drawn values and nulls, numbered by `id`; strings are bytes."""
    given = {"id": pa.array(range(count), pa.int64())}
    for name in names:
        kind, strategy = COLUMNS[name]
        # Hypothesis ends earlier where there are fewer values.
        values = cycle(drawn(st.none() | strategy, count))
        given[name] = pa.array(islice(values, count), kind)
    return pa.table(given)


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows as a frame of Spark, whose strings may be no UTF-8."""
    columns = [f"{STRINGS.get(name, name)} as {name}" for name in rows.column_names[1:]]
    schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return spark.createDataFrame(rows, schema).selectExpr("id", *columns)


def as_text(rows: pa.Table) -> pa.Table:
    """Rows as a table has them: Python replaces what is not UTF-8, and keys of maps show bytes."""
    for name in set(STRINGS) & set(rows.column_names):
        kind = rows.schema.field(name).type
        mended = [_text(value) for value in rows[name].cast(plain_type(kind)).to_pylist()]
        texts = pa.array(mended, plain_type(kind, pa.string()))
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return rows


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict):
        return {name: _text(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return _shown(value[0]), _text(value[1])
    return [_text(item) for item in value] if isinstance(value, list) else value


def _shown(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "\\x" + key.hex().upper()


def plain(table: pa.Table) -> list[str]:
    """Rows by `id` as texts that differ if and only if the values do."""
    ordered = table.sort_by("id")
    ordered = ordered.cast(
        pa.schema([field.with_type(plain_type(field.type)) for field in ordered.schema])
    )
    columns = [ordered[name].to_pylist() for name in table.column_names]
    return [repr(row) for row in zip(*columns, strict=True)]


def plain_type(kind: pa.DataType, octets: pa.DataType | None = None) -> pa.DataType:
    """The type with days and moments as numbers, which Python's own types cannot all be.

    Args:
        octets: the type in place of bytes.
    """
    types = pa.types
    if types.is_date32(kind):
        return pa.int32()
    if types.is_timestamp(kind):
        return pa.int64()
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return octets or pa.binary()
    if types.is_struct(kind):
        return pa.struct([(field.name, plain_type(field.type, octets)) for field in kind])
    if types.is_map(kind):
        parts = (plain_type(part, octets) for part in (kind.key_type, kind.item_type))
        return pa.map_(*parts)
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type, octets))
    return kind


def readings(spark: SparkSession, table: Path, names: Sequence[str]) -> dict[str, pa.Table]:
    """The whole table by each reader."""
    columns = ["id", *names]
    opened = DeltaTable(str(table))
    dataset = opened.to_pyarrow_dataset()
    found = {
        "spark": read_table(spark, str(table)).toArrow(),
        "deltalake": dataset.to_table(),
        "polars": pl.scan_delta(str(table)).collect().to_arrow(),
    }
    with duckdb.connect() as connection:
        connection.register("rows", dataset)
        found["duckdb"] = connection.sql("select * from rows").to_arrow_table()
    return {reader: read.select(columns) for reader, read in found.items()}
