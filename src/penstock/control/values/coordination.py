"""Records of coordinators: the state of consumer groups, share groups and transactions.

A key, such as a group's id, has one row of its own and one row per member.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from penstock.base.errors import CorruptError, PenstockError

RecordKey = tuple[str, str]
"""A kind and a key. Coordinators load, own and save records by this pair."""

KEY_ROW: Final = ""
"""Member name of a key's own row."""

TRANSACTION: Final = "transaction"
"""Kind of the records of transactions. Their keys are transactional ids."""

GROUP_MEMBER: Final = "group/"
"""Member prefix in a transaction's records.

The member is the prefix and the id of a group whose offsets are part of the transaction.
"""

OffsetsEnd = Literal["commit", "abort"]
"""Whether the offsets of an ended transaction are committed or dropped."""

_PRODUCER: Final = struct.Struct(">qh")


class OpenTransaction(Struct, frozen=True, kw_only=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int

    @property
    def group_row(self) -> bytes:
        return _PRODUCER.pack(self.producer_id, self.producer_epoch)


def producer_of_group_row(value: bytes) -> tuple[int, int]:
    if len(value) != _PRODUCER.size:
        raise CorruptError(f"the row of a group in a transaction has {len(value)} bytes, not 10")
    producer_id, producer_epoch = _PRODUCER.unpack(value)
    return producer_id, producer_epoch


class CoordinationRecord(Struct, frozen=True, kw_only=True):
    """A row: the own row of a key, whose member is empty, or the row of a member.

    `value` is opaque here. `version` identifies the save that wrote the row. It is a random number,
    and has no order.
    """

    key: str
    member: str
    version: int
    value: bytes


class RecordChange(Struct, frozen=True, kw_only=True):
    """A change of one key's rows. `rows` maps members to new values; None deletes a row.

    Unless empty, `rows` includes the key's own row. The change is applied if that row is at
    `expected_version` (0: the row does not exist). `deletes_offsets` also deletes the committed
    offsets of the group with this key. `completes_offsets` also commits or drops the pending
    offsets of the transaction with this key; such a change deletes the rows of the transaction's
    groups.
    """

    kind: str
    key: str
    expected_version: int
    rows: Mapping[str, bytes | None]
    deletes_offsets: bool = False
    completes_offsets: OffsetsEnd | None = None

    @property
    def record_key(self) -> RecordKey:
        return self.kind, self.key


class SavedRecords(Struct, frozen=True, kw_only=True):
    """Result of a save: the new version of all stored rows, and the errors of rejected keys."""

    version: int
    refused: Mapping[RecordKey, PenstockError]
