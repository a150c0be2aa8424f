"""Three brokers with TLS and SASL for clients and each other, under an authoriser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.broker.server import BrokerServer
from penstock.client import Client
from penstock.replication.links import Links
from penstock.security import AclAuthoriser
from penstock.security.audit import AuditEvent
from tests.broker.security.secured import PASSWORD, context, security
from tests.broker.test_replicated import Cluster, until
from tests.broker.wire_client import WireClient
from tests.security.certificates import truststore

pytestmark = pytest.mark.timeout(300)
OPTIONS = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": PASSWORD}


class Heard:
    """Audit sink that records the authentications at one broker."""

    def __init__(self) -> None:
        self.principals: set[tuple[str, str]] = set()

    def record(self, event: AuditEvent) -> None:
        if event.event == "authentication":
            self.principals.add((event.principal, event.outcome))

    def close(self) -> None: ...


class SecuredCluster(Cluster):
    """With no listener but SASL_SSL."""

    heard: dict[int, Heard]

    def parts(self, node_id: int) -> dict[str, Any]:
        self.heard[node_id] = Heard()
        return {
            "security": security(self.root),
            "authoriser": AclAuthoriser(super_users=["User:alice"]),
            "audit": self.heard[node_id],
        }

    async def connect(self, server: BrokerServer) -> WireClient:
        return await WireClient.connect(server.bound["SASL_SSL"], context(self.root))


@pytest.fixture
async def three(tmp_path: Path, postgres_url: str) -> AsyncIterator[SecuredCluster]:
    made = SecuredCluster(tmp_path, postgres_url)
    made.heard = {}
    made.settings = {"listeners": "SASL_SSL://127.0.0.1:0"}
    async with made.running(1, 2, 3):
        yield made


async def test_records_are_replicated_and_transactions_end(three: SecuredCluster) -> None:
    addresses = [f"127.0.0.1:{broker.bound['SASL_SSL'][1]}" for broker in three.brokers.values()]
    options = {
        **OPTIONS, "security.protocol": "SASL_SSL",
        "ssl.truststore.location": truststore(three.root),
    }  # fmt: skip

    def work() -> list[bytes]:
        with Client(addresses, security=options) as client:
            client.create_topic("t", 3, {}, replication_factor=3)
            producer = client.transactional("id")
            with producer.transaction():
                producer.write_arrow("t", pa.table({"value": [b"%d" % n for n in range(30)]}))
            return sorted(client.read_arrow("t", columns=["value"])["value"].to_pylist())

    found = await asyncio.get_running_loop().run_in_executor(None, work)
    assert found == sorted(b"%d" % number for number in range(30))
    for server in three.brokers.values():
        assert server.replicas is not None
        links = server.replicas.replication.links
        await until(partial(_whole, links))
        for link in links.ready.values():
            assert link._transport.get_extra_info("ssl_object") is not None
    answer = await three.brokers[1].peers.call(2, "DescribeLogDirs", {"topics": None})
    assert answer.error_code == 0
    everybody = {found for principals in three.heard.values() for found in principals.principals}
    assert ("Broker:cluster", "success") in everybody
    assert ("User:alice", "success") in everybody
    assert not [principal for principal in everybody if principal[1] != "success"]


def _whole(links: Links) -> bool:
    return len(links.ready) == 2
