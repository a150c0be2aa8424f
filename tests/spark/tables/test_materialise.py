"""Tables kept beside topics: every record once, topics on their own, and clear refusals."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem
from pyspark.sql import SparkSession

from penstock.client.errors import BrokerRefused
from penstock.spark.tables import Materialiser
from penstock.spark.tables.files import codec_of
from penstock.spark.tables.reconciler import TableState
from penstock.spark.tables.topic_table import group_of
from penstock.testing import Broker
from tests.spark.conftest import KEEP, PATIENCE_SECONDS, Topic, until

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Kept(Topic):
    """A topic that wants a table, with a fast commit."""

    def __init__(self, broker: Broker, spark: SparkSession, partitions: int = 2) -> None:
        super().__init__(broker, spark, partitions)
        self.configure()

    def configure(self, **more: str) -> None:
        wanted = {"table.format": "delta", "table.commit.interval.ms": "100"} | more
        self.client.alter_configs("topic", self.name, wanted)


@pytest.fixture
def kept(broker: Broker, spark: SparkSession) -> Iterator[Callable[[], Kept]]:
    """Makes topics that want tables; at the end they want none, for the sake of other tests."""
    made: list[Kept] = []

    def make() -> Kept:
        made.append(Kept(broker, spark))
        return made[-1]

    yield make
    for topic in made:
        topic.client.alter_configs("topic", topic.name, delete=["table.format"])
        topic.client.close()


def materialiser(broker: Broker, spark: SparkSession, root: Path, **more: object) -> Materialiser:
    given = {"tables_max": 4, "listing_seconds": 0.2} | more
    return Materialiser(
        spark, bootstrap=broker.bootstrap, admin_url=broker.admin_url, root=str(root),
        **given,  # type: ignore[arg-type]
    )  # fmt: skip


def once(job: Materialiser) -> dict[str, TableState]:
    return {state.wanted.topic: state for state in job.run(threading.Event(), once=True)}


@contextmanager
def running(job: Materialiser) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def rows(location: Path | str) -> pa.Table:
    """The table's rows, empty before there is one."""
    if not DeltaTable.is_deltatable(str(location)):
        return pa.table({"value": pa.array([], pa.binary())})
    return DeltaTable(str(location)).to_pyarrow_table()


def has_rows(location: Path, count: int) -> bool:
    return bool(rows(location).num_rows == count)


def queries(spark: SparkSession) -> set[str | None]:
    return {query.name for query in spark.streams.active}


def phase(job: Materialiser, topic: str) -> str | None:
    return {state.wanted.topic: state.phase for state in job.states()}.get(topic)


def test_each_record_is_kept_once_with_where_it_ends(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    topic = kept()
    topic.configure(**{"table.codec": "zstd"})
    headers = pa.array(
        [[("h", b"1")]] * 50, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    plain = topic.write(50)
    topic.client.write_arrow(topic.name, plain.append_column("headers", headers))
    states = once(materialiser(broker, spark, tmp_path))
    assert states[topic.name].phase == "done"
    table = DeltaTable(str(tmp_path / topic.name))
    assert {codec_of(LocalFileSystem(), uri) for uri in table.file_uris()} == {"zstd"}
    read = table.to_pyarrow_table()
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    assert read.column_names == [*names, "headers"]
    assert Counter(read["value"].to_pylist()) == Counter(plain["value"].to_pylist() * 2)
    ends = topic.client.list_offsets(topic.name)
    topic_id = str(topic.client.describe_topic(topic.name).topic_id)
    marks = {p: table.transaction_version(f"penstock.position/{topic_id}/{p}") for p in ends}
    assert marks == ends
    shown = table.history(1)[0]["penstock.positions"]
    assert (shown["topic"], shown["id"]) == (topic.name, topic_id)
    assert {int(p): place["offset"] for p, place in shown["partitions"].items()} == ends
    again = once(materialiser(broker, spark, tmp_path))
    assert again[topic.name].phase == "done"
    assert DeltaTable(str(tmp_path / topic.name)).version() == 0
    group = f"penstock-table-{topic.name}"
    until(
        "the group shows the table's progress",
        lambda: {at[1]: seen.offset for at, seen in topic.client.committed(group).items()} == ends,
    )


@pytest.mark.long
def test_topics_come_and_go_while_it_runs(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    first = kept()
    first.write(20)
    job = materialiser(broker, spark, tmp_path / "lake")
    with running(job):
        until("the first has its rows", lambda: rows(tmp_path / "lake" / first.name).num_rows == 20)
        second = kept()
        second.configure(**{"table.location": str(tmp_path / "elsewhere")})
        second.write(30)
        first.write(10, first=20)
        until("the second has its rows", lambda: rows(tmp_path / "elsewhere").num_rows == 30)
        until("the first has more", lambda: rows(tmp_path / "lake" / first.name).num_rows == 30)
        second.client.alter_configs("topic", second.name, delete=["table.format"])
        until(  # its state goes first, and its query may still take a batch then
            "the second is started",
            lambda: phase(job, second.name) is None and group_of(second.name) not in queries(spark),
        )
        second.write(10)
        first.client.create_partitions(first.name, 3)
        first.write(30, first=30)
        until("new partitions come in", lambda: rows(tmp_path / "lake" / first.name).num_rows == 60)
        assert phase(job, first.name) == "running"
    assert rows(tmp_path / "elsewhere").num_rows == 30
    second.configure()
    once(job)
    assert rows(tmp_path / "elsewhere").num_rows == 40
    values = rows(tmp_path / "lake" / first.name)["value"].to_pylist()
    assert Counter(values) == Counter(f"value {number}".encode() for number in range(60))


@pytest.mark.long
def test_a_recreated_topic_stops_its_table_alone(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    first, second = kept(), kept()
    first.write(10)
    second.write(10)
    job = materialiser(broker, spark, tmp_path)
    with running(job):
        for topic in (first, second):
            location = tmp_path / topic.name
            until("both have rows", partial(has_rows, location, 10))
        old = str(first.client.describe_topic(first.name).topic_id)
        first.client.delete_topic(first.name)
        first.client.create_topic(first.name, 2, KEEP)
        first.configure()
        new = str(first.client.describe_topic(first.name).topic_id)
        first.write(5)

        def told() -> bool:
            """Whether the table, or its query, which may find no topic in between, reports both."""
            state = {state.wanted.topic: state for state in job.states()}.get(first.name)
            said = "" if state is None or state.phase != "stopped" else state.problem or ""
            return old in said and new in said

        until("the first is stopped, with both ids", told)
        second.write(10, first=10)
        until("the second continues", lambda: rows(tmp_path / second.name).num_rows == 20)
        first.configure(**{"table.location": str(tmp_path / "new")})
        until("another place mends it", lambda: rows(tmp_path / "new").num_rows == 5)
    assert rows(tmp_path / first.name).num_rows == 10


def test_what_the_log_lost_is_named(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    topic = kept()
    topic.client.write_arrow(topic.name, pa.table({"value": [b"x"] * 10}), partition=0)
    once(materialiser(broker, spark, tmp_path))
    topic.client.write_arrow(topic.name, pa.table({"value": [b"y"] * 10}), partition=0)
    topic.client.delete_records(topic.name, {0: 14})
    state = once(materialiser(broker, spark, tmp_path))[topic.name]
    assert state.phase == "stopped"
    assert "ends at offset 10, but the log starts at 14" in (state.problem or "")
    assert rows(tmp_path / topic.name).num_rows == 10


@pytest.mark.long
def test_a_deleted_checkpoint_is_reported(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    topic = kept()
    topic.write(10)
    once(materialiser(broker, spark, tmp_path))
    checkpoint = tmp_path / topic.name / "_penstock" / "checkpoint"
    checkpoint.rename(tmp_path / "away")
    state = once(materialiser(broker, spark, tmp_path))[topic.name]
    assert "committed with another checkpoint" in (state.problem or "")
    assert rows(tmp_path / topic.name).num_rows == 10
    checkpoint.rename(tmp_path / "useless")
    (tmp_path / "away").rename(checkpoint)
    topic.write(10)
    assert once(materialiser(broker, spark, tmp_path))[topic.name].phase == "done"
    assert rows(tmp_path / topic.name).num_rows == 20


def test_another_schema_is_refused_with_its_column(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    """Reject a table that another writer changed; the source's columns are fixed."""
    topic = kept()
    topic.write(10)
    once(materialiser(broker, spark, tmp_path))
    log = tmp_path / topic.name / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            text = action["metaData"]["schemaString"]
            assert '"name":"topic","type":"string"' in text
            changed = text.replace('"name":"topic","type":"string"', '"name":"topic","type":"long"')
            action["metaData"]["schemaString"] = changed
    log.write_text("\n".join(map(json.dumps, actions)))
    topic.write(10)
    state = once(materialiser(broker, spark, tmp_path))[topic.name]
    assert state.phase == "stopped"
    assert "column topic has type" in (state.problem or "")


@pytest.mark.long
def test_more_topics_than_a_job_keeps_take_turns_once(
    broker: Broker, spark: SparkSession, tmp_path: Path, kept: Callable[[], Kept]
) -> None:
    topics = [kept() for _ in range(3)]
    for topic in topics:
        topic.write(10)
    states = once(materialiser(broker, spark, tmp_path, tables_max=1))
    assert {state.phase for state in states.values()} == {"done"}
    assert [rows(tmp_path / topic.name).num_rows for topic in topics] == [10, 10, 10]


def test_the_broker_checks_the_configuration(broker: Broker, topic: Topic) -> None:
    for name, value in (
        ("table.format", "iceberg"),
        ("table.commit.interval.ms", "10"),
        ("table.codec", "lzo"),
        ("table.nonsense", "1"),
    ):
        with pytest.raises(BrokerRefused, match=name):
            topic.client.alter_configs("topic", topic.name, {name: value})
    shown = {item.name: item.value for item in topic.client.describe_configs("topic", topic.name)}
    assert shown["table.format"] == "none"
