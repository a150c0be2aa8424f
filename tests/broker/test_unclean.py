"""Two of three brokers are lost permanently: the remaining replica leads only by choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from penstock.client import Client, LogTruncated, ReadPosition
from penstock.records import split_batches
from tests.broker.test_drain import facts, ran
from tests.broker.test_replicated import Cluster, has, until
from tests.broker.test_replicated_handover import elect, replicas
from tests.broker.test_replicated_moves import check, four, moved, row
from tests.broker.wire_client import batch
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)
__all__ = ["four"]


Positions = Mapping[int, ReadPosition]


async def lose_two(four: Cluster) -> tuple[int, tuple[int, int], Positions]:
    """Return the remaining broker, the lost leader, and a reader's position."""
    leader = await four.create()
    gone = leader, next(replica for replica in row(four).replicas if replica != leader)
    left = next(replica for replica in row(four).replicas if replica not in gone)
    for number in range(5):
        await four.produce(b"everywhere %d" % number)
    await until(lambda: has(four.log(left), 5))
    replicas(four, left).replication.rows_came = _nothing  # type: ignore[assignment,method-assign]
    for number in range(3):
        await four.produce(b"lost %d" % number)
    positions = await asyncio.to_thread(read_to, address(four, leader), 8)
    for node_id in gone:
        await four.stop(node_id)
    await four.stop(left)
    await four.start(left)
    return left, gone, positions


def address(four: Cluster, node_id: int) -> str:
    return ":".join(map(str, four.brokers[node_id].kafka_address))


def read_to(bootstrap: str, offset: int, start: str | Positions = "earliest") -> Positions:
    with Client(bootstrap) as client, client.subscribe("t", start=start) as stream:
        for _ in stream:
            if stream.positions[0].offset == offset:
                break
        return stream.positions


def _nothing(*_: object) -> None: ...


async def test_an_unclean_election_records_what_it_gave_up(four: Cluster) -> None:
    four.settings["admin.listener"] = f"127.0.0.1:{free_port()}"
    left, gone, _ = await lose_two(four)
    four.settings.clear()
    via = next(broker_id for broker_id in four.brokers if broker_id != left)
    before = row(four)
    (elected,) = await facts(four, "topic", "elect", "t", "--unclean", "--yes")
    assert elected["outcome"] == "elected"
    await until(lambda: four.leader() == left)
    (loss,) = await four.brokers[via].control.partition_losses()
    after = four.brokers[left].cluster.image.topics["t"].partitions[0]
    assert (loss.epoch, loss.sealed, loss.from_offset, loss.broker, set(loss.missing)) == (
        after.leader_epoch,
        before.leader_epoch,
        5,
        left,
        set(gone),
    )
    assert (after.replicas, after.isr, set(after.target)) == ((left,), (left,), {left, *gone})
    client = four.clients[left]
    refused = await client.produce("t", batch(b"too few"), acks=-1)
    assert refused.error_code.name == "not_enough_replicas"
    (told,) = (await facts(four, "cluster", "status"))["given_up"]
    assert (told["topic"], told["partition"], told["from_offset"], told["broker"]) == (
        "t",
        0,
        5,
        left,
    )
    said = json.loads((await ran(four, "doctor", "--output", "json", status=1))[0])
    (finding,) = [row for row in said if row["check"] == "unclean elections"]
    assert finding["cause"].startswith(
        f"t-0 may have lost records from offset 5 of epoch {before.leader_epoch} on; broker "
    )
    # Who was gone comes back, gives up what it had alone, and is a replica again.
    for node_id in gone:
        await four.start(node_id)
    await moved(four, before.replicas)
    assert await four.produce(b"after") == 5
    await check(four, before.replicas, 6)
    assert await elect(four, via, {"t": [0]}, kind=1) == {
        ("t", 0): ("election_not_needed", f"broker {four.leader()} already leads t-0")
    }


async def test_a_topic_may_choose_it_beforehand(four: Cluster) -> None:
    left, _, positions = await lose_two(four)
    assert four.leader() == 0
    resource = {"resource_type": 2, "resource_name": "t", "configs": [
        {"name": "unclean.leader.election.enable", "config_operation": 0, "value": "true"}
    ]}  # fmt: skip
    body = {"resources": [resource], "validate_only": False}
    answer = await four.clients[left].call("IncrementalAlterConfigs", 1, body)
    assert answer.responses[0].error_code.name == "none"
    await until(lambda: four.leader() == left)
    (loss,) = await four.brokers[left].control.partition_losses()
    assert loss.from_offset == 5
    # Who has read what is given up is told so, though there are other records at its place now.
    for number in range(5):
        await four.produce(b"instead %d" % number, acks=1)
    with pytest.raises(LogTruncated, match="discarded the later ones") as caught:
        await asyncio.to_thread(read_to, address(four, left), 10, positions)
    epoch = positions[0].epoch
    assert (caught.value.read, caught.value.left) == ((epoch, 8), (epoch, 5))
    found = await asyncio.to_thread(
        read_to, address(four, left), 10, {0: ReadPosition(*caught.value.left)}
    )
    newest = split_batches(await four.values(left, start=9))[-1].partition_leader_epoch
    assert found == {0: ReadPosition(newest, 10)}
