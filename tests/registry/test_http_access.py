"""Permissions of the registry's clients, the audit log, and the cache of responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.registry.http import CACHED_MAX
from penstock.security.acls import AclBinding
from penstock.security.authoriser import AclAuthoriser
from tests.registry.conftest import Served, association, record
from tests.security.access import allow

INT = {"schema": '"int"'}


def bind(guarded: Served, *bindings: AclBinding) -> None:
    assert isinstance(guarded.authoriser, AclAuthoriser)
    guarded.authoriser.replace(bindings)


@pytest.mark.parametrize(
    ("method", "path", "body", "operation", "resource"),
    [
        ("GET", "/subjects/orders-value/versions", None, "describe", "orders"),
        ("GET", "/subjects/orders-value/versions/1", None, "describe", "orders"),
        ("GET", "/subjects/orders-value/versions/1/referencedby", None, "describe", "orders"),
        ("GET", "/schemas/ids/1", None, "describe", "orders"),
        ("POST", "/subjects/orders-value", INT, "describe", "orders"),
        ("POST", "/compatibility/subjects/orders-value/versions", INT, "describe", "orders"),
        ("POST", "/subjects/orders-value/versions", INT, "write", "orders"),
        ("POST", "/subjects/:.c:orders-value/versions", INT, "write", "orders"),
        ("DELETE", "/subjects/orders-value", None, "delete", "orders"),
        ("DELETE", "/subjects/orders-value/versions/1", None, "delete", "orders"),
        ("GET", "/config/orders-value?defaultToGlobal=true", None, "describe_configs", "orders"),
        ("PUT", "/config/orders-value", {"normalize": True}, "alter_configs", "orders"),
        ("GET", "/mode/orders-value?defaultToGlobal=true", None, "describe_configs", "orders"),
        ("PUT", "/mode/orders-value", {"mode": "READWRITE"}, "alter_configs", "orders"),
        ("PUT", "/config", {"normalize": True}, "alter_configs", ""),
        ("PUT", "/mode", {"mode": "READWRITE"}, "alter_configs", ""),
        ("GET", "/mode", None, "describe_configs", ""),
    ],
)
async def test_a_request_needs_its_permission(
    guarded: Served, method: str, path: str, body: Any, operation: str, resource: str
) -> None:
    await guarded.register("orders-value", '"int"', user="admin")
    refused = await guarded.ask(method, path, body)
    assert refused.refusal == (401, 40101), "so that the client sends its credentials"
    assert refused.headers["www-authenticate"].startswith("Basic")
    refused = await guarded.ask(method, path, body, user="alice")
    assert refused.refusal == (403, 40301)
    kind = "topic" if resource else "cluster"
    other = "describe" if operation in ("write", "delete") else "read"
    bind(guarded, allow(other, kind, resource or "kafka-cluster", "alice"))
    if operation != "describe":  # the permission to read includes that to describe
        assert (await guarded.ask(method, path, body, user="alice")).status == 403
    bind(guarded, allow(operation, kind, resource or "kafka-cluster", "alice"))
    assert (await guarded.ask(method, path, body, user="alice")).status == 200
    assert (await guarded.ask(method, path, body, user="bob")).status == 403
    assert ("denial", "denied", "User:bob") in guarded.audit.facts("principal")


async def test_wrong_credentials_are_rejected(guarded: Served) -> None:
    found = await guarded.ask("GET", "/subjects", user="wrong")
    assert found.refusal == (401, 40101)
    assert found.headers["www-authenticate"].startswith("Basic")


async def test_lists_have_only_what_the_client_may_read(guarded: Served) -> None:
    made = await guarded.register("orders-value", record("a"), user="admin")
    await guarded.register("secrets-value", record("a"), user="admin")
    await guarded.register(":.hidden:secrets-value", record("a"), user="admin")
    bind(guarded, allow("describe", "topic", "orders", "alice"))
    for path, expected in (
        ("/subjects", ["orders-value"]),
        ("/subjects?subjectPrefix=secrets", []),
        ("/schemas/ids/1/subjects", ["orders-value"]),
        ("/schemas/ids/1/versions", [{"subject": "orders-value", "version": 1}]),
        ("/contexts", ["."]),
        ("/v1/scopes", {"configs": {}, "modes": {}}),
    ):
        assert await guarded.get(path, user="alice") == expected
        assert (
            await guarded.get(path, user="admin") != expected
            or path == "/v1/scopes"
            or not (expected)
        )
    assert [found["subject"] for found in await guarded.get("/schemas", user="alice")] == [
        "orders-value"
    ]
    assert (await guarded.get(f"/schemas/guids/{made['guid']}", user="alice"))["schema"]


async def test_a_denial_by_id_does_not_name_the_topic(guarded: Served) -> None:
    made = await guarded.register("secrets-value", '"int"', user="admin")
    for path in ("/schemas/ids/1", f"/schemas/guids/{made['guid']}", "/schemas/ids/1/schema"):
        refused = await guarded.ask("GET", path, user="alice")
        assert refused.refusal == (403, 40301)
        assert "secrets" not in refused.value["message"]
    assert (await guarded.ask("GET", "/schemas/ids/2", user="alice")).refusal == (404, 40403)


async def test_an_alias_needs_permissions_on_both_subjects(guarded: Served) -> None:
    await guarded.ask("PUT", "/config/mine-value", {"alias": "orders-value"}, user="admin")
    bind(guarded, allow("write", "topic", "mine", "alice"))
    body = {"schema": '"int"'}
    found = await guarded.ask("POST", "/subjects/mine-value/versions", body, user="alice")
    assert found.refusal == (403, 40301)


async def test_changes_are_audited(guarded: Served) -> None:
    await guarded.register("orders-value", '"int"', user="admin")
    await guarded.ask("DELETE", "/subjects/none", user="admin")
    changes = [event for event in guarded.audit.events if event.event == "change"]
    assert [(event.outcome, event.operation, list(event.resources)) for event in changes] == [
        ("success", "POST /subjects/orders-value/versions", ["orders-value"]),
        ("failure", "DELETE /subjects/none", ["none"]),
    ]


async def test_associations_are_audited_and_checks_are_not(guarded: Served) -> None:
    body = {"schema": '"int"'}
    path = "/compatibility/subjects/orders-value/versions"
    assert (await guarded.ask("POST", path, body, user="admin")).status == 200
    await guarded.ask("POST", "/associations", association("value"), user="admin")
    changes = [event.operation for event in guarded.audit.events if event.event == "change"]
    assert changes == ["POST /associations"]


# Cache


async def test_a_cached_response_changes_with_the_registry(served: Served) -> None:
    await served.register("s", record("a"))
    for _ in range(2):
        assert await served.get("/subjects/s/versions") == [1]
    await served.register("s", record("a", "b"))
    assert await served.get("/subjects/s/versions") == [1, 2]
    await served.ask("DELETE", "/subjects/s")
    assert (await served.ask("GET", "/subjects/s/versions")).refusal == (404, 40401)
    assert await served.get("/config") == {"compatibilityLevel": "BACKWARD"}
    await served.ask("PUT", "/config", {"compatibility": "NONE"})
    assert await served.get("/config") == {"compatibilityLevel": "NONE"}


async def test_a_cached_response_is_not_sent_without_permissions(guarded: Served) -> None:
    await guarded.register("orders-value", '"int"', user="admin")
    await guarded.register("secrets-value", '"int"', user="admin")
    bind(guarded, allow("describe", "topic", "orders", "alice"))
    paths = ("/schemas/ids/1", "/subjects", "/subjects/secrets-value/versions/1", "/schemas")
    for path in paths:
        assert await guarded.get(path, user="admin") == await guarded.get(path, user="admin")
    assert await guarded.get("/subjects", user="alice") == ["orders-value"]
    assert (await guarded.ask("GET", paths[2], user="alice")).refusal == (403, 40301)
    for path in paths:
        assert (await guarded.ask("GET", path, user="wrong")).refusal == (401, 40101)
        shown = (await guarded.ask("GET", path, user="bob")).body
        assert b"secrets" not in shown.replace(b"topic secrets", b""), path
    assert await guarded.get("/subjects", user="alice") == ["orders-value"], "nor to others"
    assert await guarded.get("/subjects", user="admin") == ["orders-value", "secrets-value"]


async def test_the_cache_is_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.registry import http

    assert CACHED_MAX <= 100_000
    monkeypatch.setattr(http, "CACHED_MAX", 3)
    await served.register("s", '"int"')
    for number in range(10):
        assert await served.get(f"/subjects?offset=0&unknown={number}") == ["s"]
    assert await served.get("/subjects?offset=0&unknown=0") == ["s"]


async def test_a_change_of_another_broker_is_found_at_once(served: Served) -> None:
    """A request that finds nothing looks for changes before it fails."""
    from penstock.registry.service import SchemaRegistry
    from penstock.registry.values import Schema, parse_subject

    other = SchemaRegistry(served.control)
    await other.start()
    await other.register(parse_subject("s"), Schema(schema=json.dumps(record("a"))))
    assert (await served.get("/subjects/s/versions/1"))["id"] == 1
    await other.register(parse_subject("s"), Schema(schema=json.dumps(record("a", "b"))))
    assert (await served.get("/schemas/ids/2"))["schema"]
    async with asyncio.timeout(10):
        await other.register(parse_subject("s"), Schema(schema=json.dumps(record("c"))))
        while await served.get("/subjects/s/versions") != [1, 2, 3]:
            await asyncio.sleep(0.01)
    await other.stop()
