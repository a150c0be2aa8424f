"""Change events in a table: current rows and versions, in any order, against SQLite and DuckDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from penstock.formats.json.debezium import CHANGE
from penstock.lake.commits import LakeTable
from penstock.lake.target import LakeMismatch, LakeUnavailable
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables import compact
from penstock.spark.tables.changes import (
    CARRIED,
    DELETED,
    END,
    REMEMBERED,
    SEQUENCE,
    SEQUENCE_SQL,
    START,
    DeltaChanges,
)
from penstock.spark.tables.iceberg import IcebergChanges
from tests.lake.oracle import assert_files_once, stored, target
from tests.spark.tables.histories import COLUMNS, EPOCH, EVENT, Database, Event

pytestmark = pytest.mark.spark

RECEIVED = pa.schema(
    [
        *(EVENT.field(name) for name in COLUMNS),
        *(EVENT.field(name) for name in ("op", "lsn", "at")),
        ("offset", pa.int64()), ("unchanged", pa.list_(pa.string())),
    ]
)  # fmt: skip
ORDERS = {
    "in order": {"apart": 0, "again": 0.0},
    "repeated": {"apart": 0, "again": 0.3},
    "out of order": {"apart": 300, "again": 0.05},
    "far out of order": {"apart": 5_000, "again": 0.05},
}


def frame(spark: SparkSession, events: Iterable[Event], first: int = 0) -> DataFrame:
    """A view of change events, as a source makes it."""
    rows = [
        dict(
            event.sent, op=event.op, lsn=event.lsn, at=event.at, offset=offset,
            unchanged=event.unchanged or None,
        )
        for offset, event in enumerate(events, first)
    ]  # fmt: skip
    sequence = SEQUENCE_SQL.format(lsn="lsn", offset="offset")
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=RECEIVED)).selectExpr(
        *COLUMNS, f"struct(op, {sequence} as sequence, at, unchanged) as {CHANGE}"
    )


@dataclass(frozen=True)
class Place:
    """A Delta or an Iceberg table, and ways to write and to read it."""

    kind: str
    folder: Path

    @property
    def table(self) -> Path:
        """The directory of a Delta table."""
        return self.folder / "table"

    def sink(self, keys: Sequence[str] = ("id",), **options: Any) -> DeltaChanges | IcebergChanges:
        if self.kind == "delta":
            return DeltaChanges(str(self.table), application="tests", keys=keys, **options)
        lake = self.lake(
            partition_by=("bucket(2, id)",), add_columns=options.pop("add_columns", False)
        )
        return IcebergChanges(lake, "tests", keys=keys, **options)

    def lake(self, name: str = "db.orders", **options: Any) -> LakeTable:
        return LakeTable(target(self.folder, name), application="tests", **options)

    def read(self, *columns: str) -> list[dict[str, Any]]:
        order = [(name, "ascending") for name in ("region", "id", SEQUENCE)]
        found = self._stored().sort_by(order).select(columns or COLUMNS)
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def deleted(self) -> pa.Table:
        """The deletes that the sink remembers."""
        if self.kind == "delta":
            return DeltaTable(str(self.table / DELETED)).to_pyarrow_table()
        return stored(self.lake(f"db.orders{DELETED}")).scan().to_arrow()

    def log(self) -> Path:
        """A directory without which no batch can be committed."""
        if self.kind == "delta":
            return self.table / "_delta_log"
        return Path(stored(self.lake()).location().removeprefix("file://")) / "data"

    def _stored(self) -> pa.Table:
        if self.kind == "delta":
            return DeltaTable(str(self.table)).to_pyarrow_table()
        assert_files_once(self.lake())
        return stored(self.lake()).scan().to_arrow()


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def write(sink: DeltaChanges | IcebergChanges, batch: DataFrame, batch_id: int) -> bool:
    """Apply a batch; return whether the table did not have it yet."""
    return not sink.stage(batch, batch_id).commit().replayed


def apply(
    spark: SparkSession,
    sink: DeltaChanges | IcebergChanges,
    events: Sequence[Event],
    *,
    batches: int,
) -> None:
    """Apply events in batches that do not part a delete from the create with its log position."""
    size = len(events) // batches + 1
    at = 0
    for batch_id in range(batches):
        end = min(len(events), max(at, (batch_id + 1) * size))
        while 0 < end < len(events) and events[end].lsn == events[end - 1].lsn:
            end += 1
        write(sink, frame(spark, events[at:end], at), batch_id)
        at = end
    assert at == len(events)


def versions(rows: Iterable[dict[str, Any]], begins: str, ends: str) -> list[str]:
    return sorted(repr([*(row[name] for name in (*COLUMNS, begins, ends))]) for row in rows)


def changed(op: str, number: int, lsn: int, name: str | None = "x", **more: Any) -> Event:
    row = {"region": "eu", "id": number, "name": name, "body": "b", "note": "n"}
    return Event(op=op, lsn=lsn, at=EPOCH, row=row, sent=row | more.pop("sent", {}), **more)


@pytest.mark.parametrize("order", ["in order", "out of order"])
@pytest.mark.parametrize("history", [False, True], ids=["rows", "versions"])
def test_a_history_gives_the_rows_of_the_database(
    spark: SparkSession, place: Place, order: str, history: bool
) -> None:
    changes = 10_000 if place.kind == "delta" else 3_000
    check_history(spark, place, seed=7, order=order, history=history, changes=changes, batches=4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "seed"),
    [*(("delta", seed) for seed in range(20)), *(("iceberg", seed) for seed in range(5))],
    indirect=["place"],
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("history", [False, True], ids=["rows", "versions"])
def test_many_histories_give_the_rows_of_the_database(
    spark: SparkSession, place: Place, order: str, history: bool, seed: int
) -> None:
    check_history(
        spark, place, seed=seed, order=order, history=history, changes=12_000, batches=5 + seed
    )


def check_history(
    spark: SparkSession, place: Place, *, seed: int, order: str, history: bool, changes: int,
    batches: int,
) -> None:  # fmt: skip
    database = Database(seed, keys=400, moved_toast=order == "in order")
    database.run(changes)
    ops = {event.op for event in database.events}
    assert ops == {"c", "r", "u", "d", "t"}
    events = list(database.arriving(**ORDERS[order]))
    sink = place.sink(("region", "id"), history=history, rewrite_versions=3)
    apply(spark, sink, events, batches=batches)
    if not history:
        assert place.read() == database.rows()
        return
    expected = database.versions()
    assert len(expected) > changes / 2
    found = place.read(*COLUMNS, START, END)
    assert versions(found, START, END) == versions(expected, "begins", "ends")
    current = [{name: row[name] for name in COLUMNS} for row in found if row[END] is None]
    assert current == database.rows()


def test_a_late_change_restores_no_deleted_row_and_fills_only_what_was_unchanged(
    spark: SparkSession, place: Place
) -> None:
    sink = place.sink()
    batches = [
        [changed("c", 1, 10), changed("c", 2, 10), changed("c", 3, 11)],
        [changed("d", 1, 30), changed("u", 2, 30, "y", sent={"body": None}, unchanged=("body",))],
        [changed("u", 1, 20, "late"), changed("u", 2, 20, "late", sent={"body": "late"})],
    ]
    for batch_id, events in enumerate(batches):
        write(sink, frame(spark, events, batch_id * 10), batch_id)
    found = {row["id"]: (row["name"], row["body"], row["note"]) for row in place.read()}
    assert found == {2: ("y", "late", "n"), 3: ("x", "b", "n")}
    carried = {row["id"]: row[CARRIED] for row in place.read("id", CARRIED)}
    assert carried[2] == [f"{20:016X}-{21:016X} body"]
    write(sink, frame(spark, [changed("c", 1, 40, "back")], 40), 3)
    assert {row["id"] for row in place.read()} == {1, 2, 3}


def test_a_truncation_removes_rows_of_keys_that_no_later_batch_has(
    spark: SparkSession, place: Place
) -> None:
    sink = place.sink()
    write(sink, frame(spark, [changed("c", number, 10) for number in range(50)]), 0)
    write(sink, frame(spark, [changed("c", 60, 30)], 100), 1)
    write(sink, frame(spark, [changed("t", 0, 20, sent=dict.fromkeys(COLUMNS))], 200), 2)
    assert [row["id"] for row in place.read()] == [60]
    write(sink, frame(spark, [changed("c", 5, 15), changed("c", 6, 25)], 300), 3)
    assert [row["id"] for row in place.read()] == [6, 60]


def test_deletes_are_forgotten_after_some_days(spark: SparkSession, place: Place) -> None:
    sink = place.sink(rewrite_versions=2)
    write(sink, frame(spark, [changed("c", number, 10) for number in range(4)]), 0)
    for batch_id, number in enumerate(range(3), 1):
        delete = changed("d", number, 20 + number)
        later = Event(
            op="d", lsn=delete.lsn, at=EPOCH + number * REMEMBERED, row=delete.row, sent=delete.sent
        )
        write(sink, frame(spark, [later], 100 * batch_id), batch_id)
    kept = place.deleted()
    assert sorted(kept["id"].to_pylist()) == [1, 2]
    assert [row["id"] for row in place.read()] == [3]


@pytest.mark.parametrize("history", [False, True], ids=["rows", "versions"])
def test_a_batch_that_ended_between_its_two_commits_is_applied_once(
    spark: SparkSession, place: Place, history: bool
) -> None:
    """The first attempt remembers its deletes, and then cannot write the table."""
    sink = place.sink(history=history)
    write(sink, frame(spark, [changed("c", 1, 10), changed("c", 2, 10)]), 0)
    second = frame(spark, [changed("d", 1, 20), changed("u", 2, 20, "new")], 10)
    staged = sink.stage(second, 1)
    log = place.log()
    hidden = log.rename(log.with_name("_hidden"))
    log.write_text("no directory")
    with pytest.raises((OSError, LakeUnavailable), match=log.name):
        staged.commit()
    assert place.deleted()["id"].to_pylist() == [1]
    log.unlink()
    hidden.rename(log)
    assert write(sink, second, 1)
    assert not write(sink, second, 1)
    assert place.deleted().num_rows == 1
    assert [row["name"] for row in place.read()] == (["x", "x", "new"] if history else ["new"])


def test_a_compaction_in_between_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    place = Place("delta", tmp_path)
    sink = place.sink(history=True)
    for batch_id in range(4):
        events = [changed("u", 1, 10 * batch_id + 1, f"v{batch_id}")]
        write(sink, frame(spark, events, batch_id), batch_id)
        compact(str(place.table))
    assert [row["name"] for row in place.read()] == ["v0", "v1", "v2", "v3"]


def test_wrong_batches_are_rejected(spark: SparkSession, place: Place) -> None:
    sink = place.sink(batch_rows_max=3)
    rows = frame(spark, [changed("c", number, 10) for number in range(4)])
    with pytest.raises(TableMismatch, match="more than 3 changes"):
        write(sink, rows, 0)
    with pytest.raises(TableMismatch, match="key column id is null"):
        write(sink, frame(spark, [changed("c", 1, 10, sent={"id": None})]), 0)
    nothing = rows.limit(1).selectExpr("* except (_change)", "if(id > 9, _change, null) as _change")
    with pytest.raises(TableMismatch, match="_change is null"):
        write(sink, nothing, 0)
    with pytest.raises(InvalidOption, match="keys of exact types"):
        sink.check(rows.withColumn("id", rows["id"].cast("double")))
    with pytest.raises(TableMismatch, match="__START_AT"):
        place.sink(history=True).check(rows.withColumn(START, rows["name"]))
    with pytest.raises((TableMismatch, LakeMismatch), match="column id is not in the"):
        sink.check(rows.drop("id"))


def test_new_columns_are_added_on_request(spark: SparkSession, place: Place) -> None:
    sinks = [place.sink(add_columns=added) for added in (False, True)]
    numbers = itertools.count()
    write(sinks[0], frame(spark, [changed("c", 1, 10), changed("c", 2, 10)]), next(numbers))
    wider = frame(spark, [changed("u", 1, 20, sent={"body": None}, unchanged=("body",))], 10)
    wider = wider.selectExpr("* except (_change)", "7 as more", "_change")
    with pytest.raises((TableMismatch, LakeMismatch), match=r"no column .*more"):
        write(sinks[0], wider, 1)
    write(sinks[1], wider, next(numbers))
    assert [(row["body"], row["more"]) for row in place.read("body", "more")] == [
        ("b", 7),
        ("b", None),
    ]
