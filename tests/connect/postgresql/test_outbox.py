"""Events of an outbox table in their topics, in the order of the commits, whatever is deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client import Client
from penstock.connect.errors import ConnectorFailed
from penstock.testing import Broker
from tests.connect.postgresql.bed import Database, run_once

TABLE = """CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    aggregatetype text, aggregateid text, type text, payload jsonb)"""


def outbox_file(folder: Path, url: str, name: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f'name = "{name}"\n[source]\nconnector = "outbox"\nurl = "{url}"\n'
        f'topic = "{name}.{{aggregatetype}}"\n'
    )
    return file


def test_events_are_routed_in_the_order_of_commits(
    shop: Database, log: Broker, folder: Path
) -> None:
    shop(TABLE)
    insert = "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES "
    shop(f"""{insert} ('order', '7', 'created', '{{"n": 0}}')""")
    file = outbox_file(folder, shop.url, "routed")
    run_once(file, log.bootstrap)
    for number in range(1, 4):
        shop(
            f"""{insert} ('order', '7', 'changed', '{{"n": {number}}}'),
            ('invoice', '{number}', NULL, '{{"i": {number}}}'); DELETE FROM outbox"""
        )
    [(unknown,)] = shop("SELECT count(*) FROM outbox")
    assert unknown == 0
    run_once(file, log.bootstrap)
    with Client(log.bootstrap) as client:
        orders = client.read_arrow("routed.order", isolation="read_committed").to_pylist()
        invoices = client.read_arrow("routed.invoice", isolation="read_committed").to_pylist()
    assert [row["value"] for row in orders] == [b'{"n": %d}' % number for number in range(4)]
    assert {row["key"] for row in orders} == {b"7"}
    assert [row["key"] for row in invoices] == [b"1", b"2", b"3"]
    headers = [{item["key"]: item["value"] for item in row["headers"]} for row in orders]
    assert [found["type"] for found in headers] == [b"created", b"changed", b"changed", b"changed"]
    assert len({found["id"] for found in headers}) == 4


def test_an_invalid_topic_stops_the_source(shop: Database, log: Broker, folder: Path) -> None:
    shop(TABLE)
    file = outbox_file(folder, shop.url, "invalid")
    run_once(file, log.bootstrap)
    shop("INSERT INTO outbox (aggregatetype, aggregateid, payload) VALUES ('a b', '1', '{}')")
    with pytest.raises(ConnectorFailed, match=r"invalid\.a b"):
        run_once(file, log.bootstrap)
