"""DescribeAcls, CreateAcls, DeleteAcls: rows of the control plane, in effect at the response."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.control.access import bindings_of
from penstock.security import AclAuthoriser
from penstock.security.acls import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
)
from tests.broker.wire_client import WireClient

ANY = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


@pytest.fixture
def authoriser(broker: BrokerServer) -> AclAuthoriser:
    """ANONYMOUS is a super user here."""
    authoriser = AclAuthoriser(super_users=["User:ANONYMOUS"])
    broker.authoriser = broker.assembly.authoriser = authoriser
    broker._dispatcher._rights = authoriser.rights
    broker._dispatcher._asks = True
    return authoriser


def creation(name: str = "t", **more: Any) -> dict[str, Any]:
    return {
        "resource_type": 2, "resource_name": name, "resource_pattern_type": 3,
        "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3, **more,
    }  # fmt: skip


async def create(client: WireClient, *creations: dict[str, Any]) -> list[str]:
    answer = await client.call("CreateAcls", 3, {"creations": creations})
    return [result.error_code.name for result in answer.results]


async def described(client: WireClient, **wanted: Any) -> list[tuple[Any, ...]]:
    answer = await client.call("DescribeAcls", 3, {**ANY, **wanted})
    assert answer.error_code == 0
    return [
        (
            RESOURCE_TYPES[resource.resource_type], resource.resource_name,
            PATTERN_TYPES[resource.pattern_type],
            acl.principal, acl.host, OPERATIONS[acl.operation], PERMISSIONS[acl.permission_type],
        )
        for resource in answer.resources
        for acl in resource.acls
    ]  # fmt: skip


async def test_what_is_created_is_described_and_decides_at_once(
    broker: BrokerServer, client: WireClient, authoriser: AclAuthoriser
) -> None:
    prefixed = creation("u", resource_pattern_type=4)
    created = await create(client, creation(), creation(operation=4), prefixed, creation())
    assert created == ["none"] * 4
    assert await described(client) == [
        ("topic", "t", "literal", "User:a", "*", "read", "allow"),
        ("topic", "t", "literal", "User:a", "*", "write", "allow"),
        ("topic", "u", "prefixed", "User:a", "*", "read", "allow"),
    ]
    assert authoriser.index.allows("read", "topic", "t", principal="User:a", host="")
    version = broker.cluster.image.version
    assert await create(client, creation()) == ["none"]
    assert broker.cluster.image.version == version
    found = await described(client, resource_name_filter="under", pattern_type_filter=2)
    assert [acl[1] for acl in found] == ["u"]


async def test_matching_acls_are_deleted_and_returned(
    broker: BrokerServer, client: WireClient, authoriser: AclAuthoriser
) -> None:
    await create(client, creation(), creation("u"), creation("u", operation=4))
    wanted = ({"resource_name_filter": "u"}, {"operation": 99}, {"operation": 5})
    answer = await client.call(
        "DeleteAcls", 3, {"filters": [{**ANY, **fields} for fields in wanted]}
    )
    assert [filter_result.error_code.name for filter_result in answer.filter_results] == [
        "none", "invalid_request", "none",
    ]  # fmt: skip
    assert [len(filter_result.matching_acls) for filter_result in answer.filter_results] == [
        2,
        0,
        0,
    ]
    assert answer.filter_results[0].matching_acls[0].resource_name == "u"
    assert [acl[1] for acl in await described(client)] == ["t"]
    assert not authoriser.index.allows("read", "topic", "u", principal="User:a", host="")
    assert len(bindings_of(broker.cluster.image)) == 1


async def test_what_cannot_be_bound_is_refused_one_by_one(
    client: WireClient, authoriser: AclAuthoriser
) -> None:
    errors = await create(
        client,
        creation(resource_type=1), creation(resource_type=9), creation(resource_pattern_type=2),
        creation(operation=1), creation(permission_type=0), creation(""), creation(principal="a"),
        creation(resource_type=4), creation("a\0"), creation("x" * 1025),
        creation(host="10.0.0.0/99"), creation(),
    )  # fmt: skip
    assert errors == ["invalid_request"] * 11 + ["none"]
    assert len(await described(client)) == 1


async def test_where_nothing_is_decided_by_acls_there_are_none(client: WireClient) -> None:
    assert (await create(client, creation())) == ["security_disabled"]
    answer = await client.call("DescribeAcls", 3, ANY)
    assert answer.error_code.name == "security_disabled"
    answer = await client.call("DeleteAcls", 3, {"filters": [ANY]})
    assert [filter_result.error_code.name for filter_result in answer.filter_results] == [
        "security_disabled"
    ]
