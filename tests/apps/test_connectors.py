"""Messages of `penstock connect` for wrong input: each names the thing, the value and the remedy.

All problems of a file, of its database and of its brokers are reported at once, with exit status 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.connect.postgresql.bed import Database, database
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server

FILE_COMMANDS = ("run", "validate", "plan", "status", "reset", "replay")
WRONG = """\
name = "shop"
[source]
connector = "postgresql"
url = "postgresql://penstock@127.0.0.1/shop"
tabels = ["public.*"]
tombstones = "yes"
max_slot_bytes = -4
[errors]
tolerance = "some"
[run]
brokers = "127.0.0.1:9092"
[targets]
"""
PROBLEMS = """\
2: source.tables: is required; write tables = …
5: source.tabels: there is no setting of this name; did you mean tables?
6: source.tombstones: must be true or false, not 'yes'
7: source.max_slot_bytes: must be at least 0, not -4
9: errors.tolerance: must be one of none, all, not 'some'
11: run.brokers: there is no setting of this name
12: targets: is not known here; known are name, source, sink, transform, predicate, errors, run
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server with one replication slot, which tests must leave free."""
    settings = ("wal_level=logical", "max_replication_slots=1", "max_wal_senders=4")
    with postgres_server(settings=settings) as running:
        yield running


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[Database]:
    with server.database() as name, database(server.url(name)) as opened:
        opened("CREATE TABLE orders (id int PRIMARY KEY)")
        yield opened


def write(folder: Path, url: str, tables: str = "public.orders", more: str = "") -> str:
    file = folder / "shop.toml"
    source = f'[source]\nconnector = "postgresql"\nurl = "{url}"\ntables = ["{tables}"]\n'
    file.write_text(f'name = "shop"\n{source}{more}')
    return str(file)


@pytest.mark.parametrize("command", FILE_COMMANDS)
def test_a_file_that_is_missing_or_no_toml_is_named(
    bare: Run, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "shop.toml"
    ran = bare("connect", command, str(file))
    assert ran.status == 1
    assert f"{file}: file: there is no such file; name the connector's file" in ran.out + ran.err
    file.write_text('name = "x\n')
    ran = bare("connect", command, str(file))
    assert ran.status == 1
    assert f"{file}:1: column 10: illegal character" in ran.out + ran.err


@pytest.mark.parametrize("command", FILE_COMMANDS)
def test_all_problems_of_a_file_have_value_and_remedy(
    bare: Run, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(WRONG)
    ran = bare("connect", command, str(file))
    assert ran.status == 1
    found = (ran.out + ran.err).replace(f"{file}:", "")
    assert found == PROBLEMS


def test_a_path_that_cannot_be_written_is_named(bare: Run, tmp_path: Path) -> None:
    remedy = "choose a path that this user may write to, on a disk that is not full"
    file = write(tmp_path, "postgresql://penstock@127.0.0.1/shop")
    for words in (
        ("worker", "/proc/none"), ("init", "/proc/none/a.toml"), ("run", file, "--state", "/proc/a")
    ):  # fmt: skip
        ran = bare("connect", *words)
        assert ran.status == 2
        assert "cannot write /proc/" in ran.err
        assert remedy in ran.err


def test_an_address_that_is_no_worker_has_another_remedy_than_a_broker(
    bare: Run, broker: Broker
) -> None:
    for url, message in (
        (f"http://127.0.0.1:{free_port()}", "cannot be reached: [Errno 111] Connection refused"),
        (broker.admin_url, "is no worker: "),
    ):
        ran = bare("connect", "status", "--worker", url)
        assert ran.status == 3
        assert url in ran.err
        assert message in ran.err
        assert "start the worker with `penstock connect worker DIRECTORY`" in ran.err
        assert "penstock serve" not in ran.err


def test_problems_of_database_and_brokers_are_reported_together(
    bare: Run, tmp_path: Path, postgres: PostgresServer
) -> None:
    """The server of other tests has wal_level = replica, and nothing responds as a broker."""
    place = f"127.0.0.1:{free_port()}"
    file = write(tmp_path, postgres.url("postgres"), 'public.none", "other.*')
    ran = bare("connect", "validate", file, "-b", place)
    assert ran.status == 1
    messages = (
        "source: wal_level is replica; set wal_level = logical, and restart PostgreSQL",
        "source: tables: no table matches 'public.none'; create it, or write schema.table",
        "source: tables: no table matches 'other.*'; create it, or write schema.table",
        f"run.bootstrap: no broker of {place} responds",
    )
    for line, message in zip(ran.out.splitlines(), messages, strict=True):
        assert message in line
    assert "start the broker, or correct run.bootstrap or -b" in ran.out


def test_a_run_fails_at_once_if_the_server_has_no_logical_replication(
    bare: Run, tmp_path: Path, postgres: PostgresServer, broker: Broker
) -> None:
    file = write(tmp_path, postgres.url("postgres"))
    ran = bare("connect", "run", file, "-b", broker.bootstrap, "--once")
    assert (ran.status, ran.out) == (1, "")
    assert "wal_level is replica; set wal_level = logical, and restart PostgreSQL" in ran.err
    assert "wal_level is replica" in bare("connect", "status", file).out
    assert bare("connect", "status", file).status == 1


def test_an_address_without_server_and_a_wrong_login_have_remedies(
    bare: Run, tmp_path: Path, shop: Database, server: PostgresServer, broker: Broker
) -> None:
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    shop("CREATE ROLE clerk LOGIN PASSWORD 'right'")
    rules.write_text(f"host all penstock all trust\nhost all clerk all scram-sha-256\n{before}")
    shop("SELECT pg_reload_conf()")
    user = shop.url.replace("penstock@", "{}@")
    nowhere = f"postgresql://penstock@127.0.0.1:{free_port()}/shop"
    try:
        for url, message in (
            (nowhere, "start the server, or correct url"),
            (user.format("clerk:wrong"), "correct the user and the password of url"),
            (user.format("clerk"), "write url as postgresql://user:${env:NAME}@host"),
            (user.format("nobody_"), 'role "nobody_" does not exist; correct the user and'),
            (f"{shop.url}_", f'database "{shop.url.rpartition("/")[2]}_" does not exist; correct'),
        ):
            file = write(tmp_path, url)
            for command in ("validate", "plan"):
                ran = bare("connect", command, file, "-b", broker.bootstrap)
                assert ran.status == 1
                assert message in ran.out + ran.err
                assert "wrong" not in ran.out + ran.err
    finally:
        rules.write_text(before)
        shop("SELECT pg_reload_conf()")
        shop("DROP ROLE clerk")


def test_missing_rights_slots_and_keys_have_the_statement_that_resolves_them(
    bare: Run, tmp_path: Path, shop: Database, broker: Broker
) -> None:
    [(name,)] = shop("SELECT current_database()")
    shop("CREATE TABLE keyless (id int)")
    shop("CREATE ROLE reader LOGIN")
    shop("SELECT pg_create_logical_replication_slot('other', 'pgoutput')")
    file = write(tmp_path, shop.url.replace("penstock@", "reader@"), "public.*")
    try:
        for command in ("validate", "plan"):
            ran = bare("connect", command, file, "-b", broker.bootstrap)
            assert ran.status == 1
            found = [line.partition("source: ")[2] for line in (ran.out + ran.err).splitlines()]
            assert found == [
                "all 1 replication slots are in use; drop a slot that is not needed, or raise"
                " max_replication_slots and restart PostgreSQL",
                "url: the user reader may not replicate; run ALTER ROLE reader REPLICATION",
                "publication: the user reader may not create penstock_shop; run GRANT CREATE ON"
                f" DATABASE {name} TO reader",
                "publication: the user reader does not own orders, keyless, and may not publish"
                " them; run ALTER TABLE … OWNER TO reader, or let the owner create publication"
                " penstock_shop of all tables",
                'tables: the user may not read public.keyless; run GRANT SELECT ON "public".'
                '"keyless" as its owner',
                "tables: public.keyless has no primary key, so PostgreSQL rejects its updates and"
                " deletes once it is published; ALTER TABLE … REPLICA IDENTITY FULL",
                'tables: the user may not read public.orders; run GRANT SELECT ON "public".'
                '"orders" as its owner',
            ]
    finally:
        shop("SELECT pg_drop_replication_slot('other')")
        shop("DROP ROLE reader")


def test_a_slot_of_another_kind_and_a_server_without_failover_are_problems(
    bare: Run, tmp_path: Path, shop: Database, broker: Broker
) -> None:
    [(name,)] = shop("SELECT current_database()")
    file = write(tmp_path, shop.url, more="failover = true\n")
    ran = bare("connect", "validate", file, "-b", broker.bootstrap)
    assert "failover: this PostgreSQL has no failover slots; use version 17" in ran.out
    shop("SELECT pg_create_physical_replication_slot('penstock_shop')")
    ran = bare("connect", "validate", file, "-b", broker.bootstrap)
    shop("SELECT pg_drop_replication_slot('penstock_shop')")
    assert ran.status == 1
    assert (
        "slot: replication slot penstock_shop has plugin none and database none, not pgoutput and"
        f" {name}. Choose another name with source.slot"
    ) in ran.out
