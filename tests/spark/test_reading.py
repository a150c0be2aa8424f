"""Tasks read files by columns: whole, in pieces, and with what is missing from the broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from penstock.base.ids import TopicPartition
from penstock.base.settings import LONG_MAX
from penstock.client import Client
from penstock.client.client import RawFetch
from penstock.records.columnar import encode_batches
from penstock.records.errors import CorruptBatch
from penstock.records.extents import file_extent
from penstock.records.header import decode_header
from penstock.records.transactions import AbortedRange
from penstock.spark.errors import DataLoss, NotServed
from penstock.spark.reads import broker_log, chunks
from penstock.spark.reads.broker_log import BrokerLog
from penstock.spark.reads.chunks import Fetched, Slice, Task
from penstock.spark.reads.reading import TIME_MS_MAX, Fetcher, TaskReader
from penstock.spark.schema import BATCH_ROWS_MAX, COLUMN_NAMES, DEFAULT_COLUMNS, arrow_schema
from penstock.testing import Broker

RECORDS = 5_000
BATCH_RECORDS = 500


@pytest.fixture(scope="module")
def stored() -> bytes:
    table = pa.table(
        {
            "key": pa.array(
                [None if n % 7 == 0 else f"k{n % 10}".encode() for n in range(RECORDS)]
            ),
            "value": pa.array([f"value {n}".encode() for n in range(RECORDS)]),
            "timestamp": pa.array([1_000 + n for n in range(RECORDS)]),
        }
    )
    batches = encode_batches(table, records_per_batch=BATCH_RECORDS, now_ms=0)
    return b"".join(bytes(batch.data) for batch in batches)


@pytest.fixture
def file(stored: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(stored)
    return path


def positions(stored: bytes) -> list[int]:
    places, at = [], 0
    while at < len(stored):
        places.append(at)
        at += decode_header(stored, at).size_bytes
    return places


@dataclass
class FakeFetcher:
    """A broker that has everything from `log_start` on."""

    stored: bytes
    log_start: int = 0
    batch_records: int = BATCH_RECORDS
    aborted: tuple[AbortedRange, ...] = ()
    only: tuple[int, ...] = ()
    """The batches that are left; none: all of them."""
    asked: list[int] = field(default_factory=list)

    def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
        self.asked.append(offset)
        if offset < self.log_start:
            raise DataLoss(at.topic, at.partition, offset, self.log_start)
        places = positions(self.stored)
        index = offset // self.batch_records
        if self.only:
            index = min(place for place in self.only if place >= index)
            size_bytes = decode_header(self.stored, places[index]).size_bytes
            return Fetched(self.stored[places[index] : places[index] + size_bytes])
        found = (
            self.stored[places[index] : places[index] + 2_000_000] if index < len(places) else b""
        )
        return Fetched(found, self.aborted)

    def close(self) -> None:
        pass


def piece(file: Path | None, start: int, end: int, **more: int) -> Slice:
    at = TopicPartition("t", 3)
    if file is None:
        return Slice(at=at, start=start, end=end)
    size = file.stat().st_size if file.exists() else 10
    extent = file_extent(
        str(file),
        byte_offset=more.get("position", 0),
        size_bytes=more.get("size_bytes", size),
        base_offset=more.get("base_offset", 0),
        next_offset=end,
    )
    return Slice(at=at, start=start, end=end, extents=(extent,))


def read(
    slices: Sequence[Slice],
    columns: Sequence[str] = DEFAULT_COLUMNS,
    fetcher: Fetcher | None = None,
    fail_on_data_loss: bool = True,
) -> pa.Table:
    reader = TaskReader(columns, bootstrap="", fail_on_data_loss=fail_on_data_loss, fetcher=fetcher)
    return pa.Table.from_batches(reader.read(Task(slices)), schema=arrow_schema(columns))


def test_a_file_is_read_whole(file: Path) -> None:
    found = read([piece(file, 0, RECORDS)], COLUMN_NAMES)
    assert found["offset"].to_pylist() == list(range(RECORDS))
    assert found["value"][4_999].as_py() == b"value 4999"
    assert found["key"].null_count == len(range(0, RECORDS, 7))
    assert set(found["topic"].to_pylist()) == {"t"}
    assert set(found["partition"].to_pylist()) == {3}
    assert set(found["timestampType"].to_pylist()) == {0}
    assert found["headers"].to_pylist()[0] in ([], None)
    assert pc.min(found["timestamp"]).cast(pa.int64()).as_py() == 1_000_000


def test_an_inner_range_starts_at_an_indexed_batch(file: Path, stored: bytes) -> None:
    place = positions(stored)[2]
    item = piece(file, 1_234, 1_777, position=place, base_offset=1_000,
                 size_bytes=positions(stored)[4] - place)  # fmt: skip
    assert read([item], ("offset",))["offset"].to_pylist() == list(range(1_234, 1_777))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    times=st.lists(
        st.integers(-LONG_MAX - 1, LONG_MAX)
        | st.integers(-(10**14), 10**14)
        | st.sampled_from([-1, 0, TIME_MS_MAX, TIME_MS_MAX + 1, -TIME_MS_MAX, -TIME_MS_MAX - 1]),
        min_size=1,
        max_size=20,
    )
)
def test_a_time_is_the_same_in_spark_or_null(tmp_path: Path, times: list[int]) -> None:
    """The oracle are Python's integers, which have no end."""
    path = tmp_path / "0.log"
    encoded = [
        encode_batches(pa.table({"value": [b"v"], "timestamp": [time]}), now_ms=0, base_offset=n)
        for n, time in enumerate(times)
    ]
    path.write_bytes(b"".join(bytes(batch.data) for batches in encoded for batch in batches))
    found = read([piece(path, 0, len(times))], ("timestamp",))["timestamp"].cast(pa.int64())
    exact = [time * 1_000 for time in times]
    assert found.to_pylist() == [us if -(2**63) <= us < 2**63 else None for us in exact]


@pytest.mark.parametrize("chunk_bytes", [100, 30_001, 4 << 20])
def test_aborted_transactions_are_left_out(
    chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    encoded = [
        encode_batches(
            pa.table({"value": [b"v"] * 10}),
            now_ms=0,
            base_offset=base,
            producer_id=7,
            producer_epoch=0,
            base_sequence=base,
            transactional=True,
        )[0]
        for base in range(0, 100, 10)
    ]
    stored = b"".join(bytes(batch.data) for batch in encoded)
    path = tmp_path / "0.log"
    path.write_bytes(stored)
    aborted = (AbortedRange(7, 20, 50), AbortedRange(7, 90, 120), AbortedRange(8, 60, 80))
    here = replace(piece(path, 5, 100), aborted=aborted)
    wanted = [*range(5, 20), *range(60, 90)]
    assert read([here], ("offset",))["offset"].to_pylist() == wanted
    fetcher = FakeFetcher(stored, batch_records=10, aborted=aborted)
    elsewhere = piece(None, 5, 100)
    assert read([elsewhere], ("offset",), fetcher)["offset"].to_pylist() == wanted


def test_chunks_smaller_than_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (100, 20_000, 30_001):  # below one batch, one batch, and a cut batch
        monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
        found = read([piece(file, 10, RECORDS - 10)], ("offset",))
        assert found["offset"].to_pylist() == list(range(10, RECORDS - 10))


def test_batches_for_spark_are_bounded(tmp_path: Path) -> None:
    count = 2 * BATCH_ROWS_MAX + 5
    table = pa.table({"value": pa.repeat(pa.scalar(b"x"), count)})
    path = tmp_path / "0.log"
    path.write_bytes(b"".join(bytes(b.data) for b in encode_batches(table, now_ms=0)))
    reader = TaskReader(("value",), bootstrap="", fail_on_data_loss=True)
    sizes = [batch.num_rows for batch in reader.read(Task([piece(path, 0, count)]))]
    assert sum(sizes) == count
    assert max(sizes) <= BATCH_ROWS_MAX


def test_what_is_not_in_a_file_comes_from_the_broker(file: Path, stored: bytes) -> None:
    other = file.with_name("other.log")
    for item in (piece(None, 700, 2_100), piece(other, 700, 2_100)):
        fetcher = FakeFetcher(stored)
        assert read([item], ("offset",), fetcher)["offset"].to_pylist() == list(range(700, 2_100))
        assert fetcher.asked[0] == 700


def test_a_file_that_ends_early_or_is_another_is_not_trusted(file: Path, stored: bytes) -> None:
    short = piece(file, 0, RECORDS, size_bytes=len(stored) + 1)
    other = piece(file, 0, RECORDS, base_offset=77)
    for item in (short, other):
        fetcher = FakeFetcher(stored)
        assert read([item], ("offset",), fetcher).num_rows == RECORDS
        assert fetcher.asked


def test_a_range_that_the_files_extent_only_begins(file: Path, stored: bytes) -> None:
    size = positions(stored)[3]
    fetcher = FakeFetcher(stored)
    item = piece(file, 0, 2_000, size_bytes=size)
    assert read([item], ("offset",), fetcher)["offset"].to_pylist() == list(range(2_000))
    assert fetcher.asked == [1_500]


def test_deleted_records(stored: bytes) -> None:
    item = piece(None, 0, 2_000)
    with pytest.raises(DataLoss, match="t-3: offsets 0 to 999"):
        read([item], ("offset",), FakeFetcher(stored, log_start=1_000))
    found = read([item], ("offset",), FakeFetcher(stored, log_start=1_000), False)
    assert found["offset"].to_pylist() == list(range(1_000, 2_000))


@pytest.mark.parametrize("gap", ["before the range's end", "over the range's end", "behind"])
def test_offsets_that_were_deleted(gap: str, stored: bytes) -> None:
    kept = {"before the range's end": (0, 1, 4), "over the range's end": (0, 1, 7), "behind": (0,)}
    fetcher = FakeFetcher(stored, only=kept[gap])
    end = BATCH_RECORDS if gap == "behind" else 5 * BATCH_RECORDS
    expected = [n for n in range(end) if n // BATCH_RECORDS in kept[gap]]
    assert read([piece(None, 0, end)], ("offset",), fetcher)["offset"].to_pylist() == expected


@pytest.mark.parametrize("answer", ["nothing", "half a batch", "what is before"])
def test_an_answer_without_progress_is_no_end(answer: str, stored: bytes) -> None:
    first = decode_header(stored, 0).size_bytes
    found = {"nothing": b"", "half a batch": stored[: first - 1], "what is before": stored[:first]}

    class Stuck(FakeFetcher):
        def fetch(self, at: TopicPartition, offset: int, max_bytes: int) -> Fetched:
            if offset < BATCH_RECORDS:
                return Fetched(stored[:first])
            return Fetched(found[answer])

    with pytest.raises(NotServed, match=r"t-3: the response to a fetch of offset 500 .* 1999"):
        read([piece(None, 0, 2_000)], ("offset",), Stuck(stored))


class Impatient(BrokerLog):
    """A log whose broker answers with nothing a few times, as if the log ended there."""

    def __init__(self, bootstrap: str, *, empty: int) -> None:
        super().__init__(bootstrap)
        self.empty = empty

    @property
    def client(self) -> Client:
        fetch_raw = super().client.fetch_raw

        def answer(*where: Any, **more: Any) -> RawFetch:
            self.empty -= 1
            found = fetch_raw(*where, **more)
            return structs.replace(found, data=b"") if self.empty >= 0 else found

        return cast(Client, SimpleNamespace(fetch_raw=answer, close=super().client.close))


def test_an_empty_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_log, "FETCH_ATTEMPTS_MAX", 5)
    with Broker() as broker, Client(broker.bootstrap) as client:
        client.create_topic("t", partitions=4)
        client.write_arrow("t", pa.table({"value": [b"v"] * 10}), partition=3)
        whole = read([piece(None, 0, 10)], ("offset",), Impatient(broker.bootstrap, empty=4))
        assert whole["offset"].to_pylist() == list(range(10))
        with pytest.raises(NotServed, match=r"offset 0 in 5 requests.* last stable offset 10"):
            read([piece(None, 0, 10)], ("offset",), Impatient(broker.bootstrap, empty=99))


def test_damage_is_found(file: Path, stored: bytes) -> None:
    damaged = bytearray(stored)
    damaged[positions(stored)[1] + 100] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(CorruptBatch):
        read([piece(file, 0, RECORDS)], ("offset",))
