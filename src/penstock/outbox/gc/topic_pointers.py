"""What the topic and its groups say: the pointers of the log, and how far every group has read.

The offsets that groups have committed are read before the log. They only grow, so a pointer that
is called consumed was consumed; a group that is moved back meanwhile (`penstock group seek`) is
the exception, and is not to be done while a sweep runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import BugError, InvalidError
from penstock.client.errors import OffsetOutOfRange
from penstock.outbox import read_limits
from penstock.outbox.gc.pointer_index import PointerIndex
from penstock.outbox.reader.decoding import INLINE, POINTER, decode_records
from penstock.records.positions import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client

_COLUMNS: Final = ("partition", "offset", "key", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The groups that count, and the offset below which all of them have read, per partition."""

    groups: tuple[str, ...]
    floors: Mapping[int, int]


def progress(client: Client, topic: str, groups: Sequence[str] | None) -> Progress:
    """How far the slowest group has read.

    `groups` None takes every group that has committed an offset of the topic. A partition that
    one of them has committed nothing of, or an offset beyond its end, counts as not read at all;
    without any group nothing is read.

    Raises:
        UnknownTopic: there is no such topic.
        InvalidError: there are more than `GROUPS_MAX` groups to ask: name those that count.
    """
    partitions = [item.index for item in client.describe_topic(topic).partitions]
    everywhere = [(topic, p) for p in partitions]
    names = [item.group_id for item in client.list_groups()] if groups is None else list(groups)
    if len(names) > read_limits.GROUPS_MAX:
        raise InvalidError(
            f"{len(names)} groups are more than the {read_limits.GROUPS_MAX} that are asked for"
            f" their offsets of {topic}: name those that count"
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
    # Beyond the end of the log: offsets of an earlier topic of this name, which say nothing.
    floors = {p: floor if floor <= ends.get(p, -1) else 0 for p, floor in floors.items()}
    return Progress(groups=tuple(counted), floors=floors)


@dataclass(slots=True)
class TopicCounts:
    """What a reading of the topic saw."""

    pointers: int = 0
    inline: int = 0
    problems: int = 0
    """Records that no outbox wrote."""


class PointerSource(Protocol):
    """Where sweeper and audit learn of pointers. `begin` comes first, then any number of fills."""

    def begin(self) -> tuple[str, ...]:
        """Note how far every group has read; returns the groups that count."""
        ...

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        """Put all pointers into an index, with what `begin` noted.

        With `inline` also inline records, under paths that no payload has (`inline_batch`).
        """
        ...


class TopicPointers:
    """The pointers of a topic, read through a client, by columns.

    `groups` None takes every group that has committed an offset of the topic.
    """

    def __init__(self, client: Client, topic: str, groups: Sequence[str] | None = None) -> None:
        self._client = client
        self._topic = topic
        self._groups = groups
        self._reached = Progress(groups=(), floors={})

    def begin(self) -> tuple[str, ...]:
        """Ask the groups for their offsets; raises as `progress`."""
        self._reached = progress(self._client, self._topic, self._groups)
        return self._reached.groups

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        """Read the whole log into an index, as `PointerSource.fill`.

        Raises:
            PenstockError: the topic cannot be read.
        """
        for attempt in range(1, read_limits.FILL_ATTEMPTS_MAX + 1):
            try:
                return self._read(index, inline=inline)
            except OffsetOutOfRange:
                # Retention took records that were about to be read; twice in an index is once.
                if attempt == read_limits.FILL_ATTEMPTS_MAX:
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
"""Ends the paths of inline records; those of payloads end otherwise."""


def _inlines(table: Any) -> Any:
    """The inline records of a table, with a path that names the partition id and the batch id."""
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
    # A partition that was added after the groups were asked: nobody has read it.
    known = np.minimum(partitions, len(limits) - 1)
    return pa.array(offsets < limits[known])
