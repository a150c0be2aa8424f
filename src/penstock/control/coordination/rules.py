"""The rules of coordinators' records: which changes of a save are stored, and which are refused."""

from __future__ import annotations

from penstock.base.errors import BugError, PenstockError
from penstock.control.coordination.values import KEY_ROW, RecordChange
from penstock.control.errors import StaleRecord, TooLarge
from penstock.control.limits import RECORD_BYTES_MAX


def refusal(change: RecordChange, found: int) -> PenstockError | None:
    """Why a key's change is not stored, by the version of its own row; None if it is.

    One key's refusal is not that of the others in the save.

    Raises:
        BugError: the change leaves out the row of the key itself.
    """
    if change.rows and KEY_ROW not in change.rows:
        raise BugError(f"a change of {change.kind} {change.key!r} leaves out the key's own row")
    if found != change.expected_version:
        return StaleRecord(change.kind, change.key, change.expected_version, found)
    largest = max((len(value) for value in change.rows.values() if value is not None), default=0)
    if largest > RECORD_BYTES_MAX:
        return TooLarge(
            f"a record of {change.kind} {change.key!r} has {largest} bytes, "
            f"the limit is {RECORD_BYTES_MAX}"
        )
    return None
