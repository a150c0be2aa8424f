"""Rules that tables have for their rows, which appends keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.spark import DeltaSink
from penstock.spark.errors import TableMismatch
from penstock.spark.tables import compact, read_table
from penstock.spark.tables.location import UnwritableTable
from penstock.spark.tables.rules import rules_of
from tests.formats.drawn import SPARK_EXAMPLES, drawn
from tests.spark.tables.foreign_tables import foreign

pytestmark = pytest.mark.spark

INNER: Final = pa.struct([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
FORBIDDING: Final = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("inner", INNER),
        pa.field("list", pa.list_(pa.field("element", INNER, nullable=False))),
        pa.field("held", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
    ]
)
inners = st.none() | st.fixed_dictionaries(
    {"a": st.none() | st.integers(0, 9), "b": st.none() | st.just("b")}
)
rows: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(0, 9),
        "inner": inners,
        "list": st.none() | st.lists(inners, max_size=2),
        "held": st.none()
        | st.dictionaries(st.text("ab"), st.none() | st.integers(0, 9), max_size=2),
    }
)


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    return kind


def allowed(row: dict[str, Any]) -> bool:
    """Whether a batch may have the row; structs with parts that are never null are not either."""

    def inner(value: dict[str, Any] | None) -> bool:
        return value is not None and value["a"] is not None

    return (
        row["id"] is not None
        and inner(row["inner"])
        and all(inner(value) for value in row["list"] or ())
        and all(value is not None for value in (row["held"] or {}).values())
    )


def test_forbidden_nulls_are_refused_at_any_depth(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of one kind each: every row that is broken has a batch that is refused for it."""
    loose = pa.schema([pa.field(field.name, nullable(field.type)) for field in FORBIDDING])
    given = drawn(rows, SPARK_EXAMPLES)
    table = tmp_path / "table"
    write_deltalake(table, FORBIDDING.empty_table())
    frame = spark.createDataFrame(pa.Table.from_pylist(
        [{**row, "held": row["held"] and list(row["held"].items())} for row in given], loose
    ))  # fmt: skip
    broken = " or ".join(f"coalesce({rule.broken}, false)" for rule in rules_of(DeltaTable(table)))
    found = [row.broken for row in frame.selectExpr(f"{broken} as broken").collect()]
    assert found == [not allowed(row) for row in given]
    sink = DeltaSink(str(table), application="a")
    with pytest.raises(TableMismatch, match="column id or a nested part of it must not be null"):
        sink.write(frame, 0)
    good = frame.where(f"not ({broken})")
    assert sink.write(good, 0).rows == sum(map(allowed, given))
    assert sink.write(good, 1).version == 2
    before = sorted(map(repr, DeltaTable(table).to_pyarrow_table().to_pylist()))
    assert compact(str(table)) is not None
    assert sorted(map(repr, DeltaTable(table).to_pyarrow_table().to_pylist())) == before
    assert read_table(spark, str(table)).count() == len(before)


def test_checks_are_kept(spark: SparkSession, table: Path) -> None:
    """A null condition breaks a check, as Delta's own writer has it."""
    write_deltalake(table, pa.table({"id": [1], "price": [1.0]}))
    opened = DeltaTable(table)
    opened.alter.add_constraint({"positive": "price > 0"})
    sink = DeltaSink(str(table), application="a")
    for price in ("-1D", "cast(null as double)"):
        with pytest.raises(TableMismatch, match=r"positive is price > 0, but 1 rows of the batch"):
            sink.write(spark.sql(f"select 2L as id, {price} as price"), 0)
    with pytest.raises(TableMismatch, match="positive"):
        sink.write(spark.sql("select 2L as id"), 0)
    assert sink.write(spark.sql("select 2L as id, double('nan') as price"), 0).rows == 1
    assert {path.name[:12] for path in (table / "batches").iterdir()} == {"000000000000"}
    assert len(list((table / "batches").iterdir())) == 1  # refused ones leave nothing
    assert DeltaTable(table).to_pyarrow_table().num_rows == 2


def test_a_check_that_came_meanwhile_refuses_the_batch(spark: SparkSession, table: Path) -> None:
    write_deltalake(table, pa.table({"id": [1]}))
    sink = DeltaSink(str(table), application="a")
    staged = sink.stage(spark.sql("select -2L as id"), 0)
    DeltaTable(table).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(TableMismatch, match="its constraints changed"):
        staged.commit()
    assert DeltaTable(table).to_pyarrow_table().num_rows == 1


def test_generated_columns_are_computed_or_compared(spark: SparkSession, table: Path) -> None:
    made = {"delta.generationExpression": "cast(at as date)"}
    columns: list[dict[str, Any]] = [
        {"name": "at", "type": "timestamp"},
        {"name": "day", "type": "date", "metadata": made},
    ]
    foreign(table, columns, ["generatedColumns"])
    sink = DeltaSink(str(table), application="a")
    sink.write(spark.sql("select timestamp'2026-01-02 03:04:05' as at"), 0)
    assert [str(day) for day in DeltaTable(table).to_pyarrow_table()["day"]] == ["2026-01-02"]
    with pytest.raises(TableMismatch, match="column day is generated as cast"):
        sink.write(
            spark.sql("select timestamp'2026-01-02 03:04:05' as at, date'2026-01-03' day"), 1
        )


def test_invariants_are_kept(spark: SparkSession, table: Path) -> None:
    rule = json.dumps({"expression": {"expression": "id > 3"}})
    foreign(
        table,
        [{"name": "id", "type": "long", "metadata": {"delta.invariants": rule}}],
        ["invariants"],
    )
    sink = DeltaSink(str(table), application="a")
    with pytest.raises(TableMismatch, match="invariant id > 3, but 2 rows"):
        sink.write(spark.range(2, 6), 0)
    assert sink.write(spark.range(4, 6), 0).rows == 2


def test_metadata_of_columns_stays_with_its_table(spark: SparkSession, tmp_path: Path) -> None:
    """A rule of a column of one table is none of another into which its rows are written."""
    made = {"delta.generationExpression": "id + 1"}
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "next", "type": "long", "metadata": made},
    ]
    foreign(tmp_path / "one", columns, ["generatedColumns"])
    DeltaSink(str(tmp_path / "one"), application="a").write(spark.range(3), 0)
    rows = read_table(spark, str(tmp_path / "one"))
    DeltaSink(str(tmp_path / "two"), application="a").write(rows, 0)
    two = DeltaTable(tmp_path / "two")
    assert [field.metadata for field in two.schema().fields] == [{}, {}]
    assert sorted(two.to_pyarrow_table()["next"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize("feature", ["identityColumns", "rowTracking", "allowColumnDefaults"])
def test_what_cannot_be_kept_is_refused(spark: SparkSession, table: Path, feature: str) -> None:
    foreign(table, [{"name": "id", "type": "long"}], [feature, "domainMetadata"])
    with pytest.raises(UnwritableTable, match=feature):
        DeltaSink(str(table), application="a").write(spark.range(3), 0)
    with pytest.raises((UnwritableTable, DeltaError), match=feature):
        compact(str(table))
