"""Partitions of three brokers move while clients are at work, and brokers are killed meanwhile.

Every partition has two replicas. In each round kafka-python's admin client orders for each of them
the next two in the ring of brokers, so that followers, leaders and in the end all replicas go, and
come back. Whatever was acknowledged is there once and in order, and nobody reads what a later
leader lacks. Both replicas must acknowledge: what is killed is needed, and comes back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.postgres import postgres_server

from compat.drivers import eventually
from compat.drivers.port import WAIT_SECONDS
from compat.history import History
from compat.security import ADMIN, harness, security_of
from compat.servers import PenstockProcess, bootstrap_of, running_brokers
from compat.survivors import (
    PARTITIONS,
    Client,
    Ends,
    Load,
    Member,
    Reader,
    await_progress,
    check_history,
)

pytestmark = pytest.mark.timeout(300)
BROKERS = 3
TOPIC = "moves"
SEED = 3
CONFIGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "250",
    "replication.listener": "127.0.0.1:0",
}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[PenstockProcess]]:
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        yield stack.enter_context(running_brokers(postgres, tmp_path, BROKERS, CONFIGS))


class Orders:
    """An admin client that orders replicas, and waits until they are there."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({**harness(bootstrap), "log_level": 0})

    def replicas(self) -> dict[int, list[int]]:
        found = self._admin.list_topics(TOPIC, timeout=WAIT_SECONDS).topics[TOPIC].partitions
        return {part: sorted(found[part].replicas) for part in found}

    def give(self, target: Mapping[int, Sequence[int]]) -> None:
        places = {
            kafka.TopicPartition(TOPIC, partition): [*brokers]
            for partition, brokers in target.items()
        }
        admin: Any = kafka.KafkaAdminClient(
            bootstrap_servers=self._bootstrap.split(","), **security_of(ADMIN).python()
        )
        answer = admin.alter_partition_reassignments(places)
        assert "error" not in str(answer).lower().replace("error_code=0", ""), answer
        admin.close()

    def await_done(self, target: Mapping[int, Sequence[int]]) -> None:
        wanted = {part: sorted(brokers) for part, brokers in target.items()}
        eventually(lambda: self.replicas() == wanted, self.replicas, seconds=WAIT_SECONDS)


def ring(partition: int, step: int) -> list[int]:
    """The two replicas of a partition after so many rounds."""
    return [1 + (partition + step + replica) % BROKERS for replica in (0, 1)]


@pytest.mark.long
def test_nothing_is_lost_or_doubled_while_partitions_move(three: list[PenstockProcess]) -> None:
    _move(three, rounds=4, kills={2})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_over_many_moves(three: list[PenstockProcess]) -> None:
    _move(three, rounds=20, kills=range(1, 21))


def _move(three: list[PenstockProcess], *, rounds: int, kills: Container[int]) -> None:
    bootstrap = bootstrap_of(three)
    dice = random.Random(SEED)
    orders, history = Orders(bootstrap), History(PARTITIONS)
    topic = NewTopic(TOPIC, PARTITIONS, 2, config={"min.insync.replicas": "2"})
    with AdminClient(harness(bootstrap)) as admin:
        admin.create_topics([topic])[TOPIC].result(WAIT_SECONDS)
    load = Load(bootstrap, TOPIC, history)
    readers = [
        Member(bootstrap, TOPIC, history, group="members"),
        Reader(bootstrap, TOPIC, history, who="reader"),
    ]
    clients: list[Client] = [load, *readers, Ends(bootstrap, TOPIC, history)]
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
        await_progress(load, *readers)
        pauses = []
        for step in range(1, rounds + 1):
            target = {part: ring(part, step) for part in range(PARTITIONS)}
            load.pause_seconds()
            orders.give(target)
            if step in kills:
                time.sleep(dice.uniform(0, 0.3))
                victim = dice.choice(three)
                victim.kill()
                victim.start()
            orders.await_done(target)
            await_progress(load, *readers)
            pauses.append(load.pause_seconds())
        print("longest times without an acknowledgement:", [f"{pause:.3f} s" for pause in pauses])
        check_history(bootstrap, history, [load], readers)
        clients[-1].end()
    assert not load.failures, load.failures[:5]
    assert not history.violations, "\n".join(map(str, history.violations))
    print(f"{sum(history.acknowledged)} records acknowledged")
