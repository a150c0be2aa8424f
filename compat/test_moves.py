"""Partitions of three brokers move while clients are at work, and a broker is killed meanwhile.

Every partition has two replicas. In each round kafka-python's admin client orders for each of them
the next two in the ring of brokers, so that followers, leaders and in the end all replicas go.
Whatever was acknowledged is there once and in order, and nobody reads what a later leader lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
ROUNDS = 4
KILLED_IN = 2
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
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def replicas(self) -> dict[int, list[int]]:
        found = self._admin.list_topics(TOPIC, timeout=WAIT_SECONDS).topics[TOPIC].partitions
        return {part: sorted(found[part].replicas) for part in found}

    def leader(self, partition: int) -> int:
        found = self._admin.list_topics(TOPIC, timeout=WAIT_SECONDS).topics[TOPIC].partitions
        return int(found[partition].leader)

    def give(self, target: Mapping[int, Sequence[int]]) -> None:
        places = {kafka.TopicPartition(TOPIC, one): [*brokers] for one, brokers in target.items()}
        admin: Any = kafka.KafkaAdminClient(bootstrap_servers=self._bootstrap.split(","))
        answer = admin.alter_partition_reassignments(places)
        assert "error" not in str(answer).lower().replace("error_code=0", ""), answer
        admin.close()

    def await_done(self, target: Mapping[int, Sequence[int]]) -> None:
        wanted = {part: sorted(brokers) for part, brokers in target.items()}
        eventually(lambda: self.replicas() == wanted, self.replicas, seconds=WAIT_SECONDS)


def ring(partition: int, step: int) -> list[int]:
    """The two replicas of a partition after so many rounds."""
    return [1 + (partition + step + one) % BROKERS for one in (0, 1)]


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_while_partitions_move(three: list[PenstockProcess]) -> None:
    bootstrap = bootstrap_of(three)
    orders, history = Orders(bootstrap), History(PARTITIONS)
    topic = NewTopic(TOPIC, PARTITIONS, 2, config={"min.insync.replicas": "2"})
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
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
        for step in range(1, ROUNDS + 1):
            target = {part: ring(part, step) for part in range(PARTITIONS)}
            load.pause_seconds()
            orders.give(target)
            if step == KILLED_IN:
                victim = three[orders.leader(0) - 1]
                victim.kill()
                await_progress(load)
                victim.start()
            orders.await_done(target)
            await_progress(load, *readers)
            pauses.append(load.pause_seconds())
        print("longest times without an acknowledgement:", [f"{one:.3f} s" for one in pauses])
        check_history(bootstrap, history, [load], readers)
        clients[-1].end()
    assert not load.failures, load.failures[:5]
    assert not history.violations, "\n".join(map(str, history.violations))
    print(f"{sum(history.acknowledged)} records acknowledged")
