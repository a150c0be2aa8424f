"""Two of three brokers are lost for ever: what is left leads where somebody chose that."""

from __future__ import annotations

import json

import pytest

from tests.broker.test_drain import facts, ran
from tests.broker.test_replicated import Cluster, has, until
from tests.broker.test_replicated_handover import elect, replicas
from tests.broker.test_replicated_moves import check, four, moved, row
from tests.broker.wire_client import batch
from tests.ports import free_port

pytestmark = pytest.mark.timeout(300)
__all__ = ["four"]


async def lose_two(four: Cluster) -> tuple[int, tuple[int, int]]:
    """Who is left, and who is gone with records that only they have."""
    leader = await four.create()
    gone = leader, next(one for one in row(four).replicas if one != leader)
    left = next(one for one in row(four).replicas if one not in gone)
    for number in range(5):
        await four.produce(b"everywhere %d" % number)
    await until(lambda: has(four.log(left), 5))
    replicas(four, left).replication.rows_came = _nothing  # type: ignore[assignment,method-assign]
    for number in range(3):
        await four.produce(b"lost %d" % number)
    for node_id in gone:
        await four.stop(node_id)
    await four.stop(left)
    await four.start(left)
    return left, gone


def _nothing(*_: object) -> None:
    """As a broker that has no time for it."""


async def test_an_unclean_election_records_what_it_gave_up(four: Cluster) -> None:
    four.settings["admin.listener"] = f"127.0.0.1:{free_port()}"
    left, gone = await lose_two(four)
    four.settings.clear()
    via = next(one for one in four.brokers if one != left)
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
    (finding,) = [one for one in said if one["check"] == "records given up"]
    assert finding["cause"].startswith(f"t-0 from offset 5 of epoch {before.leader_epoch} on, by")
    # Who was gone comes back, gives up what it had alone, and is a replica again.
    for node_id in gone:
        await four.start(node_id)
    await moved(four, before.replicas)
    assert await four.produce(b"after") == 5
    await check(four, before.replicas, 6)
    assert await elect(four, via, {"t": [0]}, kind=1) == {
        ("t", 0): ("election_not_needed", f"t-0 is led by broker {four.leader()}")
    }


async def test_a_topic_may_choose_it_beforehand(four: Cluster) -> None:
    left, _ = await lose_two(four)
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
