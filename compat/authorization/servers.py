"""Both servers with an authorizer, and clients of them that are who they say."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from benchmarks.peers.apache_kafka import ApacheKafka
from tests.broker.wire_client import WireClient
from tests.ports import free_port

from compat.authorization.principals import SUPER_USER, World
from compat.authorization.requests import OTHER, TOPIC, create
from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.server import BrokerServer
from penstock.control import MemoryControlPlane
from penstock.security import AclAuthoriser, Principal
from penstock.security.acls import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES
from penstock.storage import LogStore, StorageSettings

PASSWORD: Final = "s3cret"
WAIT_SECONDS: Final = 60
PAUSE_SECONDS: Final = 0.05
AT_ONCE: Final = 200
"""Bindings of one request."""
EVERY_ACL: Final = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


class Guarded(Protocol):
    """A server with an authorizer."""

    name: str

    async def connect(self, user: str) -> WireClient:
        """A client that is a user."""


class GuardedPenstock:
    """A broker in this process; who a connection is, is set here."""

    name = "penstock"

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker

    async def connect(self, user: str) -> WireClient:
        client = await WireClient.connect(self._broker.kafka_address)
        await client.call("ApiVersions", 0, {})
        list(self._broker._connections)[-1].principal = Principal("User", user)
        return client


@asynccontextmanager
async def penstock(directory: Path, *, allow_unbound: bool) -> AsyncIterator[GuardedPenstock]:
    settings = load(
        BrokerSettings,
        {"listeners": "PLAINTEXT://127.0.0.1:0", "admin.listener": "", "shutdown.timeout.ms": 1000},
    )
    configs = TopicConfigs(settings)
    broker = BrokerServer(
        settings,
        control=MemoryControlPlane(),
        store=LogStore.open(
            directory, StorageSettings(), clock=SYSTEM_CLOCK, config_of=configs.config_of
        ),
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        registry=Registry(),
        authoriser=AclAuthoriser(super_users=[f"User:{SUPER_USER}"], allow_unbound=allow_unbound),
    )
    configs.bind(lambda: broker.cluster.loaded)
    await broker.start()
    try:
        yield GuardedPenstock(broker)
    finally:
        await broker.stop()


class GuardedKafka:
    """Apache Kafka with SASL/PLAIN."""

    name = "kafka"

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)

    async def connect(self, user: str) -> WireClient:
        client = await WireClient.connect(self._address)
        mechanism = b"PLAIN"
        await _said(client, 17, 1, struct.pack(">h", len(mechanism)) + mechanism)
        token = f"\0{user}\0{PASSWORD}".encode()
        await _said(client, 36, 0, struct.pack(">i", len(token)) + token)
        return client


async def _said(client: WireClient, key: int, version: int, body: bytes) -> None:
    """One step of authentication; its answer begins with an error code."""
    request = struct.pack(">hhih", key, version, 1, -1) + body
    client.writer.write(struct.pack(">i", len(request)) + request)
    answer = await client.receive()
    (error,) = struct.unpack_from(">h", answer, 4)
    if error:
        raise RuntimeError(f"API {key} of Apache Kafka answered with error {error}")


@contextmanager
def kafka(directory: Path, users: Iterable[str], *, allow_unbound: bool) -> Any:
    """Apache Kafka with its StandardAuthorizer, whose users are these and the super user."""
    port, controller = free_port(), free_port()
    named = "".join(f' user_{user}="{PASSWORD}"' for user in (*users, SUPER_USER))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    configs = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module} required username="{SUPER_USER}" password="{PASSWORD}"{named};'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{SUPER_USER};User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": str(allow_unbound).lower(),
    }
    directory.mkdir()
    with ApacheKafka(directory, configs=configs, ports=(port, controller)) as running:
        yield GuardedKafka(running.bootstrap)


async def prepare(root: WireClient) -> Mapping[str, UUID]:
    """Make the topics; their ids."""
    await root.call("CreateTopics", 7, create(TOPIC, OTHER, "m-del"))
    wanted = {
        "topics": [{"name": TOPIC}, {"name": OTHER}], "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }  # fmt: skip
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            found = await root.call("Metadata", 12, wanted)
            if not any(int(topic.error_code) for topic in found.topics):
                return {topic.name: topic.topic_id for topic in found.topics}
            await asyncio.sleep(PAUSE_SECONDS)


async def put_in_force(root: WireClient, world: World) -> None:
    """Have a world's ACLs, and no others, in force."""
    await root.call("DeleteAcls", 3, {"filters": [EVERY_ACL]})
    await _counted(root, 0)
    creations = [
        {
            "resource_type": RESOURCE_TYPES.index(binding.resource_type),
            "resource_name": binding.name,
            "resource_pattern_type": PATTERN_TYPES.index(binding.pattern_type),
            "principal": binding.principal,
            "host": binding.host,
            "operation": OPERATIONS.index(binding.operation),
            "permission_type": PERMISSIONS.index(binding.permission),
        }
        for binding in world.bindings()
    ]
    for start in range(0, len(creations), AT_ONCE):
        made = await root.call("CreateAcls", 3, {"creations": creations[start : start + AT_ONCE]})
        assert {int(result.error_code) for result in made.results} == {0}
    await _counted(root, len(creations))


async def _counted(root: WireClient, count: int) -> None:
    """Wait until so many ACLs are in force."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            known = await root.call("DescribeAcls", 3, EVERY_ACL)
            if sum(len(resource.acls) for resource in known.resources) == count:
                return
            await asyncio.sleep(PAUSE_SECONDS)
