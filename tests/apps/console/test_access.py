"""Pages of access control entries, users and quotas, compared with clients' answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from penstock.client import Client
from penstock.testing import Broker
from tests.apps.console.example import HOSTILE
from tests.apps.console.visitor import Visitor, guarded_broker
from tests.security.access import allow

PASSWORD = "  a long pass phrase "


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def guarded(directory: Path) -> Iterator[Broker]:
    settings = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with guarded_broker(directory, settings) as broker:
        broker.create_topic("orders")
        yield broker


@pytest.fixture(scope="module")
def visitor(guarded: Broker) -> Visitor:
    return Visitor(guarded.admin_url)


@pytest.fixture
def client(guarded: Broker) -> Iterator[Client]:
    with guarded.client() as client:
        yield client


def acls_of(guarded: Broker, principal: str) -> set[tuple[str, str, str, str, str]]:
    """Return the entries of a principal as confluent-kafka's AdminClient reads them."""
    admin = AdminClient({"bootstrap.servers": guarded.bootstrap})
    chosen = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return {
        (
            acl.restype.name,
            acl.name,
            acl.resource_pattern_type.name,
            acl.operation.name,
            acl.permission_type.name,
        )
        for acl in admin.describe_acls(chosen).result()
    }


def test_entries_are_added_listed_and_removed(guarded: Broker, visitor: Visitor) -> None:
    fields = {
        "principal": "User:carol",
        "resource_type": "topic",
        "name": "sales.",
        "pattern_type": "prefixed",
        "operation": ["read", "write"],
        "host": "10.0.0.0/8",
    }
    done = visitor.post("/console/acl-add", fields)
    assert done.message == "2 entries in force."
    assert acls_of(guarded, "User:carol") == {
        ("TOPIC", "sales.", "PREFIXED", "READ", "ALLOW"),
        ("TOPIC", "sales.", "PREFIXED", "WRITE", "ALLOW"),
    }
    page = visitor.get("/console/access?q=carol&type=topic")
    assert "User:carol allow read Topic sales. names with this prefix 10.0.0.0/8" in page.words
    assert "1–2 of 2" in page.words
    assert "0 (from" in visitor.get("/console/access?q=carol&type=group").words
    entry = "/console/acl-remove?principal=User:carol&operation=read&resource_type=topic"
    preview = visitor.get(entry)
    assert "This removes 1 entry: allow User:carol read on topic sales." in preview.words
    chosen = {"principal": "User:carol", "operation": "read", "resource_type": "topic"}
    path = "/console/acl-remove"
    wrong = visitor.post(path, {**chosen, "confirm": "carol"}, page=entry)
    assert "type 'User:carol' to confirm" in wrong.message
    removed = visitor.post(path, {**chosen, "confirm": "User:carol"}, page=entry)
    assert removed.message == "1 entry removed."
    assert {operation for *_, operation, _ in acls_of(guarded, "User:carol")} == {"WRITE"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"operation": "read", "resource_type": "cluster"}, "read is not valid on a cluster"),
        ({"operation": "read", "resource_type": "topic"}, "name the resource; * means all"),
        ({"resource_type": "topic", "name": "x"}, "choose at least one operation"),
        ({"operation": "read", "resource_type": "x"}, "resource type 'x' must be one of"),
        (
            {"operation": "read", "resource_type": "topic", "name": "x", "host": "10.0.0.0/99"},
            "is not a valid network",
        ),
        (
            {"operation": "read", "resource_type": "topic", "name": "x", "principal": "dave"},
            "must have the form TYPE:NAME",
        ),
    ],
)
def test_invalid_entries_are_rejected(
    visitor: Visitor, guarded: Broker, fields: dict[str, str], message: str
) -> None:
    page = visitor.post("/console/acl-add", {"principal": "User:dave", **fields})
    assert page.status == 400
    assert message in page.message
    assert acls_of(guarded, "User:dave") == set()


def test_a_user_is_created_signs_in_and_is_deleted(
    guarded: Broker, visitor: Visitor, client: Client
) -> None:
    fields = {"user": "erin", "password": PASSWORD, "again": PASSWORD}
    path = "/console/user-password"
    differ = visitor.post(path, {**fields, "again": PASSWORD.strip()})
    assert differ.message == "the two passwords differ"
    assert PASSWORD.strip() not in differ.text
    done = visitor.post(path, {**fields, "iterations": "5000"})
    assert done.message == "User erin has a new password for SCRAM-SHA-512."
    assert client.list_users()["erin"] == {"SCRAM-SHA-512": 5000}
    more = visitor.post(path, {**fields, "mechanism": "SCRAM-SHA-256"}, page=f"{path}?user=erin")
    assert "SCRAM-SHA-256" in more.message
    assert set(client.list_users()["erin"]) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    assert Visitor(guarded.admin_url, "erin", PASSWORD).get("/console/topics").status == 200
    assert Visitor(guarded.admin_url, "erin", "wrong").get("/console/topics").status == 401
    client.create_acls([allow("read", "topic", "orders", "erin")])
    delete = "/console/user-delete/erin"
    assert "1 access control entry of User:erin stay in force" in visitor.get(delete).words
    assert visitor.post(delete, {"confirm": "erin"}).message == "User erin was deleted."
    assert "erin" not in client.list_users()
    assert visitor.get(delete).status == 404


def test_rejected_passwords(visitor: Visitor, client: Client) -> None:
    path = "/console/user-password"
    empty = visitor.post(path, {"user": "frank", "password": "", "again": ""})
    assert empty.message == "a password must have 1 to 1024 bytes"
    few = {"user": "frank", "password": "x", "again": "x", "iterations": "1"}
    assert visitor.post(path, few).status == 400
    assert "frank" not in client.list_users()


def test_quotas_are_set_shown_with_their_use_and_removed(visitor: Visitor, client: Client) -> None:
    fields = {"client-id": "etl", "producer_byte_rate": "1048576", "request_percentage": "50.5"}
    done = visitor.post("/console/quota-set", fields)
    assert done.message == "The quotas of client-id etl were changed."
    [quota] = client.list_quotas({"client-id": "etl"})
    assert quota.values == {"producer_byte_rate": 1048576, "request_percentage": 50.5}
    page = visitor.get("/console/quotas?q=etl&quota=producer_byte_rate")
    assert "bytes a second of Produce requests 1.0 MiB/s –" in page.words
    form = visitor.get("/console/quota-set?client-id=etl")
    assert 'name="request_percentage" type="text" value="50.5"' in form.text
    visitor.post("/console/quota-set", {"client-id": "etl", "producer_byte_rate": "2097152"})
    [quota] = client.list_quotas({"client-id": "etl"})
    assert quota.values == {"producer_byte_rate": 2097152}
    wrong = visitor.post("/console/quota-set", {"client-id": "etl", "producer_byte_rate": "x"})
    assert wrong.message == "producer_byte_rate 'x' must be a number"
    mixed = visitor.post("/console/quota-set", {"client-id": "a", "ip": "::1"})
    assert mixed.status == 400
    remove = "/console/quota-remove?client-id=etl"
    assert "producer_byte_rate: 2.0 MiB/s" in visitor.get(remove).words
    chosen = {"client-id": "etl", "confirm": "client-id etl"}
    visitor.post("/console/quota-remove", chosen, page=remove)
    assert client.list_quotas({"client-id": "etl"}) == []


def test_the_use_of_a_quota_is_that_of_its_client(guarded: Broker, visitor: Visitor) -> None:
    visitor.post("/console/quota-set", {"default-client-id": "true", "producer_byte_rate": "1e6"})
    with guarded.client(client_id="loader") as loader:
        loader.write_arrow("orders", pa.table({"value": [b"x" * 100_000] * 20}))
    page = visitor.get("/console/quotas?q=(default)")
    assert "client-id (default)" in page.words
    used = page.words.split("977 KiB/s ")[1].split()[0]
    assert 0 < int(used) <= 100


def test_hostile_names_are_text(visitor: Visitor, client: Client) -> None:
    principal = f"User:{HOSTILE}"
    client.create_acls([allow("read", "topic", HOSTILE, HOSTILE)])
    visitor.post("/console/quota-set", {"user": HOSTILE, "producer_byte_rate": "1000"})
    for path, text in (
        ("/console/access?q=onerror", f"{principal} allow read Topic {HOSTILE}"),
        ("/console/quotas?q=onerror", f"user {HOSTILE}"),
    ):
        page = visitor.get(path)
        assert text in page.words
        assert "<img" not in page.text


def test_permissions_decide(guarded: Broker, directory: Path, client: Client) -> None:
    alice = Visitor(guarded.admin_url, "alice")
    for path in ("/console/access", "/console/users", "/console/quotas", "/console/acl-add"):
        assert alice.get(path).status == 403
    assert 'href="/console/brokers"' not in alice.get("/console/topics").text
    client.create_acls([allow("describe", "cluster", "kafka-cluster", "alice")])
    page = alice.get("/console/access")
    assert "Add entries" not in page.words
    assert 'href="/console/brokers"' in page.text
    assert 'href="/console/quotas"' not in page.text  # needs describe_configs
    assert "Create a user" not in alice.get("/console/users").words
    assert alice.get("/console/acl-add").status == 403
    assert alice.get("/console/user-password").status == 403
    client.create_acls([allow("alter", "cluster", "kafka-cluster", "alice")])
    fields = {
        "principal": "User:gina",
        "resource_type": "group",
        "name": "g",
        "operation": "read",
    }
    assert alice.post("/console/acl-add", fields).message == "1 entry in force."
    lines = [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]
    made = [line for line in lines if "CreateAcls" in json.dumps(line)]
    assert made[-1]["principal"] == "User:alice"
