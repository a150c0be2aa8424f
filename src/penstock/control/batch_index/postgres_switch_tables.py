"""Rows of topics' switches in PostgreSQL, as in `migrations/postgres/0003_switches.sql`.

Reading and writing values, nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from uuid import UUID

from penstock.control.batch_index.formats import decode_partitions, encode_partitions
from penstock.control.batch_index.switch_values import RunningSwitch, SwitchRequest, SwitchShare
from penstock.control.drivers.postgres_connections import Connection
from penstock.control.drivers.statements import uuid_of


async def lock_request(connection: Connection, topic_id: UUID) -> SwitchRequest | None:
    """A topic's request, which stays as it is until the transaction ends."""
    row = await connection.fetchrow(
        "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
        " WHERE topic_id = $1 FOR UPDATE",
        topic_id,
    )
    return None if row is None else _request(row)


async def read_running(connection: Connection) -> list[RunningSwitch]:
    shares = defaultdict(list)
    for row in await connection.fetch(
        "SELECT topic_id, broker_id, incarnation, state, reason FROM diskless_switch_shares"
        " ORDER BY topic_id, broker_id"
    ):
        shares[uuid_of(row[0])].append(_share(row[1:]))
    rows = await connection.fetch(
        "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
    )
    requests = [_request(row) for row in rows]
    return [RunningSwitch(one, tuple(shares[one.topic_id])) for one in requests]


async def read_shares(connection: Connection, topic_id: UUID) -> list[SwitchShare]:
    """A topic's shares, by broker, with their partitions."""
    rows = await connection.fetch(
        "SELECT broker_id, incarnation, state, reason, partitions FROM diskless_switch_shares"
        " WHERE topic_id = $1 ORDER BY broker_id",
        topic_id,
    )
    return [_share(row) for row in rows]


async def write_request(connection: Connection, request: SwitchRequest) -> None:
    """Store a request in the place of the topic's earlier one, whose shares are dropped."""
    await delete_request(connection, request.topic_id)
    await connection.execute("INSERT INTO diskless_switches VALUES ($1, $2, $3, $4)", *request)


async def write_share(connection: Connection, topic_id: UUID, share: SwitchShare) -> None:
    await connection.execute(
        "INSERT INTO diskless_switch_shares VALUES ($1, $2, $3, $4, $5, $6)"
        " ON CONFLICT (topic_id, broker_id) DO UPDATE SET incarnation = excluded.incarnation,"
        " state = excluded.state, reason = excluded.reason, partitions = excluded.partitions",
        topic_id,
        share.broker_id,
        share.incarnation,
        share.state,
        share.reason,
        encode_partitions(share.partitions),
    )


async def delete_request(connection: Connection, topic_id: UUID) -> None:
    """Delete a topic's request with its shares."""
    await connection.execute("DELETE FROM diskless_switches WHERE topic_id = $1", topic_id)


def _request(row: Any) -> SwitchRequest:
    topic_id, switch_id, broker_id, incarnation = row
    return SwitchRequest(uuid_of(topic_id), uuid_of(switch_id), broker_id, uuid_of(incarnation))


def _share(row: Any) -> SwitchShare:
    broker_id, incarnation, state, reason, *partitions = row
    return SwitchShare(
        broker_id=broker_id,
        incarnation=uuid_of(incarnation),
        state=state,
        reason=reason,
        partitions=decode_partitions(partitions[0]) if partitions else (),
    )
