"""Tasks read diskless topics from a real broker's store: whole, damaged, gone, far away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.archive.errors import CorruptObject
from penstock.base.ids import TopicPartition
from penstock.spark.errors import DataLoss, ExtentsUnavailable, InvalidOption
from penstock.spark.reads import object_chunks
from penstock.spark.reads.broker_log import BrokerLog
from penstock.spark.reads.chunks import Fetched, Task
from penstock.spark.reads.extents import HttpExtents
from penstock.spark.reads.planning import plan
from penstock.spark.reads.reading import TaskReader
from penstock.spark.schema import COLUMN_NAMES, arrow_schema
from tests.spark.conftest import KEEP, NUMBERS
from tests.spark.test_reading import FakeFetcher

if TYPE_CHECKING:
    from penstock.testing import Broker
    from tests.s3 import S3Server


class Unasked(FakeFetcher):
    """A broker that must not be needed."""

    def __init__(self) -> None:
        super().__init__(b"")

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
        raise AssertionError(f"the broker was asked for {at} at offset {offset}")


class Diskless:
    """A diskless topic of 3 partitions, and the ways that these tests fill and read it."""

    def __init__(self, broker: Broker, **configs: str) -> None:
        self.broker = broker
        self.name = f"diskless-{next(NUMBERS)}"
        self.client = broker.client()
        self.client.create_topic(self.name, 3, KEEP | {"diskless.enable": "true"} | configs)
        self.objects = broker.directory / "objects"

    def write(self, count: int, *, first: int = 0) -> None:
        numbers = range(first, first + count)
        headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        table = pa.table(
            {
                "key": pa.array([f"k{number % 10}" for number in numbers]),
                "value": pa.array([f"value {number}" for number in numbers]),
                "timestamp": pa.array([1_000_000 + number for number in numbers]),
                "headers": pa.array([[{"key": "n", "value": b"%d" % n}] for n in numbers], headers),
            }
        )
        self.client.write_arrow(self.name, table)

    def source(self) -> HttpExtents:
        return HttpExtents(self.broker.admin_url)

    def tasks(self, start: int = 0, parallelism: int = 1) -> list[Task]:
        latest = self.client.list_offsets(self.name, "latest")
        ranges = {TopicPartition(self.name, index): (start, end) for index, end in latest.items()}
        with closing(self.source()) as source:
            return plan(ranges, source, parallelism=parallelism)

    def read(
        self,
        tasks: list[Task],
        fetcher: FakeFetcher | None = None,
        *,
        fail_on_data_loss: bool = True,
        options: Mapping[str, str] | None = None,
        extents: Callable[[], HttpExtents | None] = lambda: None,
    ) -> pa.Table:
        def reader() -> TaskReader:
            return TaskReader(
                COLUMN_NAMES,
                bootstrap=self.broker.bootstrap,
                fail_on_data_loss=fail_on_data_loss,
                fetcher=fetcher,
                store_options=options or {},
                extents=extents,
            )

        batches = [batch for task in tasks for batch in reader().read(task)]
        return pa.Table.from_batches(batches, schema=arrow_schema(COLUMN_NAMES))

    def consumed(self) -> list[tuple[Any, ...]]:
        """Return the records of a consumer, as `rows`."""
        columns = ("partition", "offset", "timestamp", "key", "value")
        return rows(self.client.read_arrow(self.name, columns=columns))


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [table[name] for name in ("partition", "offset", "timestamp", "key", "value")]
    columns[2] = columns[2].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.fixture
def topic(broker: Broker) -> Iterator[Diskless]:
    made = Diskless(broker)
    yield made
    made.client.close()


def test_rows_are_those_of_a_consumer_and_no_broker_serves_them(topic: Diskless) -> None:
    for first in range(0, 3_000, 300):
        topic.write(300, first=first)
    tasks = topic.tasks()
    assert {item.store for task in tasks for item in task.slices} == {topic.objects.as_uri()}
    found = topic.read(tasks, Unasked())
    assert rows(found) == topic.consumed()
    assert len(found) == 3_000
    number = found["value"][0].as_py().removeprefix(b"value ")
    assert found["headers"][0].as_py() == [{"key": "n", "value": number}]
    for partition in range(3):
        mine = found.filter(pc.equal(found["partition"], partition))
        assert mine["offset"].to_pylist() == list(range(len(mine)))


def test_windows_cut_slices_and_keep_all_rows(
    topic: Diskless, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in range(0, 1_200, 300):
        topic.write(300, first=first)
    tasks = topic.tasks(start=17)
    expected = [row for row in topic.consumed() if row[1] >= 17]
    for window_bytes, slices in ((1, 1_000), (9_000, 1_000), (1 << 20, 2)):
        monkeypatch.setattr(object_chunks, "WINDOW_BYTES", window_bytes)
        monkeypatch.setattr(object_chunks, "WINDOW_SLICES", slices)
        assert rows(topic.read(tasks, Unasked())) == expected


def test_append_times_are_stamped(broker: Broker) -> None:
    topic = Diskless(broker, **{"message.timestamp.type": "LogAppendTime"})
    topic.write(100)
    found = topic.read(topic.tasks(), Unasked())
    assert rows(found) == topic.consumed()
    assert set(found["timestampType"].to_pylist()) == {1}
    assert min(row[2] for row in rows(found)) > 1_600_000_000_000
    topic.client.close()


def test_objects_that_went_meanwhile_are_fetched_from_the_broker(topic: Diskless) -> None:
    topic.write(500)
    topic.write(500, first=500)
    topic.consumed()
    tasks = topic.tasks()
    keys = sorted({item.extents[0].key for task in tasks for item in task.slices})
    assert len(keys) >= 2
    (topic.objects / keys[0]).unlink()  # the broker has it in its cache
    assert rows(topic.read(tasks)) == topic.consumed()
    with pytest.raises(AssertionError, match="the broker was asked"):
        topic.read(tasks, Unasked())


def test_a_store_that_is_not_on_this_machine(topic: Diskless, tmp_path: Path) -> None:
    topic.write(500)
    elsewhere = tmp_path / "elsewhere"
    slices = [item for task in topic.tasks() for item in task.slices]
    far = [replace(item, store=elsewhere.as_uri()) for item in slices]
    assert rows(topic.read([Task(far)])) == topic.consumed()
    assert not elsewhere.exists()
    empty = [replace(item, store="s3://bucket/place") for item in slices]
    with pytest.raises(InvalidOption, match="aws_regon") as caught:
        topic.read([Task(empty)], options={"aws_regon": "secret-word"})
    assert "secret-word" not in str(caught.value)


def test_a_store_that_does_not_answer_is_asked_once(topic: Diskless) -> None:
    for first in range(0, 400, 100):
        topic.write(100, first=first)
    slices = [item for task in topic.tasks() for item in task.slices]
    far = Task([replace(item, store="s3://bucket/place") for item in slices])
    options = {
        "aws_endpoint": "http://127.0.0.1:9",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
        "aws_region": "r",
    }
    assert rows(topic.read([far], options=options)) == topic.consumed()


def test_damage_is_found(topic: Diskless) -> None:
    topic.write(300)
    tasks = topic.tasks()
    item = tasks[0].slices[0]
    path = topic.objects / item.extents[0].key
    content = bytearray(path.read_bytes())
    content[item.extents[0].byte_offset + 100] ^= 1
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(CorruptObject, match="byte"):
        topic.read(tasks)


def test_deleted_records(topic: Diskless) -> None:
    topic.write(300)
    first = topic.client.list_offsets(topic.name, "latest")
    swept = {item.extents[0].key for task in topic.tasks() for item in task.slices}
    topic.write(300, first=300)
    tasks = topic.tasks()
    topic.client.delete_records(topic.name, dict(first))
    assert len(topic.read(tasks)) == 600, "what is still in the store was planned for, and is read"
    for key in swept:
        (topic.objects / key).unlink()
    with pytest.raises(DataLoss, match=rf"{topic.name}-\d: offsets 0 to \d+ were deleted"):
        topic.read(tasks)
    assert rows(topic.read(tasks, fail_on_data_loss=False)) == topic.consumed()
    assert len(topic.consumed()) == 300


def test_without_an_admin_address_the_broker_loads_what_it_is_asked_for() -> None:
    """A broker that has nothing at hand answers an impatient fetch with nothing."""
    from penstock.testing import Broker

    with Broker() as broker:  # of its own, as it starts anew
        topic = Diskless(broker)
        topic.write(300)
        expected = topic.consumed()
        broker.restart()
        log = BrokerLog(broker.bootstrap)
        ranges = {
            TopicPartition(topic.name, index): (0, end)
            for index, end in log.offsets(topic.name, -1).items()
        }
        log.close()
        assert rows(topic.read(plan(ranges, None, parallelism=2))) == expected
        topic.client.close()


def test_pages_of_extents(topic: Diskless, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.broker.admin import extents

    for first in range(0, 70, 10):
        topic.write(10, first=first)
    whole = topic.tasks()
    monkeypatch.setattr(extents, "OBJECT_EXTENTS_PER_PAGE", 2)
    assert [task.slices for task in topic.tasks()] == [task.slices for task in whole]
    monkeypatch.setattr(extents, "OBJECT_LAYOUTS_PER_PAGE_BYTES", 1)
    assert [task.slices for task in topic.tasks()] == [task.slices for task in whole]
    monkeypatch.setattr("penstock.spark.reads.extents.PAGES_MAX", 2)
    with pytest.raises(ExtentsUnavailable, match="more than 2 pages of extents"):
        topic.tasks()


def test_the_next_address_is_asked_where_one_is_away(topic: Diskless) -> None:
    topic.write(30)
    at = TopicPartition(topic.name, 0)
    source = HttpExtents(f"http://127.0.0.1:9, {topic.broker.admin_url}")
    found = source.extents(at, 0, 1)
    assert (found.store, len(found.extents)) == (topic.objects.as_uri(), 1)
    assert source.extents(at, 0, 1) == found
    source.close()


def test_any_of_several_brokers_returns_extents(postgres_url: str, tmp_path: Path) -> None:
    """Written through one broker, planned by another, and read while neither is needed."""
    from penstock.testing import Broker

    store = (tmp_path / "store").as_uri()
    settings = {"control.url": postgres_url, "diskless.storage.url": store}
    with Broker({**settings, "node.id": 1}) as one, Broker({**settings, "node.id": 2}) as other:
        topic = Diskless(one)
        topic.write(300)
        expected = topic.consumed()
        topic.broker = other
        tasks = topic.tasks()
        assert {item.store for task in tasks for item in task.slices} == {store}
        assert rows(topic.read(tasks, Unasked())) == expected
        apart = [replace(item, store="memory://far") for task in tasks for item in task.slices]
        assert rows(topic.read([Task(apart)])) == expected
        topic.client.close()


def test_from_s3(s3: S3Server, tmp_path: Path) -> None:
    from penstock.testing import Broker

    url = s3.fresh_url()
    options = s3.options()
    secrets = tmp_path / "options"
    secrets.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
    settings = {
        "diskless.storage.url": url,
        "diskless.storage.options.file": str(secrets),
        "diskless.commit.interval.ms": 5,
    }
    with Broker(settings) as broker:
        topic = Diskless(broker)
        for first in range(0, 900, 300):
            topic.write(300, first=first)
        tasks = topic.tasks()
        text = json.dumps([str(task.slices) for task in tasks])
        assert url in text
        assert options["aws_secret_access_key"] not in text
        assert rows(topic.read(tasks, Unasked(), options=options)) == topic.consumed()
        topic.client.close()
