"""Schema migrations of PostgreSQL: numbered files, each of which runs once, in one transaction.

Brokers of different versions may start at once. An advisory lock lets one of them migrate while the
others wait. A table stores the applied numbers. A migration keeps everything that the previous
release of Penstock needs, so brokers of both releases can run side by side.

The tables are in the first schema of the connection's search path. A schema that has other tables
but not Penstock's is rejected, because the URL is most likely wrong.
"""

from __future__ import annotations

from typing import Final

from penstock.base.system import Randomness
from penstock.control.drivers.postgres_connections import Connection, run
from penstock.control.migrations import missing
from penstock.control.operations import metadata
from penstock.control.rules import metadata as metadata_rules
from penstock.control.values.errors import IncompatibleDatabase

MIGRATION_TIMEOUT_SECONDS: Final = 120.0
"""Timeout of a schema migration, and of brokers that wait for another's migration."""

SERVER_VERSION_MIN: Final = 130_000
_LOCK: Final = "1346719315, 1"
"""Key of the advisory lock of migrations: "PENS" and 1. The lock of metadata has 2."""

_MILLISECONDS: Final = int(MIGRATION_TIMEOUT_SECONDS * 1000)
BEGIN_MIGRATION: Final = (
    "BEGIN;"
    f" SET LOCAL statement_timeout = {_MILLISECONDS};"
    f" SET LOCAL lock_timeout = {_MILLISECONDS};"
    f" SELECT pg_advisory_xact_lock({_LOCK})"
)


async def migrate(connection: Connection, *, where: str, randomness: Randomness) -> str:
    """Run the migrations that the database lacks; return the cluster's id.

    The caller has opened the transaction with `BEGIN_MIGRATION`.

    Raises:
        IncompatibleDatabase: the schema version is unknown or older than release 0.1, other tables
            are in the schema, or the server's version or encoding is unsupported.
    """
    version = await schema_version(connection, where)
    if version is None:
        await _create_table(connection, where)
    for number, text in missing("postgres", version or 0, where=where):
        await connection.execute(text)
        await connection.execute("INSERT INTO penstock_schema VALUES ($1)", number)
    opened = metadata.open_cluster(metadata_rules.cluster_id(randomness.uuid()), randomness.uuid())
    return await run(connection, opened)


async def _check_server(connection: Connection, where: str) -> None:
    row = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_setting('server_version'),"
        " current_setting('server_encoding'), current_schema()"
    )
    number, name, encoding, schema = row
    if number < SERVER_VERSION_MIN:
        raise IncompatibleDatabase(f"{where} runs PostgreSQL {name}; Penstock needs 13 or newer")
    if encoding != "UTF8":
        raise IncompatibleDatabase(f"{where} is encoded in {encoding}; Penstock needs UTF8")
    if schema is None:
        raise IncompatibleDatabase(f"{where} has no schema of the connection's search path")


async def schema_version(connection: Connection, where: str) -> int | None:
    """Return the number of the last applied migration; None without a table of migrations.

    Nothing is changed.

    Raises:
        IncompatibleDatabase: the server's version or encoding is unsupported.
    """
    await _check_server(connection, where)
    if await connection.fetchval(
        "SELECT to_regclass(quote_ident(current_schema()) || '.penstock_schema') IS NULL"
    ):
        return None
    found: int | None = await connection.fetchval("SELECT max(number) FROM penstock_schema")
    return found or 0


async def _create_table(connection: Connection, where: str) -> None:
    foreign = await connection.fetchval(
        "SELECT min(relname) FROM pg_class WHERE relnamespace = current_schema()::regnamespace"
        " AND relkind IN ('r', 'p', 'v', 'm', 'f')"
    )
    if foreign is not None:
        raise IncompatibleDatabase(
            f"{where} has tables of another program, such as {foreign!r}: give Penstock a"
            " database or a schema of its own"
        )
    await connection.execute(
        "CREATE TABLE penstock_schema (number integer PRIMARY KEY,"
        " applied timestamptz NOT NULL DEFAULT clock_timestamp())"
    )
