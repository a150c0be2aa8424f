"""Sink `iceberg`: each record once through kills, rejected values, conversions and upserts."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from penstock.base.document import DocumentInvalid
from penstock.base.errors import InvalidSetting
from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.errors import RowsRejected
from penstock.connect.iceberg import IcebergSettings, IcebergSink
from penstock.connect.plugins import Records, SinkBatch
from penstock.connect.status import ConnectorStatus, StatusFile
from penstock.lake.commits import LakeTable, Mark, appended
from penstock.lake.target import LakeConflict
from penstock.testing import Broker
from tests.lake.oracle import assert_files_once, assert_same, stored, target

_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "tests.connect.test_iceberg",
        "penstock.connect.decoding",
        "penstock.client.columns",
        "penstock.records.columnar.decode",
    ]
)


def settings(folder: Path, **options: Any) -> IcebergSettings:
    catalog = dict(target(folder).catalog)
    return IcebergSettings(table="db.orders", catalog=catalog, **options)


def lake(folder: Path) -> LakeTable:
    return LakeTable(target(folder), application="tests")


def batch(
    values: list[Any] | pa.Array, offset: int = 0, topic: str = "orders", partition: int = 0
) -> SinkBatch:
    count = len(values)
    rows = pa.table({
        "value": values, "partition": pa.array([partition] * count, pa.int32()),
        "offset": range(offset, offset + count),
    })  # fmt: skip
    return SinkBatch(
        topic=topic, parts=[Records(topic, rows)], next_offsets={partition: offset + count}
    )


def rows_in(folder: Path) -> pa.Table:
    return stored(lake(folder)).scan().to_arrow()


def test_offsets_are_committed_with_the_rows(tmp_path: Path) -> None:
    sink = IcebergSink(settings(tmp_path), "c")
    assert sink.offsets() == {}
    assert sink.plan() == ["create Iceberg table db.orders with the first rows"]
    sink.write(batch([{"id": 1}, {"id": 2}]))
    sink.write(batch([{"id": 3, "s": "x"}], 7, partition=2))
    sink.write(batch([{"id": 4}], 5, topic="other"))
    sink.flush()
    sink.flush()  # nothing to do
    again = IcebergSink(settings(tmp_path), "c")
    assert again.offsets() == {("orders", 0): 2, ("orders", 2): 8, ("other", 0): 6}
    assert again.plan() == []
    again.write(batch([], 9))  # all rows of the batch were rejected
    again.flush()
    assert sink.facts()["commit_rows"] == 4
    assert IcebergSink(settings(tmp_path), "c").offsets()[("orders", 0)] == 9
    assert IcebergSink(settings(tmp_path), "another").offsets() == {}
    assert_same(pa.table({"id": [1, 2, 3, 4], "s": [None, None, "x", None]}), rows_in(tmp_path))
    assert_files_once(lake(tmp_path))


def test_numbers_are_stored_unchanged_or_rejected(tmp_path: Path) -> None:
    exact, longest = Decimal("0.12345678901234567891"), Decimal("1" * 38)
    sink = IcebergSink(settings(tmp_path), "c")
    sink.offsets()
    with pytest.raises(RowsRejected, match="does not fit") as caught:
        sink.write(batch([{"n": Decimal(1)}, {"n": Decimal("1" * 39)}, {"n": longest}]))
    assert caught.value.rows == (1,)
    sink.write(batch([{"n": Decimal(1)}, {"n": longest}]))
    sink.write(batch([{"n": 5}], 3))
    sink.write(batch([{"d": 1.5}], 4))  # in one commit with the rows before
    sink.flush()
    with pytest.raises(RowsRejected, match="column d") as caught:
        sink.write(batch([{"d": Decimal("0.5")}, {"d": exact}], 5))
    assert caught.value.rows == (1,)
    with pytest.raises(RowsRejected, match="column n"):
        sink.write(batch([{"n": 0.5}], 5))
    sink.write(batch([{"d": Decimal("0.5"), "n": 3.0}], 5))
    sink.flush()
    found = rows_in(tmp_path).to_pylist()
    assert sorted((row["n"], row["d"]) for row in found if row["n"]) == [
        (1, None), (3, 0.5), (5, None), (longest, None),
    ]  # fmt: skip
    assert [row["d"] for row in found if not row["n"]] == [1.5]


def test_parts_of_a_batch_whose_types_conflict(tmp_path: Path) -> None:
    sink = IcebergSink(settings(tmp_path), "c")
    sink.offsets()
    parts = [*batch([{"a": 1}, {"a": 2}]).parts, *batch([{"a": "x"}], 2).parts]
    both = SinkBatch(topic="orders", parts=parts, next_offsets={0: 3})
    with pytest.raises(RowsRejected, match="conflict with rows before it") as caught:
        sink.write(both)
    assert caught.value.rows == (2,)
    sink.write(both.without(caught.value))
    sink.flush()
    assert rows_in(tmp_path)["a"].to_pylist() == [1, 2]
    assert sink.offsets() == {("orders", 0): 3}


def test_a_second_run_of_a_connector_is_refused(tmp_path: Path) -> None:
    first, second = (IcebergSink(settings(tmp_path), "c") for _ in range(2))
    for sink in (first, second):
        sink.offsets()
        sink.write(batch([{"id": 1}]))
    first.flush()
    second.flush()  # the same offsets: the batch is there already
    first.write(batch([{"id": 2}], 1))
    second.write(batch([{"id": 2}, {"id": 3}], 1))
    first.flush()
    with pytest.raises(LakeConflict, match="another run of connector c wrote it"):
        second.flush()
    assert_same(pa.table({"id": [1, 2]}), rows_in(tmp_path))


def test_only_unfit_values_are_rejected(tmp_path: Path) -> None:
    table = lake(tmp_path)
    typed = pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC")),
                       ("amount", pa.decimal128(9, 2))])  # fmt: skip
    table.prepare(typed)
    sink = IcebergSink(settings(tmp_path), "c")
    good = {"id": 1.0, "at": "2025-01-01T00:00:00.123456Z", "amount": "12.25"}
    values = [good, {**good, "id": 1.5}, good, {**good, "at": "soon"}, {**good, "amount": "1.005"},
              {**good, "id": 2.0**40}, {"id": None}]  # fmt: skip
    with pytest.raises(RowsRejected) as rejected:
        sink.write(batch(values))
    assert rejected.value.rows == (1, 3, 4, 5)
    assert "column id: a value of double does not fit the table's type int32" in str(rejected.value)
    sink.write(batch([good, good, {"id": None}]))
    sink.flush()
    stored_row = {
        "id": 1,
        "at": datetime(2025, 1, 1, 0, 0, 0, 123456, UTC),
        "amount": Decimal("12.25"),
    }
    assert_same(pa.Table.from_pylist([stored_row, stored_row, {}], typed), rows_in(tmp_path))
    for wrong, said in ((["text"], "needs fields"), ([None, {"id": 1}], "the value is null")):
        with pytest.raises(RowsRejected, match=said) as rejected:
            sink.write(batch(wrong))
        assert rejected.value.rows == (0,)


def test_columns_are_added_and_widened(tmp_path: Path) -> None:
    lake(tmp_path).prepare(pa.schema([("id", pa.int32())]))
    sink = IcebergSink(settings(tmp_path, add_columns=True), "c")
    sink.write(batch([{"id": 1}, {"id": 2**40, "inner": {"a": [1.5]}}]))
    sink.write(batch([{"id": 3, "inner": {"b": "x"}}], 2))
    sink.flush()
    inner = [None, {"a": [1.5], "b": None}, {"a": None, "b": "x"}]
    assert_same(pa.table({"id": [1, 2**40, 3], "inner": inner}), rows_in(tmp_path))
    # Types that cannot be joined are committed apart, and then converted to the table's type.
    mixed = IcebergSink(settings(tmp_path / "mixed", add_columns=True), "c")
    (tmp_path / "mixed").mkdir()
    mixed.write(batch([{"v": 1}]))
    with pytest.raises(RowsRejected, match="column v: a value of string"):
        mixed.write(batch([{"v": "2"}, {"v": "two"}], 1))


def test_upserts_keep_the_newest_row(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mode": "upsert", "keys": ("id",), "order_by": "seq"}
    sink = IcebergSink(settings(tmp_path, **options, partition_by=("bucket(2, id)",)), "c")
    drawn = random.Random(3)
    source: list[dict[str, int]] = []
    for number in range(5):
        rows = [{"id": drawn.randrange(20), "seq": drawn.randrange(10**6)} for _ in range(15)]
        sink.write(batch(rows, number * 15))
        sink.flush()
        source += rows
    given = pa.Table.from_pylist(source)
    newest = duckdb.from_arrow(given).aggregate("id, max(seq) as seq").to_arrow_table()
    assert_same(newest, rows_in(tmp_path))
    with pytest.raises(RowsRejected, match="column id, a key or the order, is null"):
        sink.write(batch([{"seq": 1}], 75))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"mode": "upsert"}, "keys"),
        ({"keys": ("id",)}, "keys"),
        ({"order_by": "id"}, "order_by"),
        ({"partition_by": ("week(at)",)}, "partition_by"),
        ({"table": ""}, "table"),
    ],
)
def test_settings_that_contradict_each_other(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        IcebergSettings(**{"table": "db.orders", **options})
    assert refused.value.name == name


FILE = """
name = "lake"

[sink]
connector = "iceberg"
topics = ["{topic}"]
table = "db.orders"
partition_by = ["truncate(100, id)"]
batch_rows = 40
flush_interval_seconds = 0.01
catalog = {{type = "sql", uri = "sqlite:///{folder}/catalog.db", warehouse = "{folder}/lake"}}

[errors]
tolerance = "all"
dead_letters = "{topic}.dead"
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with broker.client() as opened:
        yield opened


def run_once(file: str, bootstrap: str) -> ConnectorStatus:
    spec = load(Path(file), bootstrap=bootstrap)
    status = StatusFile(spec.name, spec.direction, spec.state)
    with Client(bootstrap) as client:
        stop = running.Stop()
        running.run(running.Run(spec=spec, client=client, status=status, stop=stop, once=True))
    return status.status


@pytest.mark.parametrize(
    "kills", [3, pytest.param(500, marks=[pytest.mark.long, pytest.mark.timeout(7200)])]
)
def test_each_record_is_written_once_through_kills(
    broker: Broker, client: Client, tmp_path: Path, kills: int
) -> None:
    topic = f"orders-{kills}"
    client.create_topic(topic, partitions=2)
    client.create_topic(f"{topic}.dead")
    count = 60 * (kills + 1)
    values = [json.dumps({"id": number, "s": f"v{number}"}).encode() for number in range(count)]
    values[7] = b"no JSON"
    partitions = pa.array([number % 2 for number in range(count)], pa.int32())
    client.write_arrow(topic, pa.table({"value": values, "partition": partitions}))
    file = tmp_path / "lake.toml"
    file.write_text(FILE.format(topic=topic, folder=tmp_path))
    lake(tmp_path).open()  # creates the catalogue's tables, which two processes cannot do at once
    drawn, last = random.Random(kills), -1
    for _ in range(kills):
        child = _PROCESSES.Process(target=run_once, args=(str(file), broker.bootstrap))
        child.start()
        table = lake(tmp_path)
        while child.is_alive():
            opened = table.open(fresh=True)
            now = -1 if opened is None else len(opened.history())
            if now > last:
                last = now
                child.join(drawn.uniform(0, 0.05))
                break
            child.join(0.01)
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    status = run_once(str(file), broker.bootstrap)
    assert (status.state, status.cause) == ("STOPPED", None)
    ids = [number for number in range(count) if number != 7]
    assert_same(pa.table({"id": ids, "s": [f"v{number}" for number in ids]}), rows_in(tmp_path))
    assert_files_once(lake(tmp_path))
    assert client.list_offsets(f"{topic}.dead", "latest")[0] >= 1


def test_an_unreachable_catalogue_is_reported(tmp_path: Path) -> None:
    gone = settings(tmp_path / "missing")
    (problem,) = IcebergSink(gone, "c").problems()
    assert problem.startswith("catalog: table db.orders: ")
    assert IcebergSink(settings(tmp_path), "c").problems() == ()


def test_a_connector_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "lake.toml"
    file.write_text(FILE.format(topic="orders", folder=tmp_path).replace('"db.orders"', '"orders"'))
    with pytest.raises(DocumentInvalid, match="must have a namespace and a name"):
        load(file)


def test_a_commit_whose_result_was_lost_is_found(tmp_path: Path) -> None:
    sink = IcebergSink(settings(tmp_path), "c")
    sink.offsets()
    sink.write(batch([{"id": 1}]))
    table = LakeTable(target(tmp_path), application="connect.c")
    table.prepare(pa.schema([("id", pa.int64())]))
    files = table.writer().write(pa.table({"id": [1]}))
    table.commit(Mark(offsets={"orders": {0: 1}}), lambda mark: True, appended(files))
    sink.flush()
    assert_same(pa.table({"id": [1]}), rows_in(tmp_path))
