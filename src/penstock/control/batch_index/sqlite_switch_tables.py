"""Rows of topics' switches in SQLite; the tables are in `migrations/sqlite/0004_switches.sql`.

Every function runs inside a transaction of the writer.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from typing import Any
from uuid import UUID

from penstock.control.batch_index.formats import decode_partitions, encode_partitions
from penstock.control.batch_index.switch_values import RunningSwitch, SwitchRequest, SwitchShare


def read_request(connection: sqlite3.Connection, topic_id: UUID) -> SwitchRequest | None:
    row = connection.execute(
        "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
        " WHERE topic_id = ?",
        (topic_id.bytes,),
    ).fetchone()
    return None if row is None else _request(row)


def read_running(connection: sqlite3.Connection) -> list[RunningSwitch]:
    shares = defaultdict(list)
    for row in connection.execute(
        "SELECT topic_id, broker_id, incarnation, state, reason FROM diskless_switch_shares"
        " ORDER BY topic_id, broker_id"
    ):
        shares[row[0]].append(_share(row[1:]))
    rows = connection.execute(
        "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
    )
    return [RunningSwitch(_request(row), tuple(shares[row[0]])) for row in rows]


def read_shares(connection: sqlite3.Connection, topic_id: UUID) -> list[SwitchShare]:
    """A topic's shares, by broker, with their partitions."""
    rows = connection.execute(
        "SELECT broker_id, incarnation, state, reason, partitions FROM diskless_switch_shares"
        " WHERE topic_id = ? ORDER BY broker_id",
        (topic_id.bytes,),
    )
    return [_share(row) for row in rows]


def write_request(connection: sqlite3.Connection, request: SwitchRequest) -> None:
    """Store a request in the place of the topic's earlier one, whose shares are dropped."""
    delete_request(connection, request.topic_id)
    connection.execute(
        "INSERT INTO diskless_switches VALUES (?, ?, ?, ?)",
        (
            request.topic_id.bytes,
            request.switch_id.bytes,
            request.broker_id,
            request.incarnation.bytes,
        ),
    )


def write_share(connection: sqlite3.Connection, topic_id: UUID, share: SwitchShare) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO diskless_switch_shares VALUES (?, ?, ?, ?, ?, ?)",
        (
            topic_id.bytes,
            share.broker_id,
            share.incarnation.bytes,
            share.state,
            share.reason,
            encode_partitions(share.partitions),
        ),
    )


def delete_request(connection: sqlite3.Connection, topic_id: UUID) -> None:
    """Delete a topic's request with its shares."""
    for table in ("diskless_switches", "diskless_switch_shares"):
        connection.execute(
            f"DELETE FROM {table} WHERE topic_id = ?",  # noqa: S608  (fixed)
            (topic_id.bytes,),
        )


def _request(row: Any) -> SwitchRequest:
    topic_id, switch_id, broker_id, incarnation = row
    return SwitchRequest(
        UUID(bytes=topic_id), UUID(bytes=switch_id), broker_id, UUID(bytes=incarnation)
    )


def _share(row: Any) -> SwitchShare:
    broker_id, incarnation, state, reason, *partitions = row
    return SwitchShare(
        broker_id=broker_id,
        incarnation=UUID(bytes=incarnation),
        state=state,
        reason=reason,
        partitions=decode_partitions(partitions[0]) if partitions else (),
    )
