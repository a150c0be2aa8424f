"""Upserts of generated values: the table equals a dictionary, as every reader sees it, and no
filter loses a row.

Each example is a history of its own: batches of rows of few keys. The histories of all examples
share a table, in which their number is part of the key, so that a batch of all is one merge.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.spark import DeltaUpsert
from penstock.spark.tables import compact, read_table
from tests.formats.drawn import SPARK_EXAMPLES, drawn
from tests.sampling import sample
from tests.spark.tables.odd_values import plain_type

pytestmark = pytest.mark.spark

BATCHES = 3
FLOATS = (0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 1.5, -2.5, 5e-324)
DAYS = (-900_000, -719_163, -719_162, -1, 0, 2_932_896, 2_932_897, 90_000_000)
"""Of the years -495, 0, 1, 1969, 1970, 9999, 10000 and 248394."""
MOMENTS = tuple(day * 86_400_000_000 + more for day in DAYS[:-1] for more in (0, 123_456))
TEXTS = ("", "a", "A", "a ", "ä", "x" * 40, "\U0010ffff" * 40, "'", '"', "\\", "\x00", "NaN")
BYTES = (b"", b"\x00", b"\xff" * 40, b"a", b"\xc3\x28")
WHOLE = (-(2**63), -1, 0, 1, 2**53 + 1, 2**63 - 1)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    odd = [10**digits - 1, -(10**digits) + 1, 0, 1, -1, 2**53 + 1 if digits > 16 else 3]
    whole = st.sampled_from(odd) | st.integers(-(10**digits) + 1, 10**digits - 1)
    return whole.map(lambda number: Decimal(f"{number}e-{scale}"))


def typed(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, the odd ones often; days and moments as numbers."""
    types = pa.types
    if types.is_decimal(kind):
        return decimals(kind.precision, kind.scale)
    if types.is_struct(kind):
        return st.fixed_dictionaries({field.name: nulls(field.type) for field in kind})
    if types.is_list(kind):
        item = nulls if types.is_struct(kind.value_type) else typed
        return st.lists(item(kind.value_type), max_size=3)
    if types.is_map(kind):
        return st.dictionaries(st.sampled_from("abc"), nulls(kind.item_type), max_size=2).map(
            lambda entries: list(entries.items())
        )
    odd: dict[pa.DataType, Sequence[Any]] = {
        pa.int64(): WHOLE, pa.int32(): (-(2**31), 0, 7, 2**31 - 1), pa.float64(): FLOATS,
        pa.float32(): (*FLOATS[:-1], 1e-45), pa.bool_(): (False, True), pa.string(): TEXTS,
        pa.binary(): BYTES, pa.date32(): DAYS, pa.timestamp("us", "UTC"): MOMENTS,
        pa.timestamp("us"): MOMENTS,
    }  # fmt: skip
    return st.sampled_from(odd[kind])


def nulls(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.none() | typed(kind)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table: the types of its key and of its order; None has no order."""

    keys: tuple[pa.DataType, ...]
    order: pa.DataType | None


PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
CASES = {
    "decimals": Case(keys=(pa.decimal128(38, 5), pa.bool_()), order=pa.float64()),
    "moments": Case(keys=(pa.timestamp("us", "UTC"),), order=pa.timestamp("us")),
    "floats": Case(keys=(pa.float64(),), order=pa.decimal128(38, 10)),
    "days": Case(keys=(pa.date32(), pa.decimal128(12, 2)), order=pa.int64()),
    "structs": Case(keys=(PAIR,), order=PAIR),
    "texts": Case(keys=(pa.string(), pa.binary()), order=pa.string()),
    "without an order": Case(keys=(pa.float32(), pa.list_(pa.float64())), order=None),
}
DEEPEST = pa.struct([("d", pa.decimal128(38, 9)), ("t", pa.timestamp("us")), ("s", pa.string())])
VALUES = {
    "f": pa.float64(),
    "g": pa.float32(),
    "d": pa.decimal128(38, 9),
    "e": pa.decimal128(15, 3),
    "day": pa.date32(),
    "moment": pa.timestamp("us", "UTC"),
    "local": pa.timestamp("us"),
    "text": pa.string(),
    "bytes": pa.binary(),
    "whole": pa.int64(),
    "tags": pa.list_(pa.float64()),
    "counts": pa.map_(pa.string(), pa.date32()),
    "s": pa.struct([("x", pa.float32()), ("y", pa.decimal128(38, 2))]),
    "deep": pa.list_(pa.struct([("x.y", pa.date32()), ("m", pa.map_(pa.string(), DEEPEST))])),
}
FILTERED = ("f", "g", "d", "e", "day", "moment", "local", "text", "whole")


def same(value: Any) -> Any:
    """Return a value with one NaN and one zero, so that equal values are equal here."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, same(value[name])) for name in sorted(value))
    if isinstance(value, (list, tuple)):
        return tuple(same(item) for item in value)
    return value


def rank(value: Any) -> Any:
    """A value's place in Spark's order: nulls within structs come first, NaN comes last."""
    if isinstance(value, dict):
        return (1, tuple(rank(value[name]) for name in sorted(value)))
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (2,) if math.isnan(value) else (1, value + 0.0)
    return (1, value.encode() if isinstance(value, str) else value)


Row = dict[str, Any]


@functools.cache
def pool(kind: pa.DataType) -> list[Any]:
    """Return some values of a type, drawn once, as Hypothesis is slow."""
    return drawn(typed(kind), 60)


def history(seed: int, case: Case) -> list[list[Row]]:
    """Batches of rows of a few keys; no two of a key and batch have the same order."""
    choice = random.Random(seed)
    keys = [tuple(choice.choice(pool(kind)) for kind in case.keys) for _ in range(3)]
    batches: list[list[Row]] = []
    for _ in range(BATCHES):
        batch: dict[Any, Row] = {}
        for key in choice.choices(keys, k=choice.randrange(4)):
            row: Row = {f"key{number}": value for number, value in enumerate(key)}
            row["op"] = choice.choice("uud")
            place = [same(value) for value in key]
            if case.order is not None:
                row["o.r"] = choice.choice(pool(case.order))
                place.append(rank(row["o.r"]))
            for name, kind in VALUES.items():
                row[name] = choice.choice(pool(kind)) if choice.random() < 0.8 else None
            batch.setdefault(tuple(place), row)
        batches.append(list(batch.values()))
    return batches


def merged(histories: Sequence[list[list[Row]]], keys: Sequence[str]) -> Iterator[Row]:
    """The rows that are left, by the plainest of means."""
    for number, history in enumerate(histories):
        left: dict[Any, Row] = {}
        for batch in history:
            newest: dict[Any, Row] = {}
            for row in batch:
                key = tuple(same(row[name]) for name in keys)
                other = newest.get(key)
                if other is None or rank(row.get("o.r")) > rank(other.get("o.r")):
                    newest[key] = row
            for key, row in newest.items():
                kept = left.get(key)
                if kept is not None and rank(row.get("o.r")) < rank(kept.get("o.r")):
                    continue
                left.pop(key, None)
                if row["op"] != "d":
                    left[key] = row
        yield from ({"history": number} | row for row in left.values())


def canonical(rows: pa.Table) -> list[str]:
    """Rows as texts, in an order of their own; days and moments as numbers."""
    return sorted(repr(same(row)) for row in plain(rows).to_pylist())


def plain(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([field.with_type(plain_type(field.type)) for field in rows.schema]))


def arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    """Rows whose days and moments are numbers, with the types of a schema."""
    plain_schema = pa.schema([field.with_type(plain_type(field.type)) for field in schema])
    return pa.Table.from_pylist(list(rows), plain_schema).cast(schema)


@pytest.mark.parametrize("case", sample([*CASES.values()], 8), ids=CASES)
def test_the_table_has_what_a_dictionary_has(spark: SparkSession, table: Path, case: Case) -> None:
    found = [history(seed, case) for seed in drawn(st.integers(0, 2**64 - 1), SPARK_EXAMPLES)]
    keys = [f"key{number}" for number in range(len(case.keys))]
    types = {"history": pa.int64(), **dict(zip(keys, case.keys, strict=True)), "op": pa.string()}
    types |= {"o.r": case.order} if case.order is not None else {}
    schema = pa.schema(list((types | VALUES).items()))
    merging = DeltaUpsert(
        str(table), application="tests", keys=["history", *keys], delete_when="op = 'd'",
        order_by=None if case.order is None else "o.r",
    )  # fmt: skip
    for batch_id in range(BATCHES):
        rows = [
            {"history": number} | row
            for number, history in enumerate(found)
            for row in history[batch_id]
        ]
        merging.write(spark.createDataFrame(arrow(rows, schema)).repartition(2), batch_id)
    expected = canonical(arrow(list(merged(found, keys)), schema))
    opened = DeltaTable(str(table))
    stored = opened.to_pyarrow_table()
    assert canonical(stored.select(schema.names)) == expected
    assert canonical(read_table(spark, str(table)).toArrow().select(schema.names)) == expected
    in_duck = duckdb.read_parquet(opened.file_uris()).to_arrow_table()
    assert canonical(in_duck.select(schema.names).cast(schema)) == expected
    for name in FILTERED:
        check_filters(spark, opened, stored, name)
    compact(str(table))
    assert canonical(DeltaTable(str(table)).to_pyarrow_table().select(schema.names)) == expected


def check_filters(spark: SparkSession, opened: DeltaTable, stored: pa.Table, name: str) -> None:
    """Filters on statistics find what filters on all rows find."""
    column = stored[name]
    distinct = pc.unique(column.drop_null())
    frame = pl.from_arrow(stored.select([name]))
    assert isinstance(frame, pl.DataFrame)
    scanned = pl.scan_delta(opened.table_uri)
    for value in distinct.slice(0, 12):
        for compare in ("==", ">=", "<="):
            field = ds.field(name)
            wanted = {"==": field == value, ">=": field >= value, "<=": field <= value}[compare]
            there = opened.to_pyarrow_dataset().to_table(filter=wanted, columns=[name])
            assert there.num_rows == stored.filter(wanted).num_rows, (name, compare, value)
    for row in frame.drop_nulls().unique().head(6).iter_slices(1):
        literal = pl.lit(row[name])
        for asked in (
            pl.col(name) == literal.first(), pl.col(name) >= literal.first(),
            pl.col(name) <= literal.first(),
        ):  # fmt: skip
            left = frame.filter(asked)
            assert scanned.select(name).filter(asked).collect().height == left.height, (name, row)
