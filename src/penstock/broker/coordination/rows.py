"""What is known to be stored of one key, and what is to be: the difference is saved.

Of each row its version is kept, and a digest of its value: a row that has not changed is not
written again. The row of the key itself is, whenever any is, so that its version stands for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import blake2b
from typing import Final

from penstock.broker.coordination.core import Save
from penstock.control import CoordinationRecord, RecordChange, RowChange

KEY_ROW: Final = ""
_DIGEST_BYTES: Final = 16
_ABSENT: Final = (0, b"")


def _digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=_DIGEST_BYTES).digest()


class Recognised(Enum):
    """Whose rows those are that are found stored."""

    WANTED = "those that were to be stored"
    KNOWN = "those of before"
    FOREIGN = "another coordinator's"


class KeyRows:
    """The rows of one key. `saving` counts the saves that are on their way."""

    __slots__ = ("_doubtful", "key", "rows", "saving")

    def __init__(self, key: str, found: Iterable[CoordinationRecord] = ()) -> None:
        self.key = key
        self.saving = 0
        self.rows = _known(found)
        self._doubtful: Mapping[str, bytes] | None = None

    def are(self, found: Iterable[CoordinationRecord]) -> bool:
        """Whether what is found is what is known."""
        return self.rows == _known(found)

    def change(self, kind: str, save: Save) -> RecordChange:
        """What must change, for the rows of a save to be all that there is."""
        rows: dict[str, RowChange] = {}
        for member, value in save.rows.items():
            version, digest = self.rows.get(member, _ABSENT)
            if member == KEY_ROW or digest != _digest(value):
                rows[member] = RowChange(expected_version=version, value=value)
        for member, (version, _) in self.rows.items():
            if member not in save.rows:
                rows[member] = RowChange(expected_version=version, value=None)
        return RecordChange(
            kind=kind, key=self.key, rows=rows, deletes_offsets=save.deletes_offsets
        )

    def stored(self, change: RecordChange, version: int) -> None:
        """A change is durable, under this version."""
        rows = dict(self.rows)
        for member, row in change.rows.items():
            if row.value is None:
                del rows[member]
            else:
                rows[member] = version, _digest(row.value)
        self.rows, self._doubtful = rows, None

    def in_doubt(self, save: Save) -> None:
        """A save may be durable, or not; what was stored cannot be read now."""
        self._doubtful = {member: _digest(value) for member, value in save.rows.items()}

    def recognise(self, found: Iterable[CoordinationRecord], save: Save) -> Recognised:
        """Say whose rows were found after a save that did not succeed, and know them if ours."""
        rows = _known(found)
        digests = {member: digest for member, (_, digest) in rows.items()}
        wanted = {member: _digest(value) for member, value in save.rows.items()}
        if rows != self.rows and digests == wanted:
            recognised = Recognised.WANTED
        elif rows == self.rows or digests == self._doubtful:
            recognised = Recognised.KNOWN
        else:
            return Recognised.FOREIGN
        self.rows, self._doubtful = rows, None
        return recognised


def _known(found: Iterable[CoordinationRecord]) -> dict[str, tuple[int, bytes]]:
    return {row.member: (row.version, _digest(row.value)) for row in found}
