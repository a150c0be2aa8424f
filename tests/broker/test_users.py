"""Users and their SCRAM credentials in the control plane."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.server import BrokerServer
from penstock.control.access import ClusterUsers
from penstock.control.values.topics import SCRAM
from penstock.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    matches,
    salted_password,
)
from tests.broker.wire_client import WireClient

SALT = b"salt of sixteen."
SHA_256, SHA_512 = 1, 2
NAMES = {SHA_256: SCRAM_SHA_256, SHA_512: SCRAM_SHA_512}


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> dict[str, Any]:
    password = (
        "x"
        if mechanism not in NAMES
        else salted_password(NAMES[mechanism], "secret of " + name, SALT, iterations)
    )
    return {
        "name": name, "mechanism": mechanism, "iterations": iterations, "salt": SALT,
        "salted_password": password if isinstance(password, bytes) else b"x" * 32,
    }  # fmt: skip


async def alter(
    client: WireClient, *upsertions: dict[str, Any], deletions: tuple[tuple[str, int], ...] = ()
) -> list[tuple[str, str]]:
    request = {
        "deletions": [{"name": name, "mechanism": number} for name, number in deletions],
        "upsertions": upsertions,
    }
    answer = await client.call("AlterUserScramCredentials", 0, request)
    return [(result.user, result.error_code.name) for result in answer.results]


async def described(client: WireClient, *users: str) -> dict[str, Any]:
    request = {"users": [{"name": name} for name in users] or None}
    answer = await client.call("DescribeUserScramCredentials", 0, request)
    return {
        result.user: result.error_code.name
        if result.error_code
        else [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in answer.results
    }


async def test_what_is_kept_matches_the_password(broker: BrokerServer, client: WireClient) -> None:
    assert await alter(client, upsertion("a"), upsertion("b", SHA_512, ITERATIONS_MAX)) == [
        ("a", "none"), ("b", "none"),
    ]  # fmt: skip
    assert await described(client) == {"a": [(1, 4096)], "b": [(2, 16384)]}
    users = ClusterUsers(lambda: broker.cluster.loaded)
    kept = users.credential(SCRAM_SHA_256, "a")
    assert kept is not None
    assert matches(kept, "secret of a")
    assert not matches(kept, "secret of b")
    assert users.credential(SCRAM_SHA_512, "a") is None
    assert ClusterUsers(lambda: None).credential(SCRAM_SHA_256, "a") is None


async def test_mechanisms_of_a_user_are_kept_and_deleted_one_by_one(client: WireClient) -> None:
    await alter(client, upsertion("a"))
    await alter(client, upsertion("a", SHA_512))
    assert await described(client, "a") == {"a": [(1, 4096), (2, 4096)]}
    assert await alter(client, deletions=(("a", SHA_256),)) == [("a", "none")]
    assert await described(client, "a") == {"a": [(2, 4096)]}
    assert await alter(client, deletions=(("a", SHA_256),)) == [("a", "resource_not_found")]
    assert await alter(client, deletions=(("a", SHA_512),)) == [("a", "none")]
    assert await described(client, "a") == {"a": "resource_not_found"}
    assert await described(client) == {}


async def test_what_cannot_be_kept_is_refused_and_the_rest_is_done(client: WireClient) -> None:
    results = await alter(
        client,
        upsertion(""),
        {**upsertion("few"), "iterations": ITERATIONS_MIN - 1},
        {**upsertion("many"), "iterations": ITERATIONS_MAX + 1},
        {**upsertion("short"), "salted_password": b"x"},
        upsertion("no", 3),
        upsertion("n\0l"),
        upsertion("x" * 250),
        upsertion("twice"),
        upsertion("twice", SHA_512),
        upsertion("good"),
        deletions=(("gone", 1), ("what", 0)),
    )
    refused = "unacceptable_credential"
    assert dict(results) == {
        "gone": "resource_not_found", "what": "unsupported_sasl_mechanism", "": refused,
        "few": refused, "many": refused, "short": refused, "no": "unsupported_sasl_mechanism",
        "n\0l": refused, "x" * 250: refused, "twice": "duplicate_resource", "good": "none",
    }  # fmt: skip
    assert await described(client) == {"good": [(1, 4096)]}
    assert await described(client, "good", "good") == {"good": "duplicate_resource"}


async def test_no_answer_log_or_image_shows_what_is_kept(
    broker: BrokerServer, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await alter(client, upsertion("a"), {**upsertion("b"), "iterations": 1})
    (row,) = [
        row for (kind, _), row in broker.cluster.image.entity_configs.items() if kind == SCRAM
    ]
    secret = row[SCRAM_SHA_256].split("$", 2)[2].split(":")[0]
    assert secret not in repr(broker.cluster.image)
    assert secret not in caplog.text
    configs = await client.call("ListConfigResources", 1, {"resource_types": [2, 4, 8, 16, 32]})
    assert "'a'" not in repr(configs)
