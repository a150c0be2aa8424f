"""Upserts: one row per key, the latest; removals; each batch once; bounds with clear words."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pytest
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.spark import DeltaUpsert
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.tables import compact, read_table
from penstock.spark.tables.commits import Commit
from penstock.spark.tables.files import codec_of
from penstock.spark.tables.upsert import (
    LARGE,
    REMOVES,
    WHOLE_ROW_BYTES_MAX,
)
from tests.spark.conftest import Topic
from tests.spark.tables.test_newest import VALUES

pytestmark = pytest.mark.spark

LONG = {
    pa.decimal128(38, 0): (Decimal(2**53 + 1), Decimal(10**37 + 1)),
    pa.string(): ("x" * 32, "x" * 33, "x" * 64, "é" * 40, "\U0010ffff" * 40),
    pa.binary(): (b"\xff" * 40, b"x" * 70),
    pa.timestamp("us"): (datetime.datetime(2026, 1, 1, 1, 2, 3, 123_456),),
}
"""What files' statistics round or cut."""
SCHEMA = "id long, name string, at long, op string"


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 100, 1, 2).select(
        "id",
        F.concat(F.lit("a b:"), (F.col("id") % 2).cast("string")).alias("word"),
        F.when(F.col("id") > 10, F.col("id") / 2).alias("half"),
    )


def changes(spark: SparkSession, *given: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(given), SCHEMA)


def upsert(table: Path, **more: object) -> DeltaUpsert:
    given = {"keys": ["id"], "order_by": "at", "delete_when": "op = 'd'"} | more
    return DeltaUpsert(str(table), application="tests", **given)  # type: ignore[arg-type]


def kept(table: Path) -> list[tuple[object, ...]]:
    read = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["name"], row["at"]) for row in read)


def test_upserts_keep_the_latest_row_once(rows: DataFrame, table: Path) -> None:
    merging = DeltaUpsert(str(table), application="tests", keys=["id", "word"])
    merging.write(rows, 0)
    newer = (
        rows.where("id >= 98")
        .withColumn("half", F.lit(-1.0))
        .unionByName(rows.where("id < 2").withColumn("id", F.col("id") + 1_000))
    )
    assert merging.write(newer, 1).rows == 4
    assert merging.write(newer.withColumn("half", F.lit(-2.0)), 1).replayed
    read = DeltaTable(str(table)).to_pyarrow_table()
    assert read.num_rows == 102
    assert pc.sum(pc.equal(read["half"], -1.0)).as_py() == 2
    assert not pc.any(pc.equal(read["half"], -2.0)).as_py()


def test_merged_files_have_the_codec_that_was_asked_for(spark: SparkSession, table: Path) -> None:
    files = pa_fs.LocalFileSystem()
    for batch_id in range(2):
        upsert(table, codec="zstd").write(changes(spark, (1, "a", batch_id, "u")), batch_id)
        assert {codec_of(files, uri) for uri in DeltaTable(str(table)).file_uris()} == {"zstd"}


def test_upserts_are_bounded(rows: DataFrame, table: Path) -> None:
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], batch_rows_max=10)
    with pytest.raises(TableMismatch, match="more than 10 rows"):
        merging.write(rows, 0)
    with pytest.raises(InvalidOption, match="keys"):
        DeltaUpsert(str(table), application="tests", keys=[])


def test_the_latest_change_of_a_key_wins(spark: SparkSession, table: Path) -> None:
    merging = upsert(table)
    first = changes(
        spark,
        (1, "one", 1, "c"), (1, "uno", 3, "u"), (1, "eins", 2, "u"),
        (2, "two", 1, "c"), (2, None, 2, "d"),
        (3, "three", 9, "c"),
    )  # fmt: skip
    assert merging.write(first, 0).rows == 3
    assert kept(table) == [(1, "uno", 3), (3, "three", 9)]
    second = changes(
        spark,
        (1, "older", 2, "u"),  # loses against the table
        (3, "older", 8, "d"),  # a removal older than the row loses too
        (4, "four", 1, "c"), (4, "vier", 2, "u"),
        (5, None, 1, "d"),  # removes what is not there
    )  # fmt: skip
    merging.write(second, 1)
    assert kept(table) == [(1, "uno", 3), (3, "three", 9), (4, "vier", 2)]
    third = changes(spark, (1, None, 4, "d"), (3, "same", 9, "u"), (4, "back", 3, None))
    merging.write(third, 2)
    assert kept(table) == [(3, "same", 9), (4, "back", 3)]
    assert merging.write(third, 2).replayed
    merging.write(changes(spark, (1, "again", 5, "c")), 3)
    assert kept(table) == [(1, "again", 5), (3, "same", 9), (4, "back", 3)]


def test_of_a_removal_and_a_row_of_the_same_order_the_removal_wins(
    spark: SparkSession, table: Path
) -> None:
    merging = upsert(table)
    merging.write(changes(spark, (1, "one", 1, "c"), (2, "two", 1, "c")), 0)
    merging.write(changes(spark, (1, None, 2, "d"), (1, "tie", 2, "u")), 1)
    assert kept(table) == [(2, "two", 1)]


def test_an_older_row_after_a_removal_is_new_as_documented(
    spark: SparkSession, table: Path
) -> None:
    merging = upsert(table)
    merging.write(changes(spark, (1, "one", 1, "c"), (2, "two", 1, "c")), 0)
    merging.write(changes(spark, (1, None, 5, "d")), 1)
    merging.write(changes(spark, (1, "late", 3, "u")), 2)
    assert kept(table) == [(1, "late", 3), (2, "two", 1)]


def test_removals_alone_make_an_empty_table(spark: SparkSession, table: Path) -> None:
    assert upsert(table).write(changes(spark, (1, None, 1, "d")), 0).version == 0
    assert kept(table) == []


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ([(None, "x", 1, "c")], {}, "key column id is null"),
        ([(1, "x", 1, "c"), (1, "y", None, "u")], {}, "order column at is null"),
        ([(1, "x", 1, "c"), (1, "y", 2, "u")], {"order_by": None}, "1 more rows than"),
        ([(1, "x", 1, "c")], {"keys": ["nope"]}, "column nope is not in the batch"),
        ([(1, "x", 1, "c")], {"order_by": "nope"}, "column nope is not in the batch"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    spark: SparkSession,
    table: Path,
    given: Sequence[tuple[object, ...]],
    more: dict[str, object],
    said: str,
) -> None:
    with pytest.raises(TableMismatch, match=said):
        upsert(table, **more).write(changes(spark, *given), 0)
    assert not table.exists()


def test_the_order_is_no_key(table: Path) -> None:
    with pytest.raises(InvalidOption, match="must not be one of the key columns"):
        upsert(table, order_by="id")


@pytest.mark.long
def test_changes_of_a_topic_by_offset(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    topic.write(200)
    table = tmp_path / "table"
    merging = DeltaUpsert(
        str(table), application="cdc", keys=["key"], order_by="offset",
        delete_when="value = 'value 195'",
    )  # fmt: skip

    def run(checkpoint: str) -> None:
        query = (
            topic.stream(maxRecordsPerTrigger=60)
            .writeStream.foreachBatch(merging)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("first")
    read = DeltaTable(str(table)).to_pyarrow_table().sort_by("key")
    assert read["key"].to_pylist() == [b"k%d" % number for number in range(10) if number != 5]
    last = [b"value %d" % number for number in range(190, 200) if number != 195]
    assert read["value"].to_pylist() == last
    with pytest.raises(StreamingQueryException, match="committed with another checkpoint"):
        run("second")


def test_a_compaction_beside_it_does_no_harm(spark: SparkSession, table: Path) -> None:

    class Late(DeltaUpsert):
        compactions = 0

        def _merge(self, table_: DeltaTable, *more: object) -> None:
            if self.compactions == 0:
                self.compactions += 1
                done = compact(table_.table_uri, target_bytes=1 << 20)
                assert done is not None
                assert done.files_removed == 2
            super()._merge(table_, *more)  # type: ignore[arg-type]

    late = Late(str(table), application="tests", keys=["id"], order_by="at")
    late.compactions = 1
    late.write(changes(spark, (1, "one", 1, "c")), 0)
    late.write(changes(spark, (2, "two", 1, "c")), 1)
    late.compactions = 0
    late.write(changes(spark, (1, "uno", 2, "u"), (2, "due", 2, "u"), (3, "tre", 1, "c")), 2)
    assert kept(table) == [(1, "uno", 2), (2, "due", 2), (3, "tre", 1)]


def test_an_upsert_fails_after_too_many_conflicts(spark: SparkSession, table: Path) -> None:
    class Unlucky(DeltaUpsert):
        tries = 0

        def _merge(self, *more: object) -> None:
            self.tries += 1
            raise CommitFailedError("another writer was faster")

    unlucky = Unlucky(str(table), application="tests", keys=["id"])
    unlucky.write(changes(spark, (1, "one", 1, "c")), 0)
    with pytest.raises(CommitFailedError, match="faster"):
        unlucky.write(changes(spark, (1, "uno", 1, "c")), 1)
    assert unlucky.tries == 5


@pytest.mark.parametrize(
    ("columns", "given", "left"),
    [
        ("id double, name string, at long", [(0.0, "old", 1), (-0.0, "new", 2)], ["new"]),
        (
            "id double, name string, at long",
            [(float("nan"), "new", 2), (-float("nan"), "old", 1)], ["new"],
        ),
        ("id long, name string, at struct<a: long, b: string>",
         [(1, "old", (1, "z")), (1, "new", (2, "a")), (2, "other", (1, None))], ["new", "other"]),
        ("id long, name string, at double",
         [(1, "old", float("inf")), (1, "new", float("nan"))], ["new"]),
    ],
)  # fmt: skip
def test_keys_and_orders_are_compared_as_spark_does(
    spark: SparkSession, table: Path, columns: str, given: Sequence[Any], left: list[str]
) -> None:
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at")
    merging.write(spark.createDataFrame(given, columns).repartition(2), 0)
    assert sorted(DeltaTable(str(table)).to_pyarrow_table()["name"].to_pylist()) == left


def test_the_table_takes_nulls_and_moments_whatever_the_session(
    spark: SparkSession, table: Path
) -> None:
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "America/New_York")
    moment = "timestamp'2026-11-01 01:30:00-05:00' as at"
    rows = elsewhere.range(3).selectExpr("id", moment, "array(struct(id)) as more")
    DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at").write(rows, 0)
    assert all(field.nullable for field in DeltaTable(str(table)).schema().fields)
    read = DeltaTable(str(table)).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["at"].isoformat() for row in read] == ["2026-11-01T06:30:00+00:00"] * 3
    assert [row["more"] for row in read] == [[{"id": number}] for number in range(3)]


def always(rows: pa.Table) -> Callable[[object], pa.Table]:
    """Return a function that returns these rows."""
    return lambda _: rows


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_every_key_is_found_in_the_file_that_has_it(table: Path, kind: pa.DataType) -> None:
    values = [*VALUES[kind], *LONG.get(kind, ())]
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at")
    for batch_id, ids in enumerate([*([value] for value in values), values]):
        rows = pa.table({"id": pa.array(ids, kind), "at": [batch_id] * len(ids)})
        rows = rows.append_column(REMOVES, pa.array([False] * len(ids)))
        merging.commit(always(rows), Commit(application="tests", batch_id=batch_id))
    read = DeltaTable(str(table)).to_pyarrow_table()
    assert read["at"].to_pylist() == [len(values)] * len(values)
    assert set(read["id"].to_pylist()) == set(values)


def test_files_that_cannot_have_its_keys_are_not_read(spark: SparkSession, table: Path) -> None:
    merging = upsert(table)
    merging.write(changes(spark, (1, "one", 1, "c"), (2, "two", 1, "c")), 0)
    (other,) = table.glob("*.parquet")
    merging.write(changes(spark, (3, "three", 1, "c"), (4, "four", 1, "c")), 1)
    other.rename(table / "gone")
    merging.write(changes(spark, (4, "vier", 2, "u"), (5, "five", 1, "c")), 2)
    (table / "gone").rename(other)
    assert [row[1] for row in kept(table)] == ["one", "two", "three", "vier", "five"]


def test_rows_that_tasks_cannot_reduce_are_sorted_by_key(spark: SparkSession, table: Path) -> None:
    """Every task has every key: together more than the driver may take."""
    keys, tasks = 2_000, 8
    # Rows of one number are in one task.
    rows = spark.range(0, keys * tasks, 1, tasks).selectExpr(
        f"id % {keys} as id", f"id div {keys} as at", "sha2(string(id), 512) as name"
    )
    settings: Any = spark.sparkContext._jsc.sc().conf()
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at")
    most = settings.get("spark.driver.maxResultSize", "1g")
    settings.set("spark.driver.maxResultSize", str(keys * tasks * 140 // 2))
    try:
        staged = merging.stage(rows, 0)
    finally:
        settings.set("spark.driver.maxResultSize", most)
        spark.conf.unset(LARGE)
    assert not staged.once
    assert staged.commit().rows == keys
    assert {row[2] for row in kept(table)} == {tasks - 1}
    assert merging.stage(rows, 1).once


@pytest.mark.parametrize(
    ("count", "name", "large"),
    [
        (1000, "'é'", False),
        (1001, "'é'", True),
        (10, f"repeat('é', {WHOLE_ROW_BYTES_MAX // 2})", False),
        (10, f"repeat('é', {WHOLE_ROW_BYTES_MAX // 2 + 1})", True),
    ],
)
def test_the_driver_reads_no_more_than_its_limits(
    spark: SparkSession,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    name: str,
    large: bool,
) -> None:
    monkeypatch.setattr("penstock.spark.tables.upsert.WHOLE_ROWS_MAX", 1000)
    rows = spark.range(0, count, 1, 1).selectExpr("id % 7 as id", f"{name} as name", "id as at")
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at")
    try:
        assert merging.stage(rows, 0).once is not large
        # Later batches of the query are reduced in tasks at once.
        staged = merging.stage(rows, 0)
    finally:
        spark.conf.unset(LARGE)
    assert staged.once
    assert staged.commit().rows == 7
    assert {row[2] for row in kept(table)} == set(range(count - 7, count))


LISTS = (
    ("split('a,b', ',')", "map('k', id)", "struct(id as x, array(at) as l)"),
    ("split(name, ',')", "map('k', id)", "struct(id as x, array(at) as l)"),
    ("array(name, null)", "map('k', cast(null as long))",
     "struct(cast(null as long) as x, array(at, null) as l)"),
)  # fmt: skip


@pytest.mark.parametrize("more", [{}, {"delete_when": "name = 'gone'"}], ids=["upsert", "cdc"])
def test_lists_maps_and_structs_without_nulls_are_merged_batch_after_batch(
    spark: SparkSession, table: Path, more: dict[str, object]
) -> None:
    """Spark says of `split` that no element is null; of a column with nulls in it, it does not."""
    merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by="at", **more)  # type: ignore[arg-type]
    for batch_id, made in enumerate(LISTS):
        rows = changes(spark, (1, f"n{batch_id}", batch_id, "u"), (batch_id + 2, "x,y", 0, "u"))
        lists = [
            f"{text} as {name}" for name, text in zip(("tags", "counts", "s"), made, strict=True)
        ]
        merging.write(rows.selectExpr("id", "name", "at", *lists), batch_id)
    read = {row["id"]: row for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}
    assert {key: row["tags"] for key, row in read.items()} == {
        1: ["n2", None], 2: ["a", "b"], 3: ["x", "y"], 4: ["x,y", None]
    }  # fmt: skip
    assert read[1]["s"] == {"x": None, "l": [2, None]}
    assert read[3]["counts"] == [("k", 3)]


STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("at", pa.int64()),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("counts", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
    ]
)
FULL = {
    "name": "'n'",
    "tags": "array('a')",
    "counts": "map('a', 1L)",
    "s": "named_struct('x', 1L)",
}


@pytest.mark.parametrize(
    ("column", "value", "place"),
    [
        ("name", "cast(null as string)", "name"),
        ("tags", "array('a', null)", "tags.element"),
        ("counts", "map('a', cast(null as long))", "counts.value"),
        ("s", "named_struct('x', cast(null as long))", "s.x"),
    ],
)
def test_tables_of_others_may_forbid_nulls(
    spark: SparkSession, table: Path, column: str, value: str, place: str
) -> None:
    DeltaTable.create(str(table), STRICT)
    merging = upsert(table, delete_when="at < 0", leave_out=["op"])

    def write(batch_id: int, at: str, **more: str) -> None:
        given = [f"{text} as {name}" for name, text in (FULL | more).items()]
        columns = ["id", f"{at} as at", "op", *given]
        merging.write(changes(spark, (batch_id % 2, "", 0, "u")).selectExpr(*columns), batch_id)

    write(0, "1L")
    write(1, "1L")
    with pytest.raises(TableMismatch, match=f"{place} is null in some rows"):
        write(2, "2L", **{column: value})
    write(2, "2L", **{column: f"if(id < 0, {FULL[column]}, null)" if column != "name" else "'n'"})
    write(3, "-1L", **{column: value})  # a row that is removed is not stored
    assert [row["at"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()] == [2, 1]
    assert DeltaTable(str(table)).schema().to_json() == Schema.from_arrow(STRICT).to_json()


def test_constraints_of_a_table_hold(spark: SparkSession, table: Path) -> None:
    merging = upsert(table)
    merging.write(changes(spark, (1, "one", 1, "c")), 0)
    DeltaTable(str(table)).alter.add_constraint({"short": "name <> 'three'"})
    merging.write(changes(spark, (1, "uno", 2, "c")), 1)
    with pytest.raises(TableMismatch, match="short"):
        merging.write(changes(spark, (2, "three", 1, "c")), 2)
    assert kept(table) == [(1, "uno", 2)]


def test_new_columns_are_added_where_that_is_asked_for(spark: SparkSession, table: Path) -> None:
    rows = changes(spark, (1, "one", 1, "c"), (2, "two", 1, "c"))
    upsert(table).write(rows, 0)
    wider = rows.where("id = 2").withColumns({"tags": F.split("name", "w"), "at": F.lit(2)})
    wider = wider.withColumn("at", F.col("at").cast("long"))
    with pytest.raises(TableMismatch, match=r"no column tags\. Set add_columns = true"):
        upsert(table).write(wider, 1)
    adding = upsert(table, add_columns=True)
    adding.write(wider, 1)
    version = DeltaTable(str(table)).version()
    assert adding.write(wider, 1).replayed
    assert DeltaTable(str(table)).version() == version == 1
    adding.write(rows.withColumn("tags", F.array(F.lit(None).cast("string"))).where("id = 1"), 2)
    read = DeltaTable(str(table)).to_pyarrow_table().sort_by("id").to_pylist()
    assert [row["tags"] for row in read] == [[None], ["t", "o"]]
    upsert(table).write(changes(spark, (3, "three", 1, "c")), 3)  # narrower: nulls there


NAMES = [
    "a.b", "a b", "a`b", 'a"b', "a'b", "Select", "order", "é😀", "a,b", "a\\b", "kept", "new",
    "new.id", "1a", "a$b", "%20", "_", "_record", "_error", "_rule", "age_max", "0", "a=b",
    "a;b{}()",
]  # fmt: skip


@pytest.mark.parametrize("order_by", [None, "o.1"])
def test_columns_may_have_any_name(spark: SparkSession, table: Path, order_by: str | None) -> None:
    keys = ["k.1", 'k"`']
    merging = upsert(table, keys=keys, order_by=order_by, delete_when="`o.1` = 3")
    for batch_id in range(4):
        columns: dict[str, list[Any]] = {name: [f"{name}{batch_id}"] for name in NAMES}
        columns |= {"k.1": [batch_id // 2], 'k"`': ["x"], "o.1": [batch_id]}
        merging.write(spark.createDataFrame(pa.table(columns)), batch_id)
    (row,) = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert row == {name: f"{name}1" for name in NAMES} | {"k.1": 0, 'k"`': "x", "o.1": 1}
    (read,) = read_table(spark, str(table)).collect()
    assert read.asDict() == row


def test_bytes_that_are_not_utf8_are_mended_and_keys_of_them_stay_apart(
    spark: SparkSession, table: Path
) -> None:
    given = [(b"\xff\x00", b"a\xffb"), (b"\xfe", b"\xc3"), (b"k", b"v")]
    rows = spark.createDataFrame(given, "k binary, v binary")
    texts = rows.selectExpr("cast(k as string) as id", "cast(v as string) as name", "1 as at")
    for batch_id, order_by in enumerate(("at", "at", None, None)):
        merging = DeltaUpsert(str(table), application="tests", keys=["id"], order_by=order_by)
        merging.write(texts, batch_id)
    read = DeltaTable(str(table)).to_pyarrow_table()
    read.validate(full=True)
    found = {row["id"]: row["name"] for row in read.to_pylist()}
    assert found == {"\\xFF00": "a\ufffdb", "\\xFE": "\ufffd", "k": "v"}
