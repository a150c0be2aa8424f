"""A task attempt's blobs: their bytes against their entries, their bounds, their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.records import split_batches, verify_crc
from penstock.records.columnar import decode_batches
from penstock.spark.sink import staging
from penstock.spark.sink.blobs import TOKEN_FILE, Blob, StagingLocation, Target, blob_from_json
from penstock.spark.sink.options import SinkOptions, check
from penstock.spark.sink.staging import Attempt, Staged, stage

ATTEMPT = Attempt(application="an/app", batch_id=4, partition=2, number=17)
TOPICS = {
    "a": Target(name="a", topic_id="11111111-1111-4111-8111-111111111111", partitions=3),
    "b": Target(name="b", topic_id="22222222-2222-4222-8222-222222222222", partitions=1),
}
COLUMNS = ("key", "value", "headers", "timestamp", "topic")


@pytest.fixture
def place(tmp_path: Path) -> StagingLocation:
    (tmp_path / TOKEN_FILE).write_text("secret\n")
    return StagingLocation(
        url="http://127.0.0.1:2", directory=str(tmp_path), token="secret", blob_bytes_max=1 << 28
    )


def options(**more: Any) -> SinkOptions:
    # Nobody listens there: a part that needs the broker would fail.
    return check(bootstrap="127.0.0.1:1", admin_url="http://127.0.0.1:2", **more)


def rows(count: int, first: int = 0) -> pa.RecordBatch:
    numbers = range(first, first + count)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_pydict(
        {
            "unwanted": pa.array(numbers),
            "key": pa.array([None if n % 7 == 0 else f"k{n % 13}" for n in numbers]),
            "value": pa.array([None if n % 11 == 0 else f"value {n}" for n in numbers]),
            "headers": pa.array(
                [None if n % 3 else [{"key": "n", "value": b"%d" % n}] for n in numbers], header
            ),
            "timestamp": pa.array([n * 1_000 for n in numbers], pa.timestamp("us", "UTC")),
            "topic": pa.array(["a" if n % 5 else "b" for n in numbers]),
        }
    )


def blobs(staged: Iterator[Staged]) -> list[Blob]:
    found = []
    for item in staged:
        assert item.problem is None, item.problem
        assert item.blob is not None
        found.append(item.blob)
    return found


def records(place: StagingLocation, blob: Blob) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Every record of a blob with its topic and partition, its bytes checked against its entry."""
    data = (Path(place.directory) / blob.name).read_bytes()
    assert len(data) == blob.size_bytes
    position = 0
    for section in blob.sections:
        assert section.position == position
        position += section.size_bytes
        content = data[section.position : position]
        offset = at = 0
        for header in split_batches(content):
            verify_crc(content, header, at)
            at += header.size_bytes
            assert (header.base_offset, header.producer_id) == (offset, -1)
            assert header.attributes & 0x30 == 0
            offset += header.record_count
        assert offset == section.records
        assert section.topic_id == TOPICS[section.topic].topic_id
        for record in decode_batches(content).to_pylist():
            yield section.topic, section.partition, record
    assert position == blob.size_bytes


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_blobs_hold_what_they_say(place: StagingLocation, codec: str) -> None:
    given = [rows(50), rows(0), rows(700, first=50)]
    staged = stage(
        iter(given),
        options(codec=codec),
        ATTEMPT,
        columns=COLUMNS,
        locations=[place],
        topics=TOPICS,
    )
    (blob,) = blobs(staged)
    assert blob_from_json(blob.to_json()) == blob
    found = list(records(place, blob))
    whole = [row for batch in given for row in batch.to_pylist()]
    for topic, target in TOPICS.items():
        wanted = [row for row in whole if row["topic"] == topic]
        mine = [record for name, _, record in found if name == topic]
        assert len(mine) == len(wanted)
        assert {part for name, part, _ in found if name == topic} == set(range(target.partitions))
        by_time = {round(row["timestamp"].timestamp() * 1_000): row for row in wanted}
        for record in mine:
            row = by_time[record["timestamp"]]
            assert record["key"] == (None if row["key"] is None else row["key"].encode())
            assert record["value"] == (None if row["value"] is None else row["value"].encode())
            assert (record["headers"] or None) == (row["headers"] or None)


def test_memory_is_bounded_by_chunks(
    place: StagingLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_BYTES", 4_096)
    taken = 0

    def source() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for first in range(0, 2_000, 100):
            taken += 1
            yield rows(100, first=first)

    one = options(topic="b")
    staged = stage(source(), one, ATTEMPT, columns=("value",), locations=[place], topics=TOPICS)
    first = next(staged)
    assert first.blob is not None
    assert taken < 5
    found = [first.blob, *blobs(staged)]
    assert len(found) > 5
    values = [record["value"] for blob in found for _, _, record in records(place, blob)]
    assert values == [None if number % 11 == 0 else b"value %d" % number for number in range(2_000)]


def test_a_blob_above_the_limit_is_cut(place: StagingLocation) -> None:
    small = StagingLocation(
        url="http://127.0.0.1:2", directory=place.directory, token=place.token, blob_bytes_max=3_000
    )
    one = options(topic="b")
    staged = stage(
        iter([rows(500)]), one, ATTEMPT, columns=("value",), locations=[small], topics=TOPICS
    )
    found = blobs(staged)
    assert len(found) > 2
    assert all(blob.size_bytes <= 3_000 for blob in found)
    assert sum(blob.records for blob in found) == 500


def test_no_two_attempts_share_a_name(place: StagingLocation) -> None:
    def names() -> set[str]:
        one = options(topic="b")
        staged = stage(
            iter([rows(5)]), one, ATTEMPT, columns=("value",), locations=[place], topics=TOPICS
        )
        return {blob.name for blob in blobs(staged)}

    first, second = names(), names()
    assert not first & second
    assert all(name.startswith("s-an_app-4-2-17-0-") for name in first | second)
    left = {path.name for path in Path(place.directory).iterdir()}
    assert left == first | second | {TOKEN_FILE}


def test_a_task_without_rows_makes_no_request() -> None:
    assert list(stage(iter([rows(0)]), options(topic="x"), ATTEMPT, columns=("value",))) == []


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            pa.RecordBatch.from_pydict({"value": ["a"], "partition": pa.array([9], pa.int32())}),
            "has the value 9, but topic a has partitions 0 to 2",
        ),
        (
            pa.RecordBatch.from_pydict(
                {
                    "value": ["a"],
                    "headers": pa.array(
                        [[{"key": None, "value": b""}]],
                        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                    ),
                }
            ),
            "a header with a null key",
        ),
    ],
)
def test_what_is_wrong_with_rows_is_handed_on(
    place: StagingLocation, batch: pa.RecordBatch, said: str
) -> None:
    one = options(topic="a", batch_bytes=1_024)
    staged = stage(
        iter([batch]), one, ATTEMPT, columns=batch.schema.names, locations=[place], topics=TOPICS
    )
    (item,) = staged
    assert item.blob is None
    assert item.problem is not None
    assert said in item.problem


def test_another_directory_is_not_written_to(place: StagingLocation) -> None:
    assert place.here
    assert not StagingLocation(
        url="http://127.0.0.1:2", directory=place.directory, token="other", blob_bytes_max=1
    ).here
    (Path(place.directory) / TOKEN_FILE).write_text("")
    assert not StagingLocation(
        url="http://127.0.0.1:2", directory=place.directory, token="", blob_bytes_max=1
    ).here
    assert not StagingLocation(
        url="http://127.0.0.1:2", directory="/nowhere", token="secret", blob_bytes_max=1
    ).here
