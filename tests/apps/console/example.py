"""Broker with topics, records and groups for the console's tests and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from penstock.testing import Broker
from tests.apps.console import example_more, example_others

HOSTILE: Final = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
"""Name of a group, with markup that must be shown as text."""

PAGES: Final[Mapping[str, str]] = {
    "overview": "/console",
    "topics": "/console/topics",
    "topics-none": "/console/topics?q=nothing-has-this-name",
    "topic": "/console/topics/orders",
    "topic-settings": "/console/topics/orders/configs?q=retention",
    "topic-create": "/console/create-topic",
    "topic-partitions": "/console/topics/orders/partitions",
    "topic-delete": "/console/topics/orders/delete",
    "topic-reassign": "/console/topics/orders/reassign?preview=yes&factor=2",
    "topic-reassign-cancel": "/console/topics/orders/reassign-cancel",
    "topic-storage": "/console/topics/orders/storage",
    "topic-storage-diskless": "/console/topics/clicks/storage",
    "messages": "/console/topics/payments/messages",
    "messages-found": "/console/topics/payments/messages?order=oldest&filter=.value.amount+%3E+400",
    "messages-none": "/console/topics/payments/messages?key=missing&vf=json",
    "message": "/console/topics/payments/messages/0/3",
    "message-produce": "/console/topics/payments/produce?partition=0&offset=3",
    "groups": "/console/groups",
    "group": "/console/groups/billing",
    "group-reset": "/console/group-reset/billing?to=earliest",
    "group-delete": "/console/group-delete/billing",
    "brokers": "/console/brokers",
    "broker": "/console/brokers/1",
    "broker-replicas": "/console/brokers/1/replicas",
    "broker-drain": "/console/brokers/1/drain",
    "broker-undrain": "/console/brokers/1/undrain",
    "reassignments": "/console/reassignments",
    "error": "/console/topics/missing",
    **example_more.PAGES,
    **example_others.PAGES,
}
"""Pages of the example by name. Every page of the console is among them."""
ERRORS: Final = ("error",)
"""Names of pages whose status is an error."""


def fill(broker: Broker) -> None:
    """Create the topics, records and groups of the example."""
    with broker.client() as client:
        client.create_topic("orders", 6, {"retention.ms": "604800000", "min.insync.replicas": "1"})
        client.create_topic("customers", 3, {"cleanup.policy": "compact"})
        client.create_topic("clicks", 2, {"diskless.enable": "true"})
        for name in ("payments", "shipments", "invoices", "returns.eu-west-1", "audit"):
            client.create_topic(name, 2)
        for topic, rows in (("orders", 5000), ("clicks", 800), ("payments", 90)):
            keys = [b"%d" % row for row in range(rows)]
            values = [b"x" * 200] * rows if topic != "payments" else payments(rows)
            headers = [[{"key": "source", "value": b"<checkout>"}]] * rows
            table = pa.table({"key": keys, "value": values})
            client.write_arrow(topic, table.append_column("headers", pa.array(headers)))
        client.commit_offsets("billing", {("orders", index): 400 + index for index in range(6)})
        client.commit_offsets("reports", {("orders", 0): 800, ("payments", 0): 10})
        client.commit_offsets(HOSTILE, {("orders", 0): 1})


def payments(count: int) -> list[bytes]:
    """Return payments as JSON, some of them with text from right to left, or hostile content."""
    notes = ("", "שלום", "<script>alert(1)</script>", "Grüße\u202etxt.exe", HOSTILE)
    values = [
        {"id": number, "amount": number * 37 % 500, "state": "paid" if number % 7 else "failed",
         "customer": {"name": f"Customer {number % 12}", "note": notes[number % len(notes)]}}
        for number in range(count)
    ]  # fmt: skip
    return [json.dumps(value, ensure_ascii=False).encode() for value in values]


@contextmanager
def example_broker(settings: Mapping[str, Any] | None = None) -> Iterator[Broker]:
    """Run a broker with the example."""
    with (
        example_others.other_processes() as others,
        Broker({**example_more.SETTINGS, **others, **(settings or {})}) as broker,
    ):
        fill(broker)
        example_more.fill_more(broker)
        example_others.fill_others(broker, others)
        yield broker
