"""The values of coordinators' records."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from penstock.base.errors import CorruptError, PenstockError

RecordKey = tuple[str, str]
"""What is loaded, owned and fenced as one: a kind and a key, as of a group and its id."""

KEY_ROW: Final = ""
"""The member of the row of the key itself."""

TRANSACTION: Final = "transaction"
"""The kind of a transaction's records, whose keys are transactional ids."""

GROUP_MEMBER: Final = "group/"
"""Before a group's id: the row of a transaction by which the group's offsets belong to it."""

OffsetsEnd = Literal["commit", "abort"]
"""What becomes of the offsets of a transaction that is decided."""

_PRODUCER: Final = struct.Struct(">qh")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The transaction of a producer that is under way."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def group_row(self) -> bytes:
        """The value of the row of a group that is part of it."""
        return _PRODUCER.pack(self.producer_id, self.producer_epoch)


def producer_of_group_row(value: bytes) -> tuple[int, int]:
    """The producer id and epoch in the row of a transaction's group."""
    if len(value) != _PRODUCER.size:
        raise CorruptError(f"a row of a transaction's group has {len(value)} bytes, not 10")
    producer_id, producer_epoch = _PRODUCER.unpack(value)
    return producer_id, producer_epoch


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
    `settles_offsets`: those that the transaction of this key has brought are committed, or dropped;
    the change deletes the rows of its groups.
    """

    kind: str
    key: str
    expected_version: int
    rows: Mapping[str, bytes | None]
    deletes_offsets: bool = False
    settles_offsets: OffsetsEnd | None = None

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecords:
    """What became of a save: the version of all rows that it stored, and which keys it refused."""

    version: int
    refused: Mapping[RecordKey, PenstockError]
