"""Last known stored rows of one key, so that a save writes only rows that differ.

Only a 64-bit hash of each row's value is kept. Every save writes the key's own row, so that the
version of this row is the version of the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from penstock.broker.coordination.core import Save
from penstock.control import KEY_ROW, CoordinationRecord, RecordChange

NOT_STORED = 0


class Recognised(Enum):
    SAVED = "rows of the save that failed"
    KNOWN = "rows from before the save"
    FOREIGN = "rows of another coordinator"


class KeyRows:
    """Rows of one key. `saving` counts the saves under way."""

    __slots__ = ("_doubtful", "_hashes", "key", "saving", "version")

    def __init__(self, key: str, found: Iterable[CoordinationRecord] = ()) -> None:
        self.key = key
        self.saving = 0
        self.version, self._hashes = _known(found)
        self._doubtful: Mapping[str, int] | None = None

    @property
    def is_stored(self) -> bool:
        return bool(self._hashes)

    def are(self, found: Iterable[CoordinationRecord]) -> bool:
        return (self.version, self._hashes) == _known(found)

    def change(self, kind: str, save: Save) -> RecordChange:
        known = self._hashes
        rows: dict[str, bytes | None] = {
            member: value
            for member, value in save.rows.items()
            if member == KEY_ROW or known.get(member) != hash(value)
        }
        for member in known.keys() - save.rows.keys():
            rows[member] = None
        return RecordChange(
            kind=kind,
            key=self.key,
            expected_version=self.version,
            rows=rows,
            deletes_offsets=save.deletes_offsets,
            completes_offsets=save.completes_offsets,
        )

    def stored(self, save: Save, version: int) -> None:
        self.version = version if save.rows else NOT_STORED
        self._hashes, self._doubtful = _hashes(save.rows), None

    def in_doubt(self, save: Save) -> None:
        """Record a save whose outcome is unknown because the rows cannot be read."""
        self._doubtful = _hashes(save.rows)

    def recognise(self, found: Iterable[CoordinationRecord], save: Save) -> Recognised:
        """Return who wrote the rows that were found after a failed save.

        They become the known rows, unless another coordinator wrote them.
        """
        version, hashes = _known(found)
        if version != self.version and hashes == _hashes(save.rows):
            recognised = Recognised.SAVED
        elif version == self.version or hashes == self._doubtful:
            recognised = Recognised.KNOWN
        else:
            return Recognised.FOREIGN
        self.version, self._hashes, self._doubtful = version, hashes, None
        return recognised


def _hashes(rows: Mapping[str, bytes]) -> dict[str, int]:
    return {member: hash(value) for member, value in rows.items()}


def _known(found: Iterable[CoordinationRecord]) -> tuple[int, dict[str, int]]:
    rows = {row.member: row for row in found}
    own = rows.get(KEY_ROW)
    hashes = {member: hash(row.value) for member, row in rows.items()}
    return NOT_STORED if own is None else own.version, hashes
