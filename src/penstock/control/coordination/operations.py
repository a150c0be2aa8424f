"""Operations on coordinators' records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.base.errors import PenstockError
from penstock.control.coordination import statements
from penstock.control.coordination.rules import leaves_groups, refusal
from penstock.control.coordination.values import CoordinationRecord, RecordChange, RecordKey
from penstock.control.drivers.statements import Again, Operation
from penstock.control.groups import operations as offsets
from penstock.control.groups import pending


def keys(kind: str) -> Operation[list[str]]:
    return [key.decode() for (key,) in (yield statements.keys(kind))]


def read(kind: str, keys: Iterable[str]) -> Operation[list[CoordinationRecord]]:
    found = yield statements.read([(key.encode(),) for key in keys], kind)
    return sorted(map(statements.record_of, found), key=lambda row: (row.key, row.member))


def save(
    changes: Sequence[RecordChange], *, version: int
) -> Operation[dict[RecordKey, PenstockError]]:
    record_keys = sorted((change.kind, change.key.encode()) for change in changes)
    found: dict[RecordKey, int] = {}
    for kind, key, known in (yield statements.lock(record_keys)):
        found[kind, key.decode()] = known
    refused: dict[RecordKey, PenstockError] = {}
    for change in changes:
        reason = refusal(change, found.get(change.record_key, 0))
        if reason is not None:
            refused[change.record_key] = reason
    stored = [change for change in changes if change.record_key not in refused]
    written: list[tuple[str, bytes, bytes, int, bytes]] = []
    deleted: list[tuple[str, bytes, bytes]] = []
    for change in stored:
        kind, key = change.kind, change.key.encode()
        for member, value in change.rows.items():
            if value is None:
                deleted.append((kind, key, member.encode()))
            else:
                expected = 0 if member else change.expected_version
                written.append((kind, key, member.encode(), expected, value))
    if (yield statements.write(written, version)) != len(written):
        raise Again("another coordinator made the same records at the same time")
    yield statements.delete(deleted)
    yield from offsets.delete_all([change.key for change in stored if change.deletes_offsets])
    yield from pending.complete(
        {
            change.key: change.completes_offsets
            for change in stored
            if change.completes_offsets is not None and leaves_groups(change)
        }
    )
    return refused
