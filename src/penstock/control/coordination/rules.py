"""The rules of coordinators' records: which changes of a save are stored, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.errors import PenstockError
from penstock.control.coordination.values import RecordChange
from penstock.control.errors import StaleRecord, TooLarge
from penstock.control.limits import RECORD_BYTES_MAX


def refusal(change: RecordChange, found: Mapping[str, int]) -> PenstockError | None:
    """Why a key's change is not stored, by the versions of its members' rows; None if it is.

    Raises nothing: one key's refusal is not that of the others in the save.
    """
    for member, row in change.rows.items():
        version = found.get(member, 0)
        if version != row.expected_version:
            return StaleRecord(change.kind, change.key, row.expected_version, version)
        if row.value is not None and len(row.value) > RECORD_BYTES_MAX:
            return TooLarge(
                f"a record of {change.kind} {change.key!r} has {len(row.value)} bytes, "
                f"the limit is {RECORD_BYTES_MAX}"
            )
    return None
