"""Pointers on the topic, and the progress of the groups that read them.

The groups' committed offsets are read before the topic. They only grow, so a pointer that counts as
consumed was consumed. The exception is a group that is reset during a sweep (`penstock group
seek`). Do not reset groups during a sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.base.errors import BugError, InvalidError
from penstock.client.errors import OffsetOutOfRange
from penstock.outbox.gc.pointer_index import PointerIndex
from penstock.outbox.reader.decoding import INLINE, POINTER, decode_records
from penstock.records.positions import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client

FILL_ATTEMPTS_MAX: Final = 5
"""Attempts to read the topic while retention removes its first records."""
GROUPS_MAX: Final = 1_000
"""Consumer groups whose offsets one sweep or audit reads."""

_COLUMNS: Final = ("partition", "offset", "key", "value", "headers")


class Progress(Struct, frozen=True, kw_only=True):
    """The relevant groups, and per partition the offset below which all of them have read."""

    groups: tuple[str, ...]
    floors: Mapping[int, int]


def progress(client: Client, topic: str, groups: Sequence[str] | None) -> Progress:
    """Return the progress of the slowest group, per partition.

    `groups` None means every group that has committed an offset of the topic. A partition counts as
    unread if one of the groups has no committed offset there, or has one beyond the partition's
    end. Without any group, everything counts as unread.

    Raises:
        UnknownTopic: the cluster has no such topic.
        InvalidError: there are more than `GROUPS_MAX` groups. Name the relevant ones.
    """
    partitions = [item.index for item in client.describe_topic(topic).partitions]
    everywhere = [(topic, p) for p in partitions]
    names = [item.group_id for item in client.list_groups()] if groups is None else list(groups)
    if len(names) > GROUPS_MAX:
        raise InvalidError(
            f"{len(names)} groups may have offsets of {topic}, and at most {GROUPS_MAX} are"
            " read: name the relevant groups"
        )
    counted: list[str] = []
    floors = dict.fromkeys(partitions, 0)
    for name in names:
        held = client.committed(name, everywhere)
        if groups is None and not held:
            continue
        offsets = {p: held[topic, p].offset if (topic, p) in held else 0 for p in partitions}
        floors = {p: min(floors[p], offset) if counted else offset for p, offset in offsets.items()}
        counted.append(name)
    ends = client.list_offsets(topic, "latest")
    # Beyond the end of the log: offsets of an earlier topic of this name, which are ignored.
    floors = {p: floor if floor <= ends.get(p, -1) else 0 for p, floor in floors.items()}
    return Progress(groups=tuple(counted), floors=floors)


class TopicCounts(Struct):
    pointers: int = 0
    inline: int = 0
    problems: int = 0
    """Number of records that were not written by an outbox."""


class PointerSource(Protocol):
    """Source of pointers for sweeper and audit. Call `begin` once, then `fill` for each window."""

    def begin(self) -> tuple[str, ...]:
        """Read and store the progress of the groups; return the relevant groups."""
        ...

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        """Add all pointers of the topic to an index, with the progress that `begin` has stored.

        `inline` also adds inline records, under paths that no payload has (`inline_batch`).
        """
        ...


class TopicPointers:
    """The pointers of a topic, read through a client in columns.

    `groups` None means every group that has committed an offset of the topic.
    """

    def __init__(self, client: Client, topic: str, groups: Sequence[str] | None = None) -> None:
        self._client = client
        self._topic = topic
        self._groups = groups
        self._reached = Progress(groups=(), floors={})

    def begin(self) -> tuple[str, ...]:
        self._reached = progress(self._client, self._topic, self._groups)
        return self._reached.groups

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        """Read the whole topic into an index, as `PointerSource.fill` describes.

        Raises:
            PenstockError: the topic cannot be read.
        """
        for attempt in range(1, FILL_ATTEMPTS_MAX + 1):
            try:
                return self._read(index, inline=inline)
            except OffsetOutOfRange:
                # Retention removed the next records: start again. The index has no duplicates.
                if attempt == FILL_ATTEMPTS_MAX:
                    raise
        raise BugError("the attempts to read the topic ended without a result or an error")

    def _read(self, index: PointerIndex, *, inline: bool) -> TopicCounts:
        counts = TopicCounts()
        first = self._client.list_offsets(self._topic, "earliest")
        last = self._client.list_offsets(self._topic, "latest", isolation=READ_COMMITTED)
        batches = self._client.iter_arrow(
            self._topic, start=first, end=last, columns=_COLUMNS, isolation="read_committed"
        )
        for batch in batches:
            decoded = decode_records(*(batch.column(name) for name in ("key", "value", "headers")))
            counts.problems += len(decoded) - decoded.column("problem").null_count
            counts.inline += pc.sum(pc.equal(decoded.column("kind"), INLINE)).as_py() or 0
            table = decoded.append_column("partition", batch.column("partition"))
            table = table.append_column("offset", batch.column("offset"))
            pointers = table.filter(pc.equal(decoded.column("kind"), POINTER).fill_null(False))
            counts.pointers += pointers.num_rows
            index.add(pointers, consumed=_below(pointers, self._reached.floors))
            if inline:
                named = _inlines(table)
                index.add(named, consumed=_below(named, self._reached.floors))
        return counts


_INLINE_PARTS: Final = "/year=0000/month=00/day=00/hour=00/batch-", "/inline"
INLINE_PATTERN: Final = "/inline$"
"""End of the paths under which an index has inline records. No payload has such a path."""


def _inlines(table: Any) -> Any:
    """Return the inline records of a table, with paths made of partition id and batch id."""
    found = table.filter(pc.equal(table.column("kind"), INLINE).fill_null(False))
    middle, end = _INLINE_PARTS
    parts = found.column("partition_id"), middle, found.column("batch_id"), end, ""
    path = pc.binary_join_element_wise(*parts)
    return found.set_column(found.column_names.index("file_path"), "file_path", path)


def inline_batch(path: str) -> tuple[str, str] | None:
    """Return (partition id, batch id) from an inline record's path in an index, or None."""
    middle, end = _INLINE_PARTS
    partition_id, separator, rest = path.partition(middle)
    return (partition_id, rest.removesuffix(end)) if separator else None


def _below(table: Any, floors: Mapping[int, int]) -> Any:
    partitions = table.column("partition").to_numpy()
    offsets = table.column("offset").to_numpy()
    limits = np.zeros(max(floors, default=0) + 2, np.int64)
    for partition, floor in floors.items():
        limits[partition] = floor
    # A partition that was added after the groups' offsets were read is unread.
    known = np.minimum(partitions, len(limits) - 1)
    return pa.array(offsets < limits[known])
