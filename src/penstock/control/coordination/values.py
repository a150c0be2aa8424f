"""The values of coordinators' records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import PenstockError

RecordKey = tuple[str, str]
"""What is loaded, owned and fenced as one: a kind and a key, as of a group and its id."""

KEY_ROW: Final = ""
"""The member of the row of the key itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationRecord:
    """One row: of the key itself, whose member is empty, or of one of its members.

    `value` is opaque here. `version` is that of the save that wrote the row; it is drawn anew with
    every save, so that none ever comes again, and says nothing of an order.
    """

    key: str
    member: str
    version: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """Changes of one key's rows, by member: all of them or none; None deletes a row.

    The row of the key itself is among them, if there are any, so that its version stands for all:
    the change is made if that is `expected_version` (0: not there).
    `deletes_offsets`: the offsets that the group of this key has committed go with them.
    """

    kind: str
    key: str
    expected_version: int
    rows: Mapping[str, bytes | None]
    deletes_offsets: bool = False

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecords:
    """What became of a save: the version of all rows that it stored, and which keys it refused."""

    version: int
    refused: Mapping[RecordKey, PenstockError]
