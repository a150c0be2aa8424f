"""Tables as frames of record batches: which partition, how large, in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import PenstockError
from penstock.client.errors import InvalidArgument
from penstock.client.partitioning import partitions_of_keys
from penstock.host import HostClient
from penstock.host.client.encoding import RecordOptions, record_frames
from penstock.host.client.publications import Turns
from penstock.host.errors import InvalidChunks
from penstock.host.port import ChunkFormat
from penstock.host.publication import Publication
from penstock.records import RecordTooLarge, decode_header
from penstock.records.columnar import decode_batches
from penstock.records.header import NO_PRODUCER_ID
from tests.host.client.agents import GateSink, ThreadAgent

NOW_MS = 1_700_000_000_000


def frames(
    data: Any, *, partitions: int = 4, frame_bytes_max: int = 8 << 20, **options: Any
) -> list[Publication]:
    return list(
        record_frames(
            "t",
            data,
            RecordOptions(**options),
            partitions=partitions,
            frame_bytes_max=frame_bytes_max,
            turns=Turns(),
            now_ms=lambda: NOW_MS,
        )
    )


def values(publications: list[Publication], partition: int | None = None) -> list[bytes]:
    chosen = [p for p in publications if partition is None or p.partition == partition]
    return [
        value
        for publication in chosen
        for value in decode_batches(bytes(publication.payload[0]))["value"].to_pylist()
    ]


def table(rows: int, *, keys: bool, size: int = 10) -> pa.Table:
    columns: dict[str, Any] = {
        "value": pa.array([b"%0*d" % (size, n) for n in range(rows)], pa.binary())
    }
    if keys:
        columns["key"] = pa.array([f"k{n % 37}" for n in range(rows)])
    return pa.table(columns)


def test_keys_go_where_kafka_sends_them() -> None:
    data = table(1000, keys=True)
    made = frames(data)
    where = partitions_of_keys(data["key"].combine_chunks(), 4, unkeyed=0)
    everything = np.array(data["value"].to_pylist())
    for partition in range(4):
        assert values(made, partition) == everything[where == partition].tolist()


def test_a_frame_is_one_batch_that_carries_no_identity() -> None:
    for publication in frames(table(5000, keys=True, size=400)):
        header = decode_header(publication.payload[0])
        assert publication.format is ChunkFormat.RECORD_BATCH
        assert (publication.count, publication.batches) == (1, 1)
        assert publication.event_count == publication.records == header.record_count
        assert header.size_bytes == publication.payload_bytes <= 1_000_000
        assert (header.producer_id, header.base_sequence) == (NO_PRODUCER_ID, -1)


def test_without_keys_batches_take_turns_and_are_full() -> None:
    made = frames(table(40_000, keys=False, size=100))
    assert [publication.partition for publication in made] == [n % 4 for n in range(len(made))]
    assert values(made) == table(40_000, keys=False, size=100)["value"].to_pylist()
    assert all(publication.payload_bytes > 600_000 for publication in made[:-1])


def test_frames_keep_to_the_agents_limit() -> None:
    made = frames(table(5000, keys=False, size=200), frame_bytes_max=100_000)
    assert max(publication.payload_bytes for publication in made) <= 100_000 - 1024
    with pytest.raises(RecordTooLarge):
        frames(table(1, keys=False, size=200_000), frame_bytes_max=100_000)


def test_one_partition_for_all_and_a_column() -> None:
    data = table(100, keys=True)
    assert {p.partition for p in frames(data, partition=2)} == {2}
    assert {p.partition for p in frames(data, partition=2, partitions=0)} == {2}
    column = pa.array(np.arange(100, dtype=np.int32) % 3)
    made = frames(data.append_column("where", column), partition="where")
    assert values(made, 1) == data["value"].to_pylist()[1::3]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs(codec: str) -> None:
    data = table(2000, keys=True, size=50)
    made = frames(data, codec=codec)
    assert sorted(values(made)) == data["value"].to_pylist()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"partitions": 0}, InvalidChunks),
        ({"partition": -1}, InvalidArgument),
        ({"partition": 4}, InvalidArgument),
        ({"partition": "nowhere"}, InvalidArgument),
        ({"value": "nowhere"}, InvalidArgument),
        ({"codec": "brotli"}, InvalidArgument),
        ({"data": [1, 2, 3]}, InvalidArgument),
    ],
)
def test_what_cannot_be(change: dict[str, Any], kind: type[PenstockError]) -> None:
    with pytest.raises(kind):
        frames(**{"data": table(5, keys=True), **change})


def test_through_a_client(path: str) -> None:
    def chunks() -> list[bytes]:
        return [frame.chunks[0] for frame in agent.frames()]

    data = table(3000, keys=True)
    publish: Callable[..., Any]
    with ThreadAgent(path, GateSink()) as agent, HostClient(path, topics=["t"]) as client:
        publish = client.publish_records
        futures = publish("t", data, codec="lz4")
        for future in futures:
            future.result(20)
        found = [v for c in chunks() for v in decode_batches(c)["value"].to_pylist()]
        assert sorted(found) == data["value"].to_pylist()
        assert publish("t", data.slice(0, 0)) == []
        with pytest.raises(InvalidChunks, match="number of partitions"):
            publish("unnamed", data)
