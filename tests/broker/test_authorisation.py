"""Every handler is asked for before it runs, and a refusal is answered in the API's own shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

from penstock.broker.dispatch import HOT
from penstock.broker.errors import error_number
from penstock.broker.resources import FIELDS, NAMES
from penstock.broker.server import BrokerServer
from penstock.security import ANONYMOUS, CLUSTER, PERMISSIVE, Principal, refusal
from penstock.wire.kafka.apis import APIS, BY_NAME, Api
from penstock.wire.kafka.schema import Field, load_struct
from tests.broker.wire_client import WireClient, batch

TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED = 29, 30, 31


class Refusing:
    """Refuses what it is told to, and notes what it was asked."""

    refuses = True

    def __init__(self) -> None:
        self.refused: Collection[str] = frozenset()
        self.asked: list[tuple[str, list[str]]] = []

    def authorise(
        self, api: Api, resources: Callable[[], Iterable[str]], principal: Principal
    ) -> Collection[str]:
        found = list(resources())
        assert principal is ANONYMOUS
        self.asked.append((api.name, found))
        return [one for one in found if one in self.refused]


@pytest.fixture
def refusing(broker: BrokerServer, client: WireClient) -> Refusing:
    refusing = Refusing()
    broker._dispatcher._authorise = refusing.authorise
    broker._dispatcher._asks = refusing.refuses
    return refusing


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: str(api.name))
def test_every_row_says_what_it_needs(api: Api) -> None:
    free = {"ApiVersions", "GetTelemetrySubscriptions", "PushTelemetry"}
    assert (api.resource == "none") == (api.operation == "none") == (api.name in free)
    for version in range(api.served_from, api.maximum + 1):
        named = [
            field
            for field in load_struct(api.name, version, "request").fields
            if field.name in FIELDS.get(api.resource, ())
        ]
        assert all(_names_resources(field) for field in named)
        assert named or api.key in HOT or api.resource in ("none", "cluster")


def _names_resources(field: Field) -> bool:
    inner = () if field.struct is None else [one.name for one in field.struct.fields]
    return field.kind == "string" or any(name in NAMES for name in inner)


def test_the_permissive_one_looks_at_nothing() -> None:
    def looked() -> Iterable[str]:
        raise AssertionError("what nobody asked about was looked for")

    assert not any(PERMISSIVE.authorise(api, looked, ANONYMOUS) for api in APIS.values())


@pytest.mark.parametrize(
    ("api", "number", "said"),
    [
        ("Produce", TOPIC_REFUSED, "User:ANONYMOUS may not write topic a, b"),
        ("JoinGroup", GROUP_REFUSED, "User:ANONYMOUS may not read group a, b"),
        ("AlterConfigs", CLUSTER_REFUSED, "User:ANONYMOUS may not alter configs cluster a, b"),
    ],
)
def test_a_refusal_names_what_was_refused(api: str, number: int, said: str) -> None:
    error = refusal(BY_NAME[api], ["b", "a"], ANONYMOUS)
    assert (error_number(error.code), str(error)) == (number, said)


async def test_resources_are_those_that_a_request_names(
    client: WireClient, refusing: Refusing
) -> None:
    await client.create("t")
    await client.produce("t", batch(b"v"))
    await client.fetch("t", 0)
    await client.call("Metadata", 1, {"topics": [{"name": "t"}]})
    await client.call("Metadata", 1, {"topics": None})
    await client.call("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": ["g", "h"]})
    await client.call("DescribeGroups", 0, {"groups": ["g"]})
    await client.call("DescribeCluster", 0, {"include_cluster_authorized_operations": False})
    await client.call("ApiVersions", 0, {})
    assert refusing.asked[-8:] == [
        ("Produce", ["t"]),
        ("Fetch", ["t"]),
        ("Metadata", ["t"]),
        ("Metadata", []),
        ("FindCoordinator", ["g", "h"]),
        ("DescribeGroups", ["g"]),
        ("DescribeCluster", [CLUSTER]),
        ("ApiVersions", []),
    ]


async def test_what_is_refused_is_not_done(
    broker: BrokerServer, client: WireClient, refusing: Refusing
) -> None:
    await client.create("t")
    refusing.refused = {"t", "g", CLUSTER}
    produced: Any = await client.produce("t", batch(b"v"))
    assert produced.error_code == TOPIC_REFUSED
    assert broker.partitions.partition("t", 0).log_end_offset == 0
    described = await client.call("DescribeGroups", 0, {"groups": ["g"]})
    assert [one.error_code for one in described.groups] == [GROUP_REFUSED]
    request = {"include_cluster_authorized_operations": False}
    answer = await client.call("DescribeCluster", 0, request)
    assert answer.error_code == CLUSTER_REFUSED
    refusing.refused = ()
    assert (await client.produce("t", batch(b"v"))).base_offset == 0
