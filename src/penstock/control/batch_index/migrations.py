"""Rows of topic migrations: requests and participants."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final
from uuid import UUID

from penstock.control.batch_index.formats import decode_partitions, encode_partitions
from penstock.control.batch_index.migration_values import (
    MigrationParticipant,
    MigrationRequest,
    RunningMigration,
)
from penstock.control.drivers.statements import Call, Operation, changed, row, rows, uuid_of

_REQUEST: Final = "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
_lock = row(f"{_REQUEST} WHERE topic_id = $1 FOR UPDATE")
_requests = rows(_REQUEST)
write_request = changed("INSERT INTO diskless_switches VALUES ($1, $2, $3, $4)")
delete_request = changed(
    "DELETE FROM diskless_switches WHERE topic_id = $1",
    sqlite=(
        "DELETE FROM diskless_switch_shares WHERE topic_id = $1",
        "DELETE FROM diskless_switches WHERE topic_id = $1",
    ),
)
"""Deletes a topic's request and its participants."""

_running_shares = rows(
    "SELECT topic_id, broker_id, incarnation, state, reason FROM diskless_switch_shares"
    " ORDER BY topic_id, broker_id"
)
_participants = rows(
    "SELECT broker_id, incarnation, state, reason, partitions FROM diskless_switch_shares"
    " WHERE topic_id = $1 ORDER BY broker_id"
)
_write_participant = changed(
    "INSERT INTO diskless_switch_shares VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (topic_id, broker_id) DO UPDATE SET incarnation = excluded.incarnation,"
    " state = excluded.state, reason = excluded.reason, partitions = excluded.partitions"
)


def lock_request(topic_id: UUID) -> Operation[MigrationRequest | None]:
    found = yield _lock(topic_id)
    return None if found is None else _request(found)


def running() -> Operation[list[RunningMigration]]:
    participants = defaultdict(list)
    for topic_id, *participant in (yield _running_shares()):
        participants[uuid_of(topic_id)].append(_participant(*participant))
    requests = map(_request, (yield _requests()))
    return [
        RunningMigration(request, tuple(participants[request.topic_id])) for request in requests
    ]


def participants(topic_id: UUID) -> Operation[list[MigrationParticipant]]:
    return [_participant(*found) for found in (yield _participants(topic_id))]


def write_participant(topic_id: UUID, participant: MigrationParticipant) -> Call:
    partitions = encode_partitions(participant.partitions)
    return _write_participant(
        topic_id,
        participant.broker_id,
        participant.incarnation,
        participant.state,
        participant.reason,
        partitions,
    )


def _request(found: Any) -> MigrationRequest:
    topic_id, migration_id, broker_id, incarnation = found
    return MigrationRequest(
        uuid_of(topic_id), uuid_of(migration_id), broker_id, uuid_of(incarnation)
    )


def _participant(
    broker_id: int, incarnation: Any, state: Any, reason: str, partitions: bytes | None = None
) -> MigrationParticipant:
    return MigrationParticipant(
        broker_id=broker_id,
        incarnation=uuid_of(incarnation),
        state=state,
        reason=reason,
        partitions=() if partitions is None else decode_partitions(partitions),
    )
