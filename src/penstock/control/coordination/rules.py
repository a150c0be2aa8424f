"""Rules that accept or reject changes of coordinators' records."""

from __future__ import annotations

from penstock.base.errors import BugError, PenstockError
from penstock.control.coordination.values import GROUP_MEMBER, KEY_ROW, TRANSACTION, RecordChange
from penstock.control.errors import StaleRecord, TooLarge
from penstock.control.limits import RECORD_BYTES_MAX


def refusal(change: RecordChange, found: int) -> PenstockError | None:
    """Return why a key's change is rejected, given its row's version; None if it is accepted.

    Raises:
        BugError: the change leaves out the key's own row, or removes groups from a transaction
            without completing their offsets.
    """
    if change.rows and KEY_ROW not in change.rows:
        raise BugError(f"a change of {change.kind} {change.key!r} leaves out the key's own row")
    if leaves_groups(change) and change.completes_offsets is None:
        raise BugError(f"transaction {change.key!r} leaves groups without completing their offsets")
    if found != change.expected_version:
        return StaleRecord(change.kind, change.key, change.expected_version, found)
    largest = max((len(value) for value in change.rows.values() if value is not None), default=0)
    if largest > RECORD_BYTES_MAX:
        return TooLarge(
            f"a record of {change.kind} {change.key!r} has {largest} bytes, "
            f"the limit is {RECORD_BYTES_MAX}"
        )
    return None


def leaves_groups(change: RecordChange) -> bool:
    return change.kind == TRANSACTION and any(
        value is None and member.startswith(GROUP_MEMBER) for member, value in change.rows.items()
    )
