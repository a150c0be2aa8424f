"""Envelopes of changes that a replica identity does not describe whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import Database, connector_file, events, run_once

LONG = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)"


def test_an_index_without_the_key_does_not_make_an_update_a_delete(
    shop: Database, log: Broker, folder: Path
) -> None:
    shop("CREATE TABLE orders (id int PRIMARY KEY, code int NOT NULL UNIQUE)")
    shop("ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_code_key")
    file = connector_file(folder, shop.url, name="indexed")
    run_once(file, log.bootstrap)
    shop("INSERT INTO orders VALUES (1, 10)")
    shop("UPDATE orders SET code = 11")
    shop("UPDATE orders SET id = 2")
    run_once(file, log.bootstrap)
    found = events(log.bootstrap, "indexed.public.orders")
    assert [(event.key, event.value["op"]) for event in found] == [
        ({"id": 1}, "c"), ({"id": 1}, "u"), ({"id": 2}, "u"),
    ]  # fmt: skip


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_unsent_columns_belong_to_the_new_row_of_a_changed_key(
    shop: Database, log: Broker, folder: Path, identity: str
) -> None:
    shop("CREATE TABLE orders (id int PRIMARY KEY, body text)")
    shop(f"ALTER TABLE orders REPLICA IDENTITY {identity}")
    file = connector_file(folder, shop.url, name=f"unsent-{identity}")
    run_once(file, log.bootstrap)
    shop(f"INSERT INTO orders VALUES (1, {LONG})")
    shop("UPDATE orders SET id = 2")
    run_once(file, log.bootstrap)
    topic = f"unsent-{identity}.public.orders"
    inserted, deleted, tombstone, created = events(log.bootstrap, topic)
    assert inserted.value.get("unchanged") is None
    assert (deleted.value["op"], deleted.value.get("unchanged")) == ("d", None)
    assert [header["value"] for header in tombstone.headers] == [b'{"id":2}']
    body = inserted.value["after"]["body"]
    sent = {"DEFAULT": (None, ["body"]), "FULL": (body, None)}[identity]
    assert (created.value["op"], created.value["after"]["id"]) == ("c", 2)
    assert (created.value["after"]["body"], created.value.get("unchanged")) == sent
