"""What is known to be stored of one key, and what is to be: the difference is saved.

Of each row a hash of its value is kept, of 64 bits under the process's own key: a row that has not
changed is not written again. The row of the key itself is, whenever any is, so that its version is
the key's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from penstock.broker.coordination.core import Save
from penstock.control import KEY_ROW, CoordinationRecord, RecordChange

NOT_STORED = 0
"""The version of a key of which there is nothing."""


class Recognised(Enum):
    """Whose rows those are that are found stored."""

    WANTED = "those that were to be stored"
    KNOWN = "those of before"
    FOREIGN = "another coordinator's"


class KeyRows:
    """The rows of one key. `saving` counts the saves that are on their way."""

    __slots__ = ("_doubtful", "_hashes", "key", "saving", "version")

    def __init__(self, key: str, found: Iterable[CoordinationRecord] = ()) -> None:
        self.key = key
        self.saving = 0
        self.version, self._hashes = _known(found)
        self._doubtful: Mapping[str, int] | None = None

    @property
    def is_stored(self) -> bool:
        """Whether anything is stored of the key."""
        return bool(self._hashes)

    def are(self, found: Iterable[CoordinationRecord]) -> bool:
        """Whether what is found is what is known."""
        return (self.version, self._hashes) == _known(found)

    def change(self, kind: str, save: Save) -> RecordChange:
        """What must change, for the rows of a save to be all that there is."""
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
            settles_offsets=save.settles_offsets,
        )

    def stored(self, save: Save, version: int) -> None:
        """A save is durable, under this version."""
        self.version = version if save.rows else NOT_STORED
        self._hashes, self._doubtful = _hashes(save.rows), None

    def in_doubt(self, save: Save) -> None:
        """A save may be durable, or not; what was stored cannot be read now."""
        self._doubtful = _hashes(save.rows)

    def recognise(self, found: Iterable[CoordinationRecord], save: Save) -> Recognised:
        """Say whose rows were found after a save that did not succeed, and know them if ours."""
        version, hashes = _known(found)
        if version != self.version and hashes == _hashes(save.rows):
            recognised = Recognised.WANTED
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
