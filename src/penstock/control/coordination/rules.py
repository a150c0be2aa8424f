"""The rules of coordinators' records: which changes of a save are stored, and which are refused."""

from __future__ import annotations

from penstock.base.errors import BugError, PenstockError
from penstock.control.coordination.values import GROUP_MEMBER, KEY_ROW, TRANSACTION, RecordChange
from penstock.control.errors import StaleRecord, TooLarge
from penstock.control.limits import RECORD_BYTES_MAX


def refusal(change: RecordChange, found: int) -> PenstockError | None:
    """Why a key's change is not stored, by the version of its own row; None if it is.

    One key's refusal is not that of the others in the save.

    Raises:
        BugError: the change leaves out the row of the key itself, or takes a group out of a
            transaction without saying what becomes of its offsets.
    """
    if change.rows and KEY_ROW not in change.rows:
        raise BugError(f"a change of {change.kind} {change.key!r} leaves out the key's own row")
    if leaves_groups(change) and change.settles_offsets is None:
        raise BugError(
            f"transaction {change.key!r} leaves groups and does not settle their offsets"
        )
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
    """Whether groups' offsets belong to a transaction until this change; others have none."""
    return change.kind == TRANSACTION and any(
        value is None and member.startswith(GROUP_MEMBER) for member, value in change.rows.items()
    )
