"""The values of coordinators' records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.base.errors import PenstockError

RecordKey = tuple[str, str]
"""What is loaded, owned and fenced as one: a kind and a key, as of a group and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinationRecord:
    """One row: of the key itself, whose member is empty, or of one of its members.

    `value` is opaque here. `version` is the row's compare-and-set mark; it is drawn anew with every
    save, so that none ever comes again, and says nothing of an order.
    """

    key: str
    member: str
    version: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """What becomes of a row that is at `expected_version` (0: not there); None deletes it."""

    expected_version: int
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordChange:
    """Changes of one key's rows, by member: all of them or none.

    `deletes_offsets`: the offsets that the group of this key has committed go with them.
    """

    kind: str
    key: str
    rows: Mapping[str, RowChange]
    deletes_offsets: bool = False

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecords:
    """What became of a save: the version of all rows that it stored, and which keys it refused."""

    version: int
    refused: Mapping[RecordKey, PenstockError]
