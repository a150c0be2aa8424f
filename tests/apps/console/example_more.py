"""Further parts of the example: schemas, access, quotas, transactions, queues, and plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from penstock.apps.console.plans import PlanStore, SavedPlan
from penstock.client import Client
from penstock.client.schemas import SchemaClient, SchemaReference, StoredSchema
from penstock.security.acls import AclBinding
from penstock.testing import Broker

SETTINGS: Final[Mapping[str, Any]] = {
    "registry.enable": True,
    "registry.listener": "127.0.0.1:0",
    "authorizer.class.name": "acls",
    "super.users": "User:ANONYMOUS",
    "console.masking.file": str(Path(__file__).with_name("masking.toml")),
}
"""Settings of the example's broker: a schema registry, ACLs that allow all to its tests, and masks
of the topic `invoices`."""

STRANGE: Final = '<b>bold</b>/"odd"&{{7*7}}-value'
"""Name of a subject, with markup that must be shown as text."""

PAGES: Final[Mapping[str, str]] = {
    "messages-masked": "/console/topics/invoices/messages",
    "message-masked": "/console/topics/invoices/messages/0/0",
    "schemas": "/console/schemas",
    "schema": "/console/schemas/orders-value",
    "schema-strange": f"/console/schemas/{quote(STRANGE, safe='')}",
    "schema-diff": "/console/schema-diff/orders-value?before=1&after=3",
    "schema-new": "/console/schema-new?subject=orders-value",
    "schema-config": "/console/schema-config/orders-value",
    "schema-config-all": "/console/schema-config",
    "schema-delete": "/console/schema-delete/address",
    "access": "/console/access",
    "acl-add": "/console/acl-add",
    "acl-remove": "/console/acl-remove?principal=User%3Aalice",
    "users": "/console/users",
    "user-password": "/console/user-password?user=alice",
    "user-delete": "/console/user-delete/alice",
    "quotas": "/console/quotas",
    "quota-set": "/console/quota-set?client-id=etl",
    "quota-remove": "/console/quota-remove?client-id=etl",
    "transactions": "/console/transactions",
    "transaction": "/console/transactions/till-7",
    "transaction-abort": "/console/transaction-abort/till-7",
    "queues": "/console/queues",
    "queue": "/console/queues/pickers",
    "diskless": "/console/diskless",
    "pipelines": "/console/pipelines",
    "planner": "/console/planner",
    "plan-capacity": "/console/planner/capacity?messages-per-second=2m&message-bytes=2KiB",
    "plan-cost": "/console/planner/cost?preset=outbox-article",
    "plan-receive-path": "/console/planner/receive-path",
    "plan-choose": "/console/planner/choose?rate=200k&replay=true",
    "plan-keys": "/console/planner/keys?topic=orders",
    "plan-impossible": "/console/planner/capacity?messages-per-second=many",
    "plan-compare": "/console/planner/compare?a=launch&b=next%20year",
    "plan-delete": "/console/planner/delete/launch",
}

FIRST: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
SECOND: Final = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "note", "type": "string", "default": ""}],
}
THIRD: Final = {**SECOND, "fields": [*SECOND["fields"], {"name": "amount", "type": "double"}]}
ADDRESS: Final = {**FIRST, "name": "Address", "fields": [{"name": "zip", "type": "string"}]}
CUSTOMER: Final = {
    "type": "record",
    "name": "Customer",
    "fields": [{"name": "home", "type": "Address"}],
}


def fill_more(broker: Broker) -> None:
    """Add these parts to an example that has its topics."""
    _schemas(broker)
    with broker.client() as client:
        _access(client)
        _queue(client)
        _invoices(client)
        producer = client.transactional("till-7")
        producer.begin()
        producer.write_arrow("payments", pa.table({"value": [b"open"]}))
        done = client.transactional("till-8")
        with done.transaction():
            done.write_arrow("payments", pa.table({"value": [b"paid"]}))
    _plans(broker)


def _schemas(broker: Broker) -> None:
    with SchemaClient(f"http://{broker.registry_address}") as client:

        def register(subject: str, schema: object, *references: SchemaReference) -> None:
            text = StoredSchema(schema=json.dumps(schema), references=tuple(references))
            client.register(subject, text)

        register("orders-value", FIRST)
        register("orders-value", SECOND)
        client.request("PUT", ("config", "orders-value"), {"compatibility": "NONE"})
        register("orders-value", THIRD)
        register("address", ADDRESS)
        register(
            "customers-value",
            CUSTOMER,
            SchemaReference(name="Address", subject="address", version=1),
        )
        register(STRANGE, FIRST)


def _access(client: Client) -> None:
    client.set_password("alice", "an example's pass phrase")
    client.set_password("etl", "an example's pass phrase")
    client.create_acls(
        [
            AclBinding(
                resource_type=kind,
                name=name,
                pattern_type=pattern,
                principal=principal,
                host=host,
                operation=operation,
                permission=permission,
            )
            for kind, name, pattern, principal, host, operation, permission in (
                ("topic", "orders", "literal", "User:alice", "*", "read", "allow"),
                ("group", "billing", "literal", "User:alice", "*", "read", "allow"),
                ("topic", "pay", "prefixed", "User:etl", "10.0.0.0/8", "write", "allow"),
                ("topic", "*", "literal", "User:guest", "*", "all", "deny"),
                ("cluster", "kafka-cluster", "literal", "User:ops", "*", "alter_configs", "allow"),
            )
        ]
    )
    client.alter_quotas({"client-id": "etl"}, {"producer_byte_rate": 10 << 20})
    client.alter_quotas({"user": None}, {"consumer_byte_rate": 50 << 20, "request_percentage": 80})
    client.alter_quotas({"ip": "10.0.0.7"}, {"connection_creation_rate": 5})


def _invoices(client: Client) -> None:
    values = [
        {"id": 1, "customer": {"mail": "someone@example.org", "card": "4111 1111 1111 1234"}},
        {"id": 2, "customer": {"mail": "another@example.org", "card": None}, "paid": True},
    ]
    headers = [[{"key": "session", "value": b"c2Vzc2lvbg"}]] * 3
    table = pa.table({
        "partition": pa.array([0, 0, 0], pa.int32()),
        "key": ["a", "b", "c"],
        "value": [*map(json.dumps, values), "not JSON"],
        "headers": headers,
    })  # fmt: skip
    client.write_arrow("invoices", table)


def _queue(client: Client) -> None:
    client.create_topic("dlq.picks", 1, {"errors.deadletterqueue.group.enable": "true"})
    settings = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": "dlq.picks",
    }
    client.alter_configs("group", "pickers", settings)
    client.write_arrow("shipments", pa.table({"value": [b"pick"] * 40}))
    with client.queue("pickers", "shipments") as queue:
        taken = queue.take()
        while not len(taken):
            taken = queue.take()
        taken.reject([0])
        taken.ack()


def _plans(broker: Broker) -> None:
    store = PlanStore(broker.directory / "console" / "plans")
    for name, rate in (("launch", "20k"), ("next year", "2m")):
        inputs = {"messages-per-second": rate, "message-bytes": "2KiB"}
        store.save(
            SavedPlan(
                name=name,
                kind="capacity",
                inputs=inputs,
                saved_by="User:ops",
                saved_ms=1_790_000_000_000,
            )
        )
