"""The operations of coordinators' records; their rules are in `rules.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.base.errors import PenstockError
from penstock.control.coordination import statements
from penstock.control.coordination.rules import refusal
from penstock.control.coordination.values import CoordinationRecord, RecordChange, RecordKey
from penstock.control.drivers.statements import Again, Operation
from penstock.control.groups import operations as offsets

Row = tuple[str, bytes, bytes]


def keys(kind: str) -> Operation[list[str]]:
    """The keys of a kind, in order."""
    return [key.decode() for (key,) in (yield statements.keys(kind))]


def read(kind: str, keys: Iterable[str]) -> Operation[list[CoordinationRecord]]:
    """The rows of some keys, by key and member."""
    found = yield statements.read([(key.encode(),) for key in keys], kind)
    return sorted(map(statements.record_of, found), key=lambda row: (row.key, row.member))


def save(
    changes: Sequence[RecordChange], *, version: int
) -> Operation[dict[RecordKey, PenstockError]]:
    """Store changes under a version; keys that are refused are left out, and why."""
    places = [_row(change, member) for change in changes for member in change.rows]
    found: dict[RecordKey, dict[str, int]] = {}
    for kind, key, member, known in (yield statements.lock(sorted(places))):
        found.setdefault((kind, key.decode()), {})[member.decode()] = known
    refused: dict[RecordKey, PenstockError] = {}
    for change in changes:
        reason = refusal(change, found.get(change.record_key, {}))
        if reason is not None:
            refused[change.record_key] = reason
    stored = [change for change in changes if change.record_key not in refused]
    written = [
        (*_row(change, member), row.expected_version, row.value)
        for change in stored
        for member, row in change.rows.items()
        if row.value is not None
    ]
    if (yield statements.write(written, version)) != len(written):
        raise Again("another coordinator made the same records at the same time")
    yield statements.delete(
        _row(change, member)
        for change in stored
        for member, row in change.rows.items()
        if row.value is None
    )
    yield from offsets.delete_all([change.key for change in stored if change.deletes_offsets])
    return refused


def _row(change: RecordChange, member: str) -> Row:
    return change.kind, change.key.encode(), member.encode()
