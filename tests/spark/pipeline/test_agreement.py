"""Generated sinks and tables: `validate` reports a problem just where the sink refuses its rows.

The oracle is the sink itself, and in it Spark and `deltalake`, which write one row or do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.base.errors import PenstockError
from penstock.spark.pipeline.parsing import survey
from penstock.spark.pipeline.writing import writer
from tests.formats.drawn import SPARK_EXAMPLES, drawn
from tests.spark.pipeline.test_refusals import LONGS, TEXT, delta_table, rows_of, validated

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3_600)]

TYPES: Final[dict[str, Any]] = {
    "id": "long",
    "int(id)": "integer",
    "name": "string",
    "double(id)": "double",
    "cast(id as decimal(10,2))": "decimal(10,2)",
    "at": "timestamp",
    "date(at)": "date",
    "id = 1": "boolean",
    "binary(name)": "binary",
    "array(id)": LONGS,
    "named_struct('b', name)": {
        "type": "struct",
        "fields": [{"name": "b", "type": "string", "nullable": True, "metadata": {}}],
    },
    "null": "string",
    "interval 1 day": "long",
}
"""Delta's type of the column that each expression makes; the last two make none."""
NAMES: Final = ("id", "name", "ID", "a.b", "x y", "_error", "day")


@dataclass(frozen=True)
class Drawn:
    """A step's columns, a sink's keys and the fields of the table that is there."""

    sql: str
    sink: str
    table: tuple[tuple[str, Any], ...] | None
    nullable: bool


@st.composite
def cases(draw: st.DrawFn) -> Drawn:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    columns = {name: draw(st.sampled_from([*TYPES])) for name in names}
    listed = ", ".join(f"{expression} as `{name}`" for name, expression in columns.items())
    sink = f'table = "t"\nevolve = "{draw(st.sampled_from(["add", "none"]))}"'
    if draw(st.booleans()):
        keys = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        sink += f'\nmode = "upsert"\nkeys = {keys}'
        if draw(st.booleans()):
            sink += f'\norder_by = "{draw(st.sampled_from(names))}"'
    elif draw(st.booleans()):
        sink += f'\npartition_by = "{draw(st.sampled_from(names))}"'
    table = None
    if draw(st.booleans()):
        kinds = {name: TYPES[expression] for name, expression in columns.items()}
        kept = [name for name in names if draw(st.integers(0, 4))]
        if not draw(st.integers(0, 3)):
            kinds["more"] = "long"
            kept.append("more")
        table = tuple(
            (name, draw(st.sampled_from([*[kinds[name]] * 5, "long", "string"]))) for name in kept
        )
    return Drawn(f"select {listed} from a", sink, table or None, draw(st.integers(0, 3)) > 0)


def disagreement(spark: SparkSession, folder: Path, case: Drawn) -> str | None:
    folder.mkdir()
    path = folder / "p.toml"
    path.write_text(TEXT.format(sql=case.sql, sink=case.sink, step=""))
    if case.table is not None:
        delta_table(folder / "t", *case.table, nullable=case.nullable)
    read = survey(path)
    found = validated(path, spark)
    if read.problems:
        return None
    try:
        writer(read.spec, "a", read.spec.sinks["out"])(rows_of(spark, case.sql), 0).commit()
    except (PenstockError, PySparkException, DeltaError, CommitFailedError) as refused:
        return None if found else f"{case}: {refused}"
    return f"{case}: {found}" if found else None


@pytest.mark.parametrize(
    "count", [SPARK_EXAMPLES // 3, pytest.param(3 * SPARK_EXAMPLES, marks=pytest.mark.long)]
)
def test_validate_reports_what_the_sink_refuses(
    spark: SparkSession, tmp_path: Path, count: int
) -> None:
    found = [
        disagreement(spark, tmp_path / str(number), case)
        for number, case in enumerate(drawn(cases(), count))
    ]
    assert [line for line in found if line] == []
