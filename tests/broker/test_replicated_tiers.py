"""New replicas of tiered topics copy what their leader has on disk, and serve everything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.partitions import LocalPartition
from penstock.testing import Broker
from tests.broker.test_tiers import RECORDS, SETTINGS, TIERED, consumed, fill, wait_for

pytestmark = pytest.mark.timeout(300)

PLACE = ("t", 0)


@pytest.fixture
def brokers(tmp_path: Path, postgres_url: str) -> Iterator[dict[int, Broker]]:
    """Four brokers, of which three are to have the topic."""
    made = {}
    with ExitStack() as stack:
        for node_id in (1, 2, 3, 4):
            settings = {
                **SETTINGS,
                "node.id": node_id,
                "control.url": postgres_url,
                "diskless.storage.url": (tmp_path / "objects").as_uri(),
                "replication.listener": "127.0.0.1:0",
                "broker.session.timeout.ms": 2_000,
                "broker.heartbeat.interval.ms": 100,
            }
            broker = Broker(settings, directory=tmp_path / str(node_id), admin=False)
            made[node_id] = stack.enter_context(broker)
        yield made


def copy_on(broker: Broker) -> LocalPartition | None:
    """Return a broker's partition of the topic, as leader or follower."""
    assert broker.server is not None
    served = broker.server.partitions.topics.get("t")
    found = None if served is None else served.partitions[0] or served.followed[0]
    assert found is None or isinstance(found, LocalPartition)
    return found


def leader_of(brokers: dict[int, Broker]) -> int:
    leads = [
        broker
        for broker in brokers
        if (copy := copy_on(brokers[broker])) is not None and copy.leads
    ]
    return leads[0] if leads else 0


def archived(brokers: dict[int, Broker], records: int) -> LocalPartition | None:
    """Return the leader's partition once closed segments are archived and mostly deleted.

    Args:
        records: number of records of the partition, more than half of which are to be deleted.
    """
    leader = leader_of(brokers)
    copy = copy_on(brokers[leader]) if leader else None
    if copy is None or copy.tiers is None or not copy.log.state.loaded:
        return None
    closed = copy.log.state.segments[-1].base_offset
    done = copy.tiers.tiered_end == closed and copy.log.log_start_offset > records // 2
    return copy if done else None


def is_like(broker: Broker, leader: LocalPartition) -> bool:
    """Whether a follower has what its leader has on disk, and not more."""
    copy = copy_on(broker)
    return (
        copy is not None
        and copy.log.state.loaded
        and copy.log.log_start_offset >= leader.log.log_start_offset
        and copy.log.durable_offset == leader.log.durable_offset
    )


def make_lead(brokers: dict[int, Broker], replicas: list[int]) -> None:
    """Have these brokers be the replicas, and the first of them lead."""
    with brokers[replicas[0]].client() as client:
        assert client.reassign({PLACE: replicas}) == {}
        client.await_reassigned([PLACE], 60.0, lambda done, total: None)
        wait_for(lambda: client.elect_leaders("t", [0]) and leader_of(brokers) == replicas[0])


def test_a_new_replica_copies_what_is_not_in_the_archive_alone(brokers: dict[int, Broker]) -> None:
    with brokers[1].client() as client:
        client.create_topic("t", 1, TIERED, replication_factor=3)
    sent = fill(brokers[1])
    leader = wait_for(lambda: archived(brokers, RECORDS))
    first = leader_of(brokers)
    holders = [broker for broker in brokers if copy_on(brokers[broker]) is not None]
    (outside,) = brokers.keys() - set(holders)
    wiped = next(holder for holder in holders if holder != first)

    brokers[wiped].stop()
    shutil.rmtree(brokers[wiped].directory)
    brokers[wiped].start()
    wait_for(lambda: is_like(brokers[wiped], leader))
    copy = copy_on(brokers[wiped])
    assert copy is not None
    assert copy.log.state.segments[0].base_offset >= leader.log.log_start_offset > RECORDS // 2
    assert copy.log.size_bytes <= leader.log.size_bytes < 200_000

    # It leads, from the archive's start, and goes on where the rows end.
    make_lead(brokers, [wiped, *(holder for holder in holders if holder != wiped)])
    assert consumed(brokers[wiped], RECORDS) == sent
    tiered_end = leader.tiers.tiered_end
    sent += fill(brokers[wiped])
    leader = wait_for(lambda: archived(brokers, 2 * RECORDS))
    assert leader.tiers.tiered_end > tiered_end
    assert leader.log_start_offset == 0
    assert consumed(brokers[first], 2 * RECORDS) == sent

    # A broker that never had it learns the same, and leads in its turn.
    make_lead(brokers, [outside, wiped, first])
    copy = copy_on(brokers[outside])
    assert copy is not None
    assert copy.log.state.segments[0].base_offset >= RECORDS, "none of the first records"
    assert consumed(brokers[outside], 2 * RECORDS) == sent
