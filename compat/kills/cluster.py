"""Brokers whose points can be planned, and what is asked of them: of each kind of topic one."""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from tests.postgres import postgres_server

from compat.drivers import eventually
from compat.drivers.port import WAIT_SECONDS
from compat.drivers.remote import Remote
from compat.kills.plan import PlanFiles
from compat.kills.producers import start
from compat.kills.steps import End, Step, steps
from compat.security import administrator, harness
from compat.servers import (
    COPIES,
    QUICK_GROUPS,
    PenstockProcess,
    bootstrap_of,
    running_brokers,
)
from compat.wire import Following

PARTITIONS = 6
"""Of a topic; transactions write to two of them."""
QUICK = {
    **QUICK_GROUPS,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
RECOVER_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of topic, and how many brokers it is tried on. `copied`: brokers follow leaders."""

    name: str
    brokers: int
    copied: bool = False
    topic: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def steps(self, end: End, *, version: int) -> list[Step]:
        """All steps of a transaction here."""
        return steps(end, version=version, copied=self.copied, apart=self.brokers > 1)


LOCAL = Kind(name="local", brokers=1)
REPLICATED = Kind(
    name="replicated",
    brokers=3,
    copied=True,
    topic={"min.insync.replicas": "2"},
    settings=COPIES,
)
DISKLESS = Kind(name="diskless", brokers=1, topic={"diskless.enable": "true"})
DISKLESS_OF_THREE = Kind(name="diskless of three", brokers=3, topic={"diskless.enable": "true"})
KINDS = {kind.name: kind for kind in (LOCAL, REPLICATED, DISKLESS, DISKLESS_OF_THREE)}


class Cluster:
    """Running brokers, and the processes of clients that wait for something to do."""

    def __init__(self, kind: Kind, brokers: Sequence[PenstockProcess], plans: PlanFiles) -> None:
        self.kind = kind
        self.brokers = brokers
        self.plans = plans
        self.bootstrap = bootstrap_of(brokers)
        self.admin = AdminClient({**harness(self.bootstrap), "log_level": 0})
        self._clients: dict[str, list[Remote]] = {}

    def client(self, name: str) -> Remote:
        """A process of a client."""
        waiting = self._clients.get(name)
        return waiting.pop() if waiting else start(name, self.bootstrap)

    def give_back(self, name: str, client: Remote) -> None:
        """A process that is not needed any more."""
        self._clients.setdefault(name, []).append(client)

    def close(self) -> None:
        """End the clients."""
        for client in itertools.chain(*self._clients.values()):
            client.close()

    def create_topic(self) -> str:
        """A topic with leaders."""
        name = f"t-{uuid.uuid4().hex[:10]}"
        wanted = NewTopic(name, PARTITIONS, -1, config=dict(self.kind.topic))
        self.admin.create_topics([wanted])[name].result(WAIT_SECONDS)
        eventually(lambda: -1 not in self.leaders(name).values(), lambda: self.leaders(name))
        return name

    def delete_topic(self, name: str) -> None:
        """A topic is not needed any more."""
        self.admin.delete_topics([name])[name].result(WAIT_SECONDS)

    def leaders(self, topic: str) -> dict[int, int]:
        """The leader of each partition, -1 for none."""
        found = self.admin.list_topics(topic, timeout=WAIT_SECONDS).topics[topic]
        return {index: metadata.leader for index, metadata in found.partitions.items()} or {0: -1}

    def coordinator(self, key: str, *, group: bool = False) -> int:
        """The broker that coordinates a transactional id, or a group, by its number."""

        async def ask() -> int:
            client = await Following.connect_to(self.bootstrap)
            try:
                body = {"key": key, "key_type": 0 if group else 1}
                return int((await client.call("FindCoordinator", 3, body)).node_id)
            finally:
                await client.close()

        return asyncio.run(ask())

    def broker(self, number: int) -> PenstockProcess:
        """A broker by its number."""
        return self.brokers[number - 1 if self.kind.brokers > 1 else 0]

    def ends(self, topic: str, partitions: Sequence[int], *, committed: bool) -> list[int]:
        """Where partitions end, for readers of committed records or of all."""
        places = [TopicPartition(topic, partition) for partition in partitions]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        found = self.admin.list_offsets(
            dict.fromkeys(places, OffsetSpec.latest()), isolation_level=level
        )
        return [found[place].result(WAIT_SECONDS).offset for place in places]

    def await_no_transaction(self, transactional_id: str, topic: str, parts: list[int]) -> None:
        """Until nothing is open: not at the coordinator, and in no partition."""

        def found() -> object:
            try:
                self.leaders(topic)  # librdkafka asks again with the leader's old epoch else
                ends = [self.ends(topic, parts, committed=committed) for committed in (True, False)]
                with administrator(self.bootstrap) as client:
                    state = client.describe_transaction(transactional_id).state
                    listed = client.list_transactions(["Ongoing", "PrepareCommit", "PrepareAbort"])
            except (KafkaException, TimeoutError) as failure:
                return failure
            open_ones = [
                transaction
                for transaction in listed
                if transaction.transactional_id == transactional_id
            ]
            if ends[0] == ends[1] and not open_ones and state.startswith(("Empty", "Complete")):
                return None
            return f"stable ends and ends are {ends}, {transactional_id} is {state}, {open_ones}"

        eventually(lambda: found() is None, found, seconds=RECOVER_SECONDS)


@contextmanager
def running(kind: Kind, directory: Path) -> Iterator[Cluster]:
    """A cluster for a kind of topic."""
    plans = PlanFiles(directory)
    program = [sys.executable, "-m", "compat.kills.broker", str(directory)]

    def make(place: Path, *, configs: Mapping[str, str]) -> PenstockProcess:
        own = {**configs, "broker.rack": f"rack-{configs['node.id']}"}
        return PenstockProcess(place, configs=own, program=program)

    with ExitStack() as stack:
        if kind.brokers > 1:
            postgres = stack.enter_context(postgres_server())
            settings = {**QUICK, **kind.settings}
            brokers = stack.enter_context(
                running_brokers(postgres, directory, kind.brokers, settings, make)
            )
        else:
            one = PenstockProcess(
                directory / "broker-1", configs={**QUICK, **kind.settings}, program=program
            )
            stack.callback(one.kill)
            brokers = [one.start()]
        cluster = Cluster(kind, brokers, plans)
        stack.callback(cluster.close)
        yield cluster
