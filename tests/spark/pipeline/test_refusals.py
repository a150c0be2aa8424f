"""Refusals of a run that `validate` reports, each with its line; the sink itself is the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.base.document import Problem, in_order
from penstock.base.errors import PenstockError
from penstock.spark.pipeline.analysis import problems
from penstock.spark.pipeline.parsing import survey
from penstock.spark.pipeline.writing import application, writer
from penstock.spark.tables.commits import Commit
from penstock.spark.tables.location import (
    APPENDED_FEATURES,
    WRITTEN_FEATURES,
    UnwritableTable,
    check_writable,
)

pytestmark = pytest.mark.spark

FIELDS = (("id", "long"), ("name", "string"))
LONGS = {"type": "array", "elementType": "long", "containsNull": True}
APPEND = 'table = "t"'
UPSERT = 'table = "t"\nmode = "upsert"\nkeys = ["id"]'
CDC = 'table = "t"\nmode = "cdc"\nkeys = ["id"]\norder_by = "at"\ndelete_when = '
BOTH = (APPEND, UPSERT)
TEXT = """\
[source.a]
topic = "a"
format = "json"
schema = "id bigint, name string, at timestamp, list array<string>, map map<string, int>"

[step.s]
sql = '''{sql}'''
{step}

[sink.out]
from = "s"
{sink}

[errors]
on_invalid = "drop"
"""
READER_FEATURES = (
    "columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint",
    "vacuumProtocolCheck",
)  # fmt: skip


def delta_table(
    folder: Path,
    *fields: tuple[str, Any],
    nullable: bool = True,
    features: Sequence[str] = (),
    version: int = 7,
    configuration: Mapping[str, str] | None = None,
) -> None:
    """Write the log of an empty table, as any engine may have made it."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": version}
    if version == 7:
        readers = [feature for feature in features if feature in READER_FEATURES]
        protocol |= {"minReaderVersion": 3, "readerFeatures": readers}
        protocol["writerFeatures"] = list(features)
    columns = [
        {"name": name, "type": kind, "nullable": nullable, "metadata": {}} for name, kind in fields
    ]
    metadata = {
        "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": dict(configuration or {}),
        "createdTime": 0,
    }
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (log / f"{0:020}.json").write_text("\n".join(lines))


def made(*fields: tuple[str, Any], **more: Any) -> Callable[[Path], None]:
    return lambda folder: delta_table(folder, *fields, **more)


def committed_elsewhere(folder: Path) -> None:
    name = application(survey(folder.parent / "p.toml").spec, "a", "out")
    rows = pa.table({"id": [1], "name": ["x"]})
    commit = Commit(application=name, batch_id=3, query="another")
    write_deltalake(str(folder), rows, commit_properties=commit.properties())


def broken_log(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020}.json").write_text("nonsense")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pipeline that a run refuses, the key to report and the words."""

    says: str
    sql: str = "select id, name from a"
    sink: str = UPSERT
    where: str = "sink.out.table"
    table: Callable[[Path], None] | None = None
    step: str = ""
    by_sink: bool = field(default=True)
    """Whether the sink itself refuses it, rather than Spark or the reading of the file."""


def both(says: str, **more: Any) -> list[Case]:
    return [Case(says=says, sink=sink, **more) for sink in BOTH]


CASES = [
    # what is there
    *both("column name has type long in the table, but", table=made(FIELDS[0], ("name", "long"))),
    *both("no column name. Set add_columns = true to add it", table=made(FIELDS[0])),
    *both("lacks column more, which", table=made(*FIELDS, ("more", "long"), nullable=False)),
    *both(
        "column name differs only in case from the table's column Name",
        table=made(FIELDS[0], ("Name", "string")),
    ),
    *both(
        "column s.b has type integer in the table, but type string in",
        sql="select id, named_struct('b', name) as s from a",
        table=made(FIELDS[0], ("s", {"type": "struct", "fields": [
            {"name": "b", "type": "integer", "nullable": False, "metadata": {}}]})),
    ),
    *both(
        "column s has type struct<b: string, c: string> in the table, but type struct<b: string>",
        sql="select id, named_struct('b', name) as s from a",
        table=made(FIELDS[0], ("s", {"type": "struct", "fields": [
            {"name": name, "type": "string", "nullable": True, "metadata": {}} for name in "bc"]})),
    ),
    *both(
        "column l.element has type long in the table, but type string in",
        sql="select id, list as l from a",
        table=made(FIELDS[0], ("l", LONGS)),
    ),
    *both("uses identityColumns", table=made(*FIELDS, features=["identityColumns"])),
    *both("uses identityColumns", table=made(*FIELDS, version=6)),
    *both("uses a feature of tomorrow", table=made(*FIELDS, features=["a feature of tomorrow"])),
    *both(
        "olumn mapping",
        table=made(*FIELDS, features=["columnMapping"],
                   configuration={"delta.columnMapping.mode": "name"}),
    ),
    Case(says="uses deletionVectors", table=made(*FIELDS, features=["deletionVectors"])),
    Case(
        says="delta.appendOnly = true",
        table=made(*FIELDS, features=["appendOnly"], configuration={"delta.appendOnly": "true"}),
    ),
    Case(
        says="is partitioned by no column, but partition_by of the sink is ('name',)",
        sink=APPEND + '\npartition_by = "name"', table=made(*FIELDS),
    ),
    *both("committed with another checkpoint", table=committed_elsewhere, by_sink=False),
    *both("", table=broken_log, by_sink=False),
    *both("", table=lambda folder: folder.write_text(""), by_sink=False),
    # names
    *both("columns id and ID have the same name", sql="select id, name as ID from a"),
    *both("columns id and id have the same name", sql="select id, name as id from a"),
    *both(
        "column _Penstock_x begins with _penstock", sql="select id, name as _Penstock_x from a",
        where="step.s",
    ),
    *both(
        "column _record is string, but its name is reserved", by_sink=False,
        sql="select id, name as _record from a", where="step.s",
    ),
    # types
    *both("column x has type void, which Delta", sql="select id, null as x from a"),
    *both("column x has type interval", sql="select id, interval 1 day as x from a"),
    *both("column x has type interval", sql="select id, make_interval(1, 2) as x from a"),
    Case(says="map: is or has a map", sink=UPSERT.replace("id", "map"), sql="select id, map from a",
         where="sink.out.keys"),
    Case(says="x: is or has a map", sink=UPSERT.replace("id", "x"), where="sink.out.keys",
         sql="select id, array(map) as x from a"),
    Case(says="x: is or has a variant", sink=UPSERT + '\norder_by = "x"', where="sink.out.order_by",
         sql="select id, parse_json(name) as x from a"),
    Case(says="x: is string collate", sink=UPSERT.replace("id", "x"), where="sink.out.keys",
         sql="select name collate UTF8_LCASE as x from a"),
    Case(says="x: is string collate", sink=UPSERT + '\norder_by = "x"', where="sink.out.order_by",
         sql="select id, name collate UTF8_LCASE as x from a"),
    Case(says="id is one of the keys", sink=UPSERT + '\norder_by = "id"', where="sink.out.order_by",
         by_sink=False),
    Case(says="leaves no column for the", sink=APPEND + '\npartition_by = ["id", "name"]',
         where="sink.out.partition_by"),
    Case(says="list: has type array<string>", sink=APPEND + '\npartition_by = "list"',
         sql="select id, list from a", where="sink.out.partition_by"),
    # expressions
    Case(says="boolean", sink=CDC + '"name"', sql="select id, name, at from a",
         where="sink.out.delete_when"),
    Case(says="WHERE clause", sink=CDC + '"max(id) > 1"', sql="select id, name, at from a",
         where="sink.out.delete_when"),
    Case(says="column key has type bigint", sink='topic = "t"\nkey = "id"', where="sink.out.topic",
         by_sink=False),
    Case(says="column partition has type bigint", sink='topic = "t"\npartition = "id"',
         where="sink.out.topic", by_sink=False),
    Case(says="column value has type map", sink='topic = "t"\nvalue = "map"', by_sink=False,
         sql="select map from a", where="sink.out.topic"),
    # places
    Case(says="cannot open paths with '['", sink=UPSERT.replace('"t"', '"t[1]"')),
    # streams
    Case(says="watermark", sql="select id, count(*) as n from a group by id", where="step.s",
         by_sink=False),
]  # fmt: skip


def validated(path: Path, spark: SparkSession) -> tuple[Problem, ...]:
    """The problems that `penstock pipeline validate` shows."""
    found = survey(path)
    more = problems(found.spec, spark, reported=found.problems, unsure=found.unsure)
    return in_order((*found.problems, *more), path)


def rows_of(spark: SparkSession, sql: str) -> DataFrame:
    """Return one row of a step."""
    spark.sql(
        "select 1L as id, 'x' as name, timestamp'2026-01-01' as at, array('a') as list,"
        " map('a', 1) as map"
    ).createOrReplaceTempView("a")
    return spark.sql(sql)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.says}-{case.sink[:25]}")
def test_validate_says_what_a_run_refuses(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    path = tmp_path / "p.toml"
    path.write_text(TEXT.format(sql=case.sql, sink=case.sink, step=case.step))
    if case.table is not None:
        case.table(tmp_path / "t")
    found = validated(path, spark)
    assert [problem.where for problem in found] == [case.where], found
    assert case.says in str(found[0])
    *table, key = case.where.split(".")
    lines = path.read_text().splitlines()
    if f"[{case.where}]" in lines:
        line = lines.index(f"[{case.where}]")
    else:
        start = lines.index(f"[{'.'.join(table)}]")
        line = next(at for at in range(start, len(lines)) if lines[at].startswith(f"{key} ="))
    assert found[0].line == line + 1
    if case.by_sink:
        spec = survey(path).spec
        rows = rows_of(spark, case.sql)
        with pytest.raises((PenstockError, PySparkException, DeltaError, CommitFailedError)):
            writer(spec, "a", spec.sinks["out"])(rows, 0).commit()


@pytest.mark.parametrize("feature", sorted({
    *APPENDED_FEATURES, "allowColumnDefaults", "columnMapping", "rowTracking", "typeWidening",
    "domainMetadata", "icebergCompatV1", "icebergCompatV2", "clustering", "vacuumProtocolCheck",
    "inCommitTimestamp", "identityColumns",
}))  # fmt: skip
def test_features_are_refused_where_deltalake_refuses_them(tmp_path: Path, feature: str) -> None:
    """The oracle is `deltalake`, which merges into the table or does not."""
    delta_table(tmp_path / "t", *FIELDS, features=[feature])
    opened = DeltaTable(str(tmp_path / "t"))
    merged = True
    try:
        merging = opened.merge(
            pa.table({"id": [1], "name": ["x"]}), "new.id = old.id", "new", "old"
        )
        merging.when_not_matched_insert_all().execute()
    except (CommitFailedError, DeltaError):
        merged = False
    if feature in WRITTEN_FEATURES:
        assert merged
        check_writable(opened, "t", removes=True)
    else:
        with pytest.raises(UnwritableTable, match=feature):
            check_writable(opened, "t", removes=True)
