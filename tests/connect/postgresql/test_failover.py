"""Failover of PostgreSQL 17 to a standby: the slot goes along, and lost changes are recognised."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.connect.errors import ConnectorFailed
from penstock.testing import Broker
from tests.connect.postgresql.bed import (
    LOGICAL,
    Database,
    connector_file,
    database,
    events,
    replayed,
    run_once,
)
from tests.postgres import PostgresServer, owner, postgres_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

STANDBY = "standby"
FOLLOW_SECONDS = 150.0
"""Most time until a standby has a slot: it looks for slots every 30 s when nothing changes."""


@contextmanager
def standby_of(primary: PostgresServer, folder: Path) -> Iterator[PostgresServer]:
    """A standby server of a running primary, which keeps its failover slots up to date."""
    with database(primary.url("postgres")) as admin:
        admin("SELECT pg_create_physical_replication_slot(%s)", STANDBY)
        admin("SELECT pg_backup_start('copy', true)")
        without = shutil.ignore_patterns("postmaster.pid", "penstock_*", STANDBY)
        shutil.copytree(primary.directory / "data", folder / "data", ignore=without)
        admin("SELECT pg_backup_stop()")
    (folder / "data" / "standby.signal").touch()
    with (folder / "data" / "postgresql.auto.conf").open("a") as settings:
        settings.write(
            f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=penstock"
            f" dbname=postgres'\nprimary_slot_name = '{STANDBY}'\n"
            "hot_standby_feedback = on\nsync_replication_slots = on\n"
        )
    for path in (folder, *folder.rglob("*")):
        os.chown(path, *owner())
    server = primary.another(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop(crash=True)


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with postgres_server(settings=LOGICAL, version_17=True) as server:
        with database(server.url("postgres")) as admin:
            admin("CREATE TABLE orders (id bigint PRIMARY KEY, customer text)")
            admin("INSERT INTO orders SELECT i, 'c' FROM generate_series(1, 100) AS i")
        yield server


def followed(primary: Database, standby: Database) -> None:
    """Wait until the standby has the log of the primary."""
    [(end,)] = primary("SELECT pg_current_wal_lsn()")
    until(lambda: standby("SELECT pg_last_wal_replay_lsn() >= %s", end) == [(True,)])


def slot_is_copied(standby: Database, run: Callable[[], object]) -> bool:
    """Run the connector, so that its slot advances; return whether the standby has the slot."""
    run()
    query = "SELECT 1 FROM pg_replication_slots WHERE failover AND synced AND NOT temporary"
    return bool(standby(query))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FOLLOW_SECONDS
    while not met():
        assert time.monotonic() < deadline, "the standby does not follow"


def test_the_connector_continues_on_the_new_primary(
    primary: PostgresServer, log: Broker, tmp_path: Path
) -> None:
    url = primary.url("postgres")
    file = connector_file(
        tmp_path, url, name="over", tables="public.orders", more="failover = true\n"
    )
    run_once(file, log.bootstrap)
    with (
        short_folder() as folder,
        standby_of(primary, folder) as standby,
        database(url) as first,
        database(standby.url("postgres")) as second,
    ):
        first("UPDATE orders SET customer = 'd' WHERE id <= 10")
        until(lambda: slot_is_copied(second, lambda: run_once(file, log.bootstrap)))
        first("DELETE FROM orders WHERE id = 1")
        followed(first, second)
        primary.stop(crash=True)
        second("SELECT pg_promote()")
        second("INSERT INTO orders VALUES (200, 'after')")
        file.write_text(file.read_text().replace(url, standby.url("postgres")))
        run_once(file, log.bootstrap)
        rows = second("SELECT id, customer FROM orders")
    found = events(log.bootstrap, "over.public.orders")
    assert replayed(found) == {key: {"id": key, "customer": name} for key, name in rows}
    ops = [event.value["op"] for event in found if event.value]
    assert [ops.count(op) for op in "rucd"] == [100, 10, 1, 1]


def test_lost_changes_are_recognised(primary: PostgresServer, log: Broker, tmp_path: Path) -> None:
    url = primary.url("postgres")
    file = connector_file(
        tmp_path, url, name="behind", tables="public.orders", more="failover = true\n"
    )
    run_once(file, log.bootstrap)
    with short_folder() as folder, standby_of(primary, folder) as standby:
        with database(url) as first:
            with database(standby.url("postgres")) as second:
                first("UPDATE orders SET customer = 'd' WHERE id = 1")
                until(lambda: slot_is_copied(second, lambda: run_once(file, log.bootstrap)))
                followed(first, second)
            standby.stop()
            first("UPDATE orders SET customer = 'lost'")
            run_once(file, log.bootstrap)
        primary.stop(crash=True)
        standby.start()
        with database(standby.url("postgres")) as second:
            second("SELECT pg_promote()")
            second("INSERT INTO orders SELECT i, 'new' FROM generate_series(1000, 3000) AS i")
        file.write_text(file.read_text().replace(url, standby.url("postgres")))
        with pytest.raises(ConnectorFailed, match="changes that the database has lost"):
            run_once(file, log.bootstrap)


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a path that is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        yield Path(name)
