"""Brokers on one PostgreSQL notice each other's start, changes, silence and return."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.errors import PenstockError
from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.groups.runtime.saving import NotCoordinator, owner_of
from penstock.broker.server import BrokerServer
from penstock.client import Client
from penstock.control import CommittedOffset, StaleClusterEpoch
from penstock.control.access import ClusterUsers, change_acls, change_credentials
from penstock.control.postgres import PostgresControlPlane
from penstock.security import AclAuthoriser, Principal
from penstock.security.credentials import SCRAM_SHA_256, derive
from penstock.storage import LogStore, StorageSettings
from tests.security.access import allow

Start = Callable[..., Awaitable[BrokerServer]]
PATIENT_MS = 30_000
"""A session that no pause of the machine ends."""


@pytest.fixture
async def start(tmp_path: Path, postgres_url: str) -> AsyncIterator[Start]:
    """Starts brokers by their ids; all are stopped in the end."""
    started: list[BrokerServer] = []

    async def start_one(node_id: int, session_ms: int = PATIENT_MS) -> BrokerServer:
        values = {
            "node.id": node_id,
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "admin.listener": "",
            "shutdown.timeout.ms": 100,
            "broker.session.timeout.ms": session_ms,
            "broker.heartbeat.interval.ms": 100,
        }
        settings = load(BrokerSettings, values)
        configs = TopicConfigs(settings)
        server = BrokerServer(
            settings,
            control=PostgresControlPlane(postgres_url),
            store=LogStore.open(
                tmp_path / str(len(started)),
                StorageSettings(),
                clock=SYSTEM_CLOCK,
                config_of=configs.config_of,
            ),
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
        )
        configs.bind(lambda: server.cluster.loaded)
        started.append(server)
        await server.start()
        return server

    yield start_one
    for server in started:
        await server.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def known(server: BrokerServer) -> list[int]:
    """The brokers that a broker knows."""
    return [broker.broker_id for broker in server.cluster.image.brokers]


def owned(server: BrokerServer, broker_id: int) -> str:
    names = (f"g{number}" for number in range(100))
    image = server.cluster.image
    return next(name for name in names if owner_of(image, name).broker_id == broker_id)


async def test_what_one_broker_changes_the_others_hear(start: Start) -> None:
    one, other = await start(1), await start(2)
    await until(lambda: known(one) == [1, 2])
    await other.control.create_topic(name="t", topic_id=UUID(int=5), partitions=[[2]], configs={})
    await until(lambda: "t" in one.partitions.topics)


async def test_quotas_of_one_broker_hold_on_the_others(start: Start) -> None:
    one, other = await start(1), await start(2)
    quota = {'{"client-id":"c"}': {"producer_byte_rate": "5.0"}}
    await other.control.set_entity_configs(kind="quota", changes=quota, expected={})
    await until(lambda: one.quotas.active)
    gone: dict[str, dict[str, str]] = {name: {} for name in quota}
    await one.control.set_entity_configs(kind="quota", changes=gone, expected=quota)
    await until(lambda: not other.quotas.active)


async def test_acls_and_users_of_one_broker_hold_on_the_others(start: Start) -> None:
    one, other = await start(1), await start(2)
    authoriser = one.authoriser = AclAuthoriser()
    me = Principal("User", "a")
    acl = allow("read", "topic", "t")

    def reads() -> bool:
        return authoriser.rights(me, "10.0.0.1").allows("read", "topic", "t")

    assert not reads()
    await change_acls(other.control, lambda known: ([acl], ()))
    await until(reads)
    await change_acls(other.control, lambda known: ((), known))
    await until(lambda: not reads())
    kept = derive(SCRAM_SHA_256, "s3cret", salt=b"salt of sixteen.", iterations=4096)
    await change_credentials(other.control, lambda known: {"a": {SCRAM_SHA_256: kept}})
    users = ClusterUsers(lambda: one.cluster.loaded)
    await until(lambda: users.credential(SCRAM_SHA_256, "a") == kept)


async def test_replication_factor_2_is_rejected_for_local_logs(start: Start) -> None:
    """A local log has no follower, so a replication factor of 2 is rejected."""
    one, two = await start(1), await start(2)
    await until(lambda: known(one) == known(two) == [1, 2])
    host, port = one.kafka_address

    def create() -> None:
        with Client(f"{host}:{port}") as client:
            with pytest.raises(PenstockError, match="is not set on broker"):
                client.create_topic("copied", replication_factor=2)
            assert len(client.create_topic("single").partitions[0].replicas) == 1

    await asyncio.to_thread(create)
    assert sorted(one.partitions.topics) == ["single"]


async def test_groups_of_a_broker_that_fell_silent_go_to_others(start: Start) -> None:
    one, other = await start(1, 1_500), await start(2, 1_500)
    await until(lambda: known(one) == [1, 2])
    group = owned(one, 2)
    with pytest.raises(NotCoordinator):
        one.coordinator.check_owner(group)
    stale = other.cluster.image.cluster_epoch
    silent = other._liveness
    assert silent is not None
    await silent.stop()
    await until(lambda: known(one) == [1])
    one.coordinator.check_owner(group)
    offset = CommittedOffset(topic_id=UUID(int=5), topic="t", partition=0, offset=3)
    await one.coordinator.commit(group, [offset])
    with pytest.raises(StaleClusterEpoch):
        await other.control.commit_offsets(group_id=group, offsets=[offset], cluster_epoch=stale)
    async with asyncio.timeout(60):
        while known(one) != [1, 2] or known(other) != [1, 2]:
            await silent.beat()  # by itself it is silent still, and may be expired again
    (_, again) = one.cluster.image.brokers
    assert again.epoch >= 2


async def test_a_second_process_of_one_id_ends_the_first(start: Start) -> None:
    first = await start(1)
    second = await start(1)
    async with asyncio.timeout(60):
        await first.superseded.wait()
    await first.stop()
    assert known(second) == [1]
    assert not second.superseded.is_set()
    await second.cluster.refresh()
    assert known(second) == [1], "the first takes no member's registration along"
