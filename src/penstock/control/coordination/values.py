"""Values of coordinators' records."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from penstock.base.errors import CorruptError, PenstockError

RecordKey = tuple[str, str]
"""A kind and a key, such as a group's id: the unit of loading, ownership and fencing."""

KEY_ROW: Final = ""
"""The member of a key's own row."""

TRANSACTION: Final = "transaction"
"""The kind of a transaction's records, whose keys are transactional ids."""

GROUP_MEMBER: Final = "group/"
"""Prefix of the members of a transaction that name groups whose offsets are part of it."""

OffsetsEnd = Literal["commit", "abort"]
"""The outcome of the offsets of a decided transaction."""

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
        raise CorruptError(f"a row of a transaction's group has {len(value)} bytes, not 10")
    producer_id, producer_epoch = _PRODUCER.unpack(value)
    return producer_id, producer_epoch


class CoordinationRecord(Struct, frozen=True, kw_only=True):
    """A row: of a key itself, whose member is empty, or of one of its members.

    `value` is opaque. `version` identifies the save that wrote the row; it is random and unordered.
    """

    key: str
    member: str
    version: int
    value: bytes


class RecordChange(Struct, frozen=True, kw_only=True):
    """Changes of one key's rows, by member, applied together; None deletes a row.

    Includes the key's own row if there are any rows. Applied if that row is at `expected_version`
    (0: absent). `deletes_offsets` also deletes the committed offsets of the group of this key.
    `completes_offsets` commits or drops the offsets of the transaction of this key; the change
    deletes the rows of its groups.
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
    """Result of a save: the version of all stored rows, and the errors of rejected keys."""

    version: int
    refused: Mapping[RecordKey, PenstockError]
