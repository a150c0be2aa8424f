"""Replication slot and publication of a connector: creation, checks, and the log that they retain.

Source: PostgreSQL documentation, "Logical Replication", "Replication Slots".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg2

from penstock.connect.errors import ConnectorFailed
from penstock.connect.postgresql.catalog import Table
from penstock.connect.postgresql.connection import (
    Session,
    is_duplicate,
    quoted,
    translated,
)
from penstock.connect.postgresql.pgoutput import lsn_number, lsn_text

PLUGIN: Final = "pgoutput"
FAILOVER_VERSION: Final = 170_000
_SLOT: Final = """
SELECT plugin, database, active_pid, restart_lsn::text, confirmed_flush_lsn::text, wal_status,
       coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint, safe_wal_size
FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotState:
    """State of a slot.

    Attributes:
        active_pid: server process that streams from the slot; None if there is none.
        confirmed_lsn: position up to which changes are confirmed.
        status: reserved, extended, unreserved or lost.
        retained_bytes: size of the log that the server keeps for the slot.
        safe_bytes: bytes that can be written before the slot may be lost; None without a limit.
    """

    plugin: str
    database: str
    active_pid: int | None
    confirmed_lsn: int
    status: str
    retained_bytes: int
    safe_bytes: int | None


def slot_state(session: Session, name: str) -> SlotState | None:
    """Return the state of a slot; None if there is no slot of this name."""
    rows = session.rows(_SLOT, [name])
    if not rows:
        return None
    plugin, database, pid, restart, confirmed, status, retained, safe = rows[0]
    return SlotState(
        plugin=plugin,
        database=database,
        active_pid=pid,
        confirmed_lsn=lsn_number(confirmed or restart or "0/0"),
        status=status or "lost",
        retained_bytes=retained,
        safe_bytes=safe,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Identity of a server: of its cluster of databases, and of its timeline."""

    system: str
    timeline: int


def identify(connection: Any, url: str) -> Server:
    """Return the identity of the server of a replication connection."""
    with translated(url), connection.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system, timeline, *_ = cursor.fetchone()
    return Server(system=str(system), timeline=int(timeline))


def check_history(connection: Any, url: str, before: Server, now: Server, position: int) -> None:
    """Check that the server's log contains a position of another server or timeline.

    After a failover or a restore, the log may have left the old one before the position.

    Raises:
        ConnectorFailed: it does not contain the position.
    """
    if before.system != now.system:
        raise ConnectorFailed(
            f"the database is of another cluster (system identifier {now.system}, before"
            f" {before.system}), so the position {lsn_text(position)} means nothing in it. Take a"
            " new snapshot with: penstock connect reset FILE"
        )
    if before.timeline == now.timeline:
        return
    with translated(url), connection.cursor() as cursor:
        cursor.execute(f"TIMELINE_HISTORY {now.timeline}")
        _, content = cursor.fetchone()
    for line in str(content).splitlines():
        timeline, _, rest = line.partition("\t")
        if timeline.strip() == str(before.timeline):
            switched = lsn_number(rest.split("\t")[0])
            if switched >= position:
                return
            raise ConnectorFailed(
                f"the server was promoted at {lsn_text(switched)}, before the position"
                f" {lsn_text(position)} that topics have: they contain changes that the database"
                " has lost. Take a new snapshot with: penstock connect reset FILE"
            )
    raise ConnectorFailed(
        f"timeline {now.timeline} of the server does not descend from timeline"
        f" {before.timeline}. Take a new snapshot with: penstock connect reset FILE"
    )


def create_slot(connection: Any, url: str, name: str, *, failover: bool) -> tuple[int, str]:
    """Create a slot; return its first position and the name of its exported snapshot.

    The snapshot exists until the next command of the replication connection.
    """
    options = "SNAPSHOT 'export', FAILOVER true" if failover else "SNAPSHOT 'export'"
    with translated(url), connection.cursor() as cursor:
        cursor.execute(f"CREATE_REPLICATION_SLOT {quoted(name)} LOGICAL {PLUGIN} ({options})")
        _, position, snapshot, _ = cursor.fetchone()
    return lsn_number(position), snapshot


def check_slot(state: SlotState, name: str, database: str, position: int | None) -> None:
    """Check that a slot belongs to this database and still has the log behind a position.

    Raises:
        ConnectorFailed: it does not.
    """
    if state.plugin != PLUGIN or state.database != database:
        raise ConnectorFailed(
            f"replication slot {name} has plugin {state.plugin or 'none'} and database"
            f" {state.database or 'none'}, not {PLUGIN} and {database}. Choose another name with"
            " source.slot"
        )
    if state.status == "lost":
        raise ConnectorFailed(lost_message(name, position, "the server has removed its log"))


def lost_message(name: str, position: int | None, why: str) -> str:
    """Return the message for changes that the server no longer has."""
    since = f" since position {lsn_text(position)}" if position else ""
    return (
        f"replication slot {name} is lost: {why}. Changes{since} are missing. Drop the slot if it"
        " exists, and take a new snapshot with: penstock connect reset FILE"
    )


# Publications


def published(session: Session, publication: str) -> set[str] | None:
    """Return the published tables as `schema.table`; None if there is no such publication."""
    if not session.rows("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]):
        return None
    rows = session.rows(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", [publication]
    )
    return {f"{schema}.{table}" for schema, table in rows}


def publish(
    session: Session, publication: str, tables: Sequence[Table], there: Iterable[str] | None
) -> list[str]:
    """Create a publication, or add tables to it; return the statements that were executed.

    Partitions are published as their partitioned table.
    """
    known = set(there or ())
    names = [quoted(table.schema, table.name) for table in tables if table.full_name not in known]
    if there is not None:
        statement = f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {', '.join(names)}"
        statements = [statement] if names else []
    else:
        statements = [
            f"CREATE PUBLICATION {quoted(publication)} FOR TABLE {', '.join(names)}"
            " WITH (publish_via_partition_root = true)"
        ]
    done = []
    for statement in statements:
        try:
            with session.connection.cursor() as cursor:
                cursor.execute(statement)
            done.append(statement)
        except psycopg2.Error as error:
            if not is_duplicate(error):
                with translated(session.url):
                    raise
    return done


def heartbeat(session: Session, connector: str) -> int:
    """Write a message into the log, which the stream returns; return its position.

    The message belongs to a transaction, because the server flushes only the ends of transactions.
    """
    [found] = session.row("SELECT pg_logical_emit_message(true, 'penstock', %s)::text", [connector])
    return lsn_number(found)
