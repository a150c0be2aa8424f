"""Every advertised version of every API, answered by Apache Kafka 4.4 and by Penstock.

`differences.toml` lists the differences, by API, with their reasons. A difference that is not
listed fails the test, and so does an entry that no difference matches.
"""

from __future__ import annotations

import asyncio
import fnmatch
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from tests.broker.wire_client import WireClient

from compat.conftest import missing
from compat.differential import VARIANTS, Generator, Scene, answered, differences
from compat.parts import PartMissing
from compat.servers import QUICK, QUICK_GROUPS, PenstockProcess
from compat.wire import Following, served
from penstock.wire.kafka.apis import APIS, Api
from penstock.wire.kafka.schema import load_struct

LISTED = Path(__file__).with_name("differences.toml")
CREATE_SECONDS = 60
SETTINGS = {**QUICK, "auto.create.topics.enable": "false"}
"""Settings of both servers. Apache creates topics some time after its response."""

Pair = tuple[Api, int]
PAIRS: list[Pair] = [
    (api, version)
    for api in APIS.values()
    for version in range(api.served_from, api.maximum + 1)
    if api.name not in ("GetTelemetrySubscriptions", "PushTelemetry")
]
"""Versions that both servers advertise; telemetry is advertised only to subscribed clients."""


@pytest.fixture(scope="module")
def apache() -> Iterator[str]:
    try:
        kafka = ApacheKafka(heap="512m", configs=SETTINGS).start()
    except PartMissing as error:
        missing(error)
    yield kafka.bootstrap
    kafka.discard()


@pytest.fixture(scope="module")
def penstock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    configs = {**QUICK_GROUPS, **SETTINGS}
    with PenstockProcess(tmp_path_factory.mktemp("broker"), configs=configs) as broker:
        yield broker.bootstrap


def topic_of(pair: Pair) -> str:
    return f"t-{pair[0].key}-{pair[1]}"


async def topic_ids(client: WireClient) -> Mapping[str, Any]:
    """Create a topic for each pair, wait for its leader, and return the ids by name."""
    topics = [
        {
            "name": topic_of(pair),
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for pair in PAIRS
    ]
    await client.call("CreateTopics", 7, {"topics": topics, "timeout": CREATE_SECONDS * 1000})
    async with asyncio.timeout(CREATE_SECONDS):
        while True:
            names = [{"topic_id": None, "name": topic["name"]} for topic in topics]
            found = await client.call("Metadata", 12, {"topics": names})
            if all(topic.partitions for topic in found.topics):
                return {topic.name: topic.topic_id for topic in found.topics}
            await asyncio.sleep(0.1)


async def until_served(bootstrap: str, client: WireClient) -> None:
    """Wait until all partitions and both kinds of coordinators respond."""
    waits = {"coordinator_not_available", "not_coordinator", "coordinator_load_in_progress"}
    async with asyncio.timeout(CREATE_SECONDS):
        for pair in PAIRS:
            while not served(bootstrap, topic_of(pair), 1):
                await asyncio.sleep(0.05)
            topic = topic_of(pair)
            heartbeat = {"group_id": f"g-{topic}", "generation_id": 1, "member_id": "m"}
            ends = {
                "transactional_id": f"g-{topic}-transactions",
                "producer_id": 1,
                "producer_epoch": 0,
                "committed": True,
            }
            for kind, name, request in ((0, "Heartbeat", heartbeat), (1, "EndTxn", ends)):
                key = {"key": f"g-{topic}", "key_type": kind}
                while (await client.call("FindCoordinator", 3, key)).error_code.name in waits:
                    await asyncio.sleep(0.05)
                while (await client.call(name, 3, request)).error_code.name in waits:
                    await asyncio.sleep(0.05)
        any_id = {"transactional_id": None, "transaction_timeout": 1000}
        while (await client.call("InitProducerId", 1, any_id)).error_code.name in waits:
            await asyncio.sleep(0.05)


async def responses(bootstrap: str) -> dict[tuple[str, int, str], Any]:
    """Return the reduced response of every pair and variant."""
    client = await Following.connect_to(bootstrap)
    ids = await topic_ids(client)
    await until_served(bootstrap, client)
    found: dict[tuple[str, int, str], Any] = {}
    for pair in PAIRS:
        (api, version), topic = pair, topic_of(pair)
        scene = Scene(topic=topic, topic_id=ids[topic], group=f"g-{topic}")
        schema = load_struct(api.name, version, "request")
        for variant in VARIANTS:
            request = Generator(scene, variant, f"{api.key}-{version}").request(schema)
            answer = await answered(client, api.name, version, request, topic)
            found[api.name, version, variant] = answer
            if isinstance(answer, str):
                await client.close()
                client = await Following.connect_to(bootstrap)
    await client.close()
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_all_versions_are_answered_as_apache_kafka_answers_them(
    apache: str, penstock: str
) -> None:
    from_apache = await responses(apache)
    from_penstock = await responses(penstock)
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for case, answer in from_apache.items():
        name, version, variant = case
        for line in differences(answer, from_penstock[case]):
            found[name][line].append(f"{version} {variant}")
    listed = tomllib.loads(LISTED.read_text())
    unlisted = [
        f"{name} {line} ({', '.join(cases)})"
        for name, lines in found.items()
        for line, cases in lines.items()
        if not any(fnmatch.fnmatchcase(line, pattern) for pattern in listed.get(name, {}))
    ]
    stale = [
        f"{name} {pattern}"
        for name, patterns in listed.items()
        for pattern in patterns
        if not fnmatch.filter(found.get(name, {}), pattern)
    ]
    assert not unlisted, "differences that are not listed:\n" + "\n".join(unlisted)
    assert not stale, "listed differences that no longer exist:\n" + "\n".join(stale)
