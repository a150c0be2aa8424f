"""Tables to a broker and back: PyArrow, Polars, pandas, every codec, every partitioning."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import wait

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.client import Client, InvalidArgument, MessageTooLarge, OffsetOutOfRange, UnknownTopic
from penstock.client.partitioning import partitions_of_keys
from penstock.client.session import ConnectionPool
from penstock.records.columnar import decode_batches

MakeTopic = Callable[..., str]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def table(rows: int, keys: int = 97) -> pa.Table:
    return pa.table(
        {
            "key": [f"key-{index % keys}" for index in range(rows)],
            "value": [f"value-{index}".encode() for index in range(rows)],
            "timestamp": pa.array(np.arange(rows) + 1_700_000_000_000),
        }
    )


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(client: Client, topic: MakeTopic, codec: str) -> None:
    name = topic(3)
    data = table(10_000)
    report = client.write_arrow(name, data, codec=codec)
    assert report.records == 10_000
    assert sum(report.partition_records.values()) == 10_000
    assert {p: first for p, (first, _) in report.offsets.items()} == {0: 0, 1: 0, 2: 0}
    found = client.read_arrow(name)
    assert found.num_rows == 10_000
    expected = data.append_column(
        "partition",
        pa.array(partitions_of_keys(data["key"].combine_chunks(), 3, unkeyed=0)),
    ).sort_by([("partition", "ascending"), ("timestamp", "ascending")])
    for column in ("key", "value"):
        assert found[column].to_pylist() == expected[column].cast(pa.binary()).to_pylist()
    assert found["timestamp"].to_pylist() == expected["timestamp"].to_pylist()
    assert found["partition"].to_pylist() == expected["partition"].to_pylist()


def test_polars(client: Client, topic: MakeTopic) -> None:
    name = topic()
    frame = pl.DataFrame({"key": ["a", None, "c"], "value": ["x", "y", "z"]})
    assert client.write_arrow(name, frame).records == 3
    back = pl.from_arrow(client.read_arrow(name, columns=("key", "value")))
    assert isinstance(back, pl.DataFrame)
    assert back["key"].to_list() == [b"a", None, b"c"]
    assert back["value"].to_list() == [b"x", b"y", b"z"]


def test_pandas(client: Client, topic: MakeTopic) -> None:
    name = topic()
    times = pd.to_datetime([1_700_000_000_123, 1_700_000_000_456], unit="ms", utc=True)
    frame = pd.DataFrame({"value": ["x", "y"], "timestamp": times})
    client.write_arrow(name, frame)
    back = client.read_arrow(name).to_pandas()
    assert back["value"].tolist() == [b"x", b"y"]
    assert back["timestamp"].tolist() == [1_700_000_000_123, 1_700_000_000_456]


def test_headers_nulls_and_large_values(client: Client, topic: MakeTopic) -> None:
    name = topic()
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], [], None],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    values = pa.array([b"x" * 700_000, None, b""])
    client.write_arrow(name, pa.table({"value": values, "headers": headers}))
    back = client.read_arrow(name)
    assert back["value"].to_pylist() == values.to_pylist()
    assert back["headers"].to_pylist() == [
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        [],
        [],
    ]


def test_partition_by_number_and_by_column(client: Client, topic: MakeTopic) -> None:
    name = topic(4)
    client.write_arrow(name, table(10), partition=3)
    assert client.list_offsets(name) == {0: 0, 1: 0, 2: 0, 3: 10}
    data = pa.table({"value": ["a", "b", "c"], "shard": [2, 0, 2]})
    client.write_arrow(name, data, partition="shard")
    assert client.list_offsets(name) == {0: 1, 1: 0, 2: 2, 3: 10}
    with pytest.raises(
        InvalidArgument, match=r"partition 4 does not exist: topic .* has partitions 0 to 3"
    ):
        client.write_arrow(name, table(10), partition=4)
    with pytest.raises(InvalidArgument, match="partition -1"):
        client.write_arrow(name, pa.table({"value": ["a"], "shard": [-1]}), partition="shard")


def test_records_without_keys_take_turns_in_full_batches(client: Client, topic: MakeTopic) -> None:
    name = topic(3)
    report = client.write_arrow(name, pa.table({"value": [b"x" * 100] * 3000}), batch_bytes=20_000)
    assert set(report.partition_records) == {0, 1, 2}
    assert report.records == 3000


@pytest.mark.parametrize("acks", ["1", "0"])
def test_other_acknowledgements(client: Client, topic: MakeTopic, acks: str) -> None:
    name = topic()
    report = client.write_arrow(name, table(1000), acks=acks)
    assert report.records == 1000
    batches = client.iter_arrow(name, end={0: 1000}, max_records=1000)
    assert sum(batch.num_rows for batch in batches) == 1000


def test_many_small_writes_keep_one_identity(client: Client, topic: MakeTopic) -> None:
    name = topic()
    for index in range(20):
        client.write_arrow(name, pa.table({"value": [str(index)]}))
    assert client.read_arrow(name)["value"].to_pylist() == [str(i).encode() for i in range(20)]
    raw = client.fetch_raw(name, 0, 0)
    assert raw.next_offset == raw.high_watermark == 20
    assert decode_batches(raw.data).num_rows == 20


def test_ranges(client: Client, topic: MakeTopic) -> None:
    name = topic()
    client.write_arrow(name, table(1000))
    assert client.read_arrow(name, start={0: 10}, end={0: 20})["offset"].to_pylist() == list(
        range(10, 20)
    )
    by_time = client.read_arrow(name, start=1_700_000_000_990)
    assert by_time["offset"].to_pylist() == list(range(990, 1000))
    assert client.read_arrow(name, start=1_800_000_000_000).num_rows == 0
    assert client.read_arrow(name, start="latest").num_rows == 0
    assert client.read_arrow(name, max_records=7).num_rows == 7
    only = client.read_arrow(name, columns=("offset",), max_records=3)
    assert only.schema.names == ["offset"]
    assert client.list_offsets(name, 1_700_000_000_500) == {0: 500}


def test_small_fetches_read_everything_once(client: Client, topic: MakeTopic) -> None:
    name = topic(2)
    client.write_arrow(name, table(5000), batch_bytes=5_000)
    batches = list(client.iter_arrow(name, max_bytes=20_000))
    assert len(batches) > 5
    found = pa.Table.from_batches(batches)
    assert sorted(found["value"].to_pylist()) == sorted(table(5000)["value"].to_pylist())
    for partition in (0, 1):
        offsets = found.filter(pa.compute.field("partition") == partition)["offset"].to_pylist()
        assert offsets == list(range(len(offsets)))


class HeldUp:
    """Clock of a process that is suspended for an hour whenever it waits for a response."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._ahead = 0.0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()

    def monotonic(self) -> float:
        waiting = [connection for connection in self._pool._lent if connection.under_way]
        if waiting:
            assert wait([connection.fileno() for connection in waiting], 60), "no response came"
            self._ahead += 3600
        return SYSTEM_CLOCK.monotonic() + self._ahead


def test_following_ends_when_nothing_comes_and_not_for_what_could_not_be_read(
    client: Client, topic: MakeTopic
) -> None:
    name = topic()
    client.write_arrow(name, table(10))
    client._session.clock = HeldUp(client._session.pool)
    batches = client.iter_arrow(name, end=None, idle_timeout_ms=60_000, max_wait_ms=50)
    assert sum(batch.num_rows for batch in batches) == 10


def test_following_sees_what_is_written_later(client: Client, topic: MakeTopic) -> None:
    name = topic()
    batches = client.iter_arrow(name, end=None, max_records=15)
    client.write_arrow(name, table(10))
    first = next(batches)
    assert first.num_rows == 10
    client.write_arrow(name, table(5))
    assert sum(batch.num_rows for batch in batches) == 5


def test_rate(client: Client, topic: MakeTopic) -> None:
    name = topic()
    seen: list[int] = []
    report = client.write_arrow(
        name, table(1000), records_per_second=5000, progress=lambda records, _: seen.append(records)
    )
    assert report.records == 1000
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == 1000


def test_errors_name_what_is_wrong(client: Client, topic: MakeTopic) -> None:
    name = topic(1, max_message_bytes="50000")
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        client.read_arrow("no-such-topic")
    with pytest.raises(UnknownTopic, match="no-such-topic"):
        client.write_arrow("no-such-topic", table(1))
    with pytest.raises(UnknownTopic, match=f"{name}-7"):
        client.read_arrow(name, partitions=[7])
    with pytest.raises(MessageTooLarge, match=f"{name}-0: MESSAGE_TOO_LARGE"):
        client.write_arrow(name, pa.table({"value": [b"x" * 60_000]}))
    with pytest.raises(OffsetOutOfRange, match="10"):
        client.fetch_raw(name, 0, 10)
    with pytest.raises(InvalidArgument, match="its columns are key, value, timestamp"):
        client.write_arrow(name, table(1), value="payload")
    with pytest.raises(InvalidArgument, match="codec = 'brotli'"):
        client.write_arrow(name, table(1), codec="brotli")
    with pytest.raises(InvalidArgument, match="acks = 'some'"):
        client.write_arrow(name, table(1), acks="some")
    with pytest.raises(InvalidArgument, match="has type int64"):
        client.write_arrow(name, pa.table({"value": [1, 2]}))
    with pytest.raises(InvalidArgument, match="no __arrow_c_stream__"):
        client.write_arrow(name, [{"value": "x"}])
    with pytest.raises(InvalidArgument, match="column 'colour'"):
        client.read_arrow(name, columns=("colour",))
    with pytest.raises(InvalidArgument, match="port"):
        Client("localhost:port")


def test_timestamp_types_follow_their_batches(client: Client, topic: MakeTopic) -> None:
    name = topic()
    client.write_arrow(name, table(3))
    client.alter_configs("topic", name, {"message.timestamp.type": "LogAppendTime"})
    client.write_arrow(name, table(2))
    found = client.read_arrow(name, columns=("timestamp_type", "offset"))
    assert found["timestamp_type"].to_pylist() == [0, 0, 0, 1, 1]
    only = client.read_arrow(name, start={0: 2}, columns=("timestamp_type",))
    assert only["timestamp_type"].to_pylist() == [0, 1, 1]
