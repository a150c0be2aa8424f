"""Pointers on the log, and the progress of the groups that read them.

Committed offsets are read before the log. They only grow, so a pointer that counts as consumed was
consumed. The exception is a group that is reset during a sweep (`penstock group seek`), which must
be avoided.
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
"""Reads of a topic while retention keeps removing its start."""
GROUPS_MAX: Final = 1_000
"""Consumer groups whose offsets a sweep reads."""

_COLUMNS: Final = ("partition", "offset", "key", "value", "headers")


class Progress(Struct, frozen=True, kw_only=True):
    """Relevant groups, and the offset below which all of them have read, per partition."""

    groups: tuple[str, ...]
    floors: Mapping[int, int]


def progress(client: Client, topic: str, groups: Sequence[str] | None) -> Progress:
    """Return the progress of the slowest group.

    `groups` None means every group that has committed an offset of the topic. A partition without
    a committed offset of one of them, or with an offset beyond its end, counts as unread; without
    any group everything does.

    Raises:
        UnknownTopic: the cluster has no such topic.
        InvalidError: there are more than `GROUPS_MAX` groups: name the relevant ones.
    """
    partitions = [item.index for item in client.describe_topic(topic).partitions]
    everywhere = [(topic, p) for p in partitions]
    names = [item.group_id for item in client.list_groups()] if groups is None else list(groups)
    if len(names) > GROUPS_MAX:
        raise InvalidError(
            f"{len(names)} groups have offsets of {topic}; at most {GROUPS_MAX} are"
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
    """Number of records that no outbox wrote."""


class PointerSource(Protocol):
    """Source of pointers for sweeper and audit. `begin` comes first, then any number of fills."""

    def begin(self) -> tuple[str, ...]:
        """Store the progress of every group; return the relevant groups."""
        ...

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        """Put all pointers into an index, with the progress that `begin` stored.

        With `inline` also inline records, under paths that no payload has (`inline_batch`).
        """
        ...


class TopicPointers:
    """Pointers of a topic, read through a client, by columns.

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
        """Read the whole log into an index, as `PointerSource.fill`.

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
        raise BugError("the loop above returns or raises")

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
"""Suffix of the paths of inline records, which no payload has."""


def _inlines(table: Any) -> Any:
    """Return a table's inline records, with a path that has partition id and batch id."""
    found = table.filter(pc.equal(table.column("kind"), INLINE).fill_null(False))
    middle, end = _INLINE_PARTS
    parts = found.column("partition_id"), middle, found.column("batch_id"), end, ""
    path = pc.binary_join_element_wise(*parts)
    return found.set_column(found.column_names.index("file_path"), "file_path", path)


def inline_batch(path: str) -> tuple[str, str] | None:
    """Return partition id and batch id of an inline record's path in an index; else None."""
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
