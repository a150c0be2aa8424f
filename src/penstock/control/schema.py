"""Description of the control plane's tables, for the reference page."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from penstock.control.migrations.sqlite.migrate import migrate

# The tables of the control plane: their keys, values, and the module that writes each.
#
# SQLite and PostgreSQL have the same tables. The columns are read from SQLite's schema. A test
# compares the list with both databases, and `docs/reference/tables.md` is generated from it.


HEAD: Final = """# Tables of the control plane

<!-- Written by scripts/reference.py from penstock/control/schema.py. -->

SQLite and PostgreSQL have the same tables. SQLite has them in one file, PostgreSQL in the first
schema of the connection's search path. Topics, broker processes and images have UUIDs as ids, which
are 16 bytes in SQLite. Lists and maps are JSON. The last column names the module of
`penstock/control/` that writes the table. SQLite's `user_version` is the number of the newest
migration of the schema.

| Table | Key | Value | What it is | Written by |
|-------|-----|-------|------------|------------|
"""


class Table(Struct, frozen=True, kw_only=True):
    """A table of the control plane.

    `key` and `value` are given only if SQLite's schema does not have all columns. `of_postgres`
    names the columns that SQLite's table lacks.
    """

    name: str
    key: tuple[str, ...] = ()
    value: tuple[str, ...] = ()
    doc: str
    writer: str
    of_postgres: tuple[str, ...] = ()
    only: Literal["", "SQLite", "PostgreSQL"] = ""


_TABLES: Final = (
    Table(
        name="image_version",
        doc="One row: version and stamp of the newest metadata image.",
        writer="operations/images.py",
    ),
    Table(
        name="topics",
        doc="Topics and their own configs, with the stamp of the image that changed them last.",
        writer="operations/images.py",
    ),
    Table(
        name="partitions",
        doc="Leader, leader epoch, replicas and target replicas of partitions.",
        writer="operations/images.py",
    ),
    Table(
        name="replicated_partitions",
        doc="Highest epoch ever reserved for each replicated partition, and its claimant.",
        writer="operations/images.py",
    ),
    Table(
        name="partition_epochs",
        doc="Opened leader epochs of replicated partitions; the newest is open and has no end.",
        writer="operations/images.py",
    ),
    Table(
        name="partition_losses",
        doc="Records that unclean elections may have lost: their epoch and first offset.",
        writer="operations/images.py",
    ),
    Table(
        name="brokers",
        key=("broker_id",),
        value=(
            "host",
            "port",
            "rack",
            "incarnation",
            "epoch",
            "registered",
            "endpoints",
            "renewed_ms",
            "roles",
        ),
        of_postgres=("renewed_ms",),
        doc="Brokers that are or were registered; their epochs only rise.",
        writer="operations/images.py",
    ),
    Table(
        name="renewals",
        key=("broker_id",),
        value=("renewed_ms",),
        doc="Time of a broker's last renewal; in memory, or in an unsynced file.",
        writer="operations/images.py",
        only="SQLite",
    ),
    Table(
        name="broker_configs",
        doc="Dynamic configs by broker id as text; the empty name has those of all brokers.",
        writer="operations/images.py",
    ),
    Table(
        name="entity_configs",
        doc="Configs of other entities: quotas, metric subscriptions, ACLs, SCRAM credentials.",
        writer="operations/images.py",
    ),
    Table(
        name="counters",
        doc="The next producer id, the highest object id and the registry's version; in SQLite also"
        " the highest sink version.",
        writer="operations/images.py",
    ),
    Table(
        name="group_offsets",
        doc="A group's position in a partition.",
        writer="operations/coordination.py",
    ),
    Table(
        name="pending_offsets",
        doc="Offsets committed in open transactions; invisible until the transaction ends.",
        writer="operations/coordination.py",
    ),
    Table(
        name="coordination_records",
        doc="State of coordinators: one row per key, with an empty member, and one row per member.",
        writer="operations/coordination.py",
    ),
    Table(
        name="sink_commits",
        doc="The newest commit of each Spark query that writes to topics exactly once.",
        writer="operations/commits.py",
    ),
    Table(
        name="diskless_objects",
        doc="Objects of diskless topics, from lease to deletion, and the number of their extents.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_answers",
        doc="Results of objects' commits, which repeated commits return.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_partitions",
        doc="Log start, end and clean offset of each diskless partition that has a commit.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_extents",
        doc="The batch index: the object and bytes that hold a partition's offsets.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_producers",
        doc="Idempotent producers of diskless partitions.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_aborted",
        doc="Aborted transactions of diskless partitions, by the offsets of their markers.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_switches",
        doc="Requests to make a topic diskless or replicated, while they are open.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_switch_shares",
        doc="Progress of each broker that copies partitions for such a request.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="diskless_store",
        doc="One row: the identity of the object store.",
        writer="operations/diskless_tables.py",
    ),
    Table(
        name="tiered_partitions",
        doc="Log start of each tiered partition, and the end of its archived segments.",
        writer="operations/tiers.py",
    ),
    Table(
        name="tiered_segments",
        doc="Archived segments: their first object id, and the common prefix of their keys.",
        writer="operations/tiers.py",
    ),
    Table(
        name="registry_rows",
        doc="Rows of the schema registry, with the registry's version at their last change.",
        writer="operations/registry.py",
    ),
    Table(
        name="penstock_schema",
        key=("number",),
        value=("applied",),
        doc="Applied migrations of the schema.",
        writer="migrations/postgres/migrate.py",
        only="PostgreSQL",
    ),
)


def _with_columns() -> Iterator[Table]:
    with closing(sqlite3.connect(":memory:")) as connection:
        migrate(connection, Path(":memory:"))
        for table in _TABLES:
            found = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
            key = [(place, name) for _, name, _, _, _, place in found if place]
            value = [name for _, name, _, _, _, place in found if not place]
            yield replace(
                table,
                key=table.key or tuple([name for _, name in sorted(key)]),
                value=table.value or tuple(value),
            )


TABLES: Final[Sequence[Table]] = tuple(_with_columns())


def page() -> str:
    return HEAD + "".join(
        f"| `{table.name}`{f' ({table.only})' if table.only else ''} | {_names(table.key)}"
        f" | {_names(table.value, table.of_postgres)} | {table.doc} | `{table.writer}` |\n"
        for table in TABLES
    )


def _names(columns: Sequence[str], of_postgres: Sequence[str] = ()) -> str:
    return ", ".join(
        f"`{column}`{' (PostgreSQL)' if column in of_postgres else ''}" for column in columns
    )
