"""Batches of exactly-once sinks for topics with three replicas, through failovers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.batch_commits import Committed, SinkService
from penstock.broker.batch_commits.manifest import InvalidCommit, NotFinished, parse_post
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, SinkCommit
from penstock.records.columnar import decode_batches
from tests.broker.batch_commits.sink_client import Part, encode_blob
from tests.broker.registered import Registered, framed, give
from tests.broker.test_replicated import Cluster, until

pytestmark = pytest.mark.timeout(300)

VALUES = [f"value {number}" for number in range(100)]


class SinkCluster(Cluster):
    """Three brokers, each with a directory for staged blobs."""

    async def start(self, node_id: int) -> BrokerServer:
        self.settings = {"sink.staging.directory": str(self.staging(node_id))}
        return await super().start(node_id)

    def staging(self, node_id: int) -> Path:
        return self.root / f"staging-{node_id}"

    def sinks(self, node_id: int) -> SinkService:
        found = self.brokers[node_id].sinks
        assert found is not None
        return found

    def stage(self, node_id: int, name: str, values: list[str]) -> dict[str, Any]:
        topic = self.brokers[node_id].cluster.image.topics["t"]
        ids = {"t": str(topic.topic_id)}
        blob, entry = encode_blob(name, [Part("t", 0, values)], ids, records_per_batch=7)
        (self.staging(node_id) / name).write_bytes(blob)
        return entry

    async def post(self, node_id: int, batch: int, entry: dict[str, Any]) -> Committed:
        owner, manifest = parse_post(json.dumps({"owner": "o", "blobs": [entry]}).encode())
        return await self.sinks(node_id).post(
            query="q", batch_id=batch, owner=owner, manifest=manifest
        )

    async def finished(self, node_id: int, batch: int, entry: dict[str, Any]) -> Committed:
        """Repeat the post until it is done, as a driver does."""
        async with asyncio.timeout(120):
            while True:
                try:
                    return await self.post(node_id, batch, entry)
                except NotFinished:
                    await asyncio.sleep(0.1)

    async def records(self) -> list[str]:
        data = await self.values(await self.led())
        return [value.decode() for value in decode_batches(data).column("value").to_pylist()]


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[SinkCluster]:
    made = SinkCluster(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


@pytest.mark.parametrize("leads", [True, False])
async def test_any_broker_takes_batches(cluster: SinkCluster, leads: bool) -> None:
    leader = await cluster.create()
    node_id = leader if leads else leader % 3 + 1
    first = cluster.stage(node_id, "first", VALUES)
    assert (await cluster.post(node_id, 0, first)).outcome == "appended"
    assert (await cluster.post(node_id, 0, first)).outcome == "replayed"
    second = cluster.stage(node_id, "second", ["more"])
    assert (await cluster.post(node_id, 1, second)).outcome == "appended"
    assert await cluster.records() == [*VALUES, "more"]
    row = await cluster.sinks(node_id).commit_of("q")
    assert [target.next_sequence for target in row.targets] == [101], "with one producer"


async def test_schema_ids_are_checked_before_a_commit_and_not_again(cluster: SinkCluster) -> None:
    """A commit that has begun must end, even if its schemas were deleted meanwhile."""
    for broker in cluster.brokers.values():
        give(broker, Registered(5))
    leader = await cluster.create(more={"schema.validation.value": "true"})
    give(cluster.brokers[leader], Registered())
    node_id, values = leader % 3 + 1, [framed(5).decode()] * 10
    with pytest.raises(InvalidCommit, match="topic 't': record 3 of 4 has no schema id"):
        await cluster.post(node_id, 0, cluster.stage(node_id, "bad", [*values, "plain"]))
    done = await cluster.finished(node_id, 0, cluster.stage(node_id, "good", values))
    assert done.outcome == "appended"
    assert await cluster.records() == values


async def test_the_leader_goes_between_stage_and_commit(cluster: SinkCluster) -> None:
    leader = await cluster.create()
    node_id = leader % 3 + 1
    assert await cluster.finished(node_id, 0, cluster.stage(node_id, "before", VALUES))
    entry = cluster.stage(node_id, "after", ["staged", "while another led"])
    silent = await cluster.fall_silent(leader)
    done = await cluster.finished(node_id, 1, entry)
    assert done.outcome in ("appended", "replayed")
    assert await cluster.led() != leader
    assert await cluster.records() == [*VALUES, "staged", "while another led"]
    await silent.stop()


async def test_what_was_appended_before_a_crash_is_not_appended_again(
    cluster: SinkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker crashes after its appends; another one leads when it restarts."""
    leader = await cluster.create()
    node_id = leader % 3 + 1
    control = cluster.brokers[node_id].control
    save = control.save_sink_commit

    async def failing(record: SinkCommit, *, expected_version: int) -> int:
        if record.state == "done":
            raise ControlUnavailable("the database is away")
        return await save(record, expected_version=expected_version)

    monkeypatch.setattr(control, "save_sink_commit", failing)
    entry = cluster.stage(node_id, "blob", VALUES)
    with pytest.raises(NotFinished):
        await cluster.post(node_id, 0, entry)
    await cluster.stop(node_id)
    await cluster.start(node_id)
    await cluster.stop(leader)
    await until(lambda: cluster.sinks(node_id).prepared_commits == 0)
    assert (await cluster.post(node_id, 0, entry)).outcome == "replayed"
    assert await cluster.records() == VALUES
    assert cluster.sinks(node_id).counters.records == 0, "the producer's sequences said so"
