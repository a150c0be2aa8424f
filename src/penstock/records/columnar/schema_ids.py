"""Schema ids of the records of a batch, as columns.

A reader is given to the validation of a batch (`records/columnar/validation.py`), which has the
records decompressed. Keys and values are read one after the other, each by one call of a kernel.
The result has each different id once, and the number of its id for each record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np

from penstock.base.crc import Readable
from penstock.kernels import schema_ids as kernels
from penstock.kernels.records import PLACE, RECORD, STATE_FIELDS
from penstock.records.columnar.walk import explained
from penstock.records.errors import CorruptBatch

SchemaId: TypeAlias = int | UUID
"""Number or GUID of a schema."""
Part: TypeAlias = Literal["key", "value"]

HEADERS: Final[dict[Part, str]] = {"key": "__key_schema_id", "value": "__value_schema_id"}
"""Names of the record headers with schema ids."""
BATCH_SCHEMAS_MAX: Final = 1_024
"""Most different schema ids of one batch."""

_NAMES: Final = {part: np.frombuffer(name.encode(), np.uint8) for part, name in HEADERS.items()}
_WORD: Final = (1 << 64) - 1


class PartIds(NamedTuple):
    """Schema ids of the keys or the values of a batch.

    `numbers` has an element for each record: `NULL` if its key or value is null, `ABSENT` if it has
    no id, or `FIRST` plus the index of its id in `ids` (`kernels/schema_ids.py`).
    """

    part: Part
    ids: Sequence[SchemaId]
    absent: int
    """Number of records that have a key or value, but no id."""
    numbers: Any

    def without_id(self) -> list[int]:
        """Return the indexes of the records that lack an id."""
        found: list[int] = np.flatnonzero(self.numbers == kernels.ABSENT).tolist()
        return found

    def with_ids(self, ids: Collection[SchemaId]) -> list[int]:
        """Return the indexes of the records that have one of these ids."""
        chosen = np.zeros(kernels.FIRST + len(self.ids), np.bool_)
        wanted = frozenset(ids)
        chosen[kernels.FIRST :] = [schema_id in wanted for schema_id in self.ids]
        found: list[int] = np.flatnonzero(chosen[self.numbers]).tolist()
        return found


class SchemaIdReader:
    """Reader of the schema ids of batches, which it adds to `found`."""

    __slots__ = ("_parts", "found")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.found: tuple[PartIds, ...] = ()

    def read(self, section: Readable, count: int) -> None:
        """Read the ids of a batch of `count` records; raises CorruptBatch as `read_ids`."""
        self.found += tuple([read_ids(part, section, count) for part in self._parts])


def read_ids(part: Part, section: Readable, count: int) -> PartIds:
    """Read the ids of exactly `count` consecutive records, and check the records.

    Raises:
        CorruptBatch: a record is invalid, or there are more than `BATCH_SCHEMAS_MAX` ids; the error
            has the record's index.
    """
    room = min(count, BATCH_SCHEMAS_MAX)
    numbers = np.empty(count, np.uint16)
    ids = np.empty((room, kernels.ID_FIELDS), np.int64)
    slots = np.zeros(kernels.SLOTS_PER_ID << max(room - 1, 0).bit_length(), np.int32)
    state = np.zeros(STATE_FIELDS, np.int64)
    problem = kernels.read_schema_ids(
        np.frombuffer(section, np.uint8), count, part == "key", _NAMES[part], numbers, ids, slots,
        state,
    )  # fmt: skip
    if problem:
        record, place = int(state[RECORD]), int(state[PLACE])
        if problem == kernels.MANY_IDS:
            raise CorruptBatch(
                f"the batch has more than {BATCH_SCHEMAS_MAX} different schema ids in its {part}s."
                " Send records of fewer schemas in one batch",
                record=record,
            )
        raise CorruptBatch(explained(problem, record, place), record=record)
    found = tuple([_schema_id(*row) for row in ids[: state[kernels.FOUND]].tolist()])
    return PartIds(part, found, int(state[kernels.LACKING]), numbers)


def _schema_id(kind: int, high: int, low: int) -> SchemaId:
    if kind == kernels.SCHEMA_NUMBER:
        return low
    return UUID(int=(high & _WORD) << 64 | low & _WORD)
