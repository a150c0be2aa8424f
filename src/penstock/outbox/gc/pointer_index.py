"""Index of the topic's pointers, in bounded memory: one window of paths after the other.

The sweeper and the audit compare two long lists, the pointers on the topic and the payload files.
Neither list always fits in memory, so they are compared window by window. A window is a range of
*keys*. A key is the payload's hour, then its path:

    2026052414 JFK/year=2026/month=05/day=24/hour=14/batch-abc/data.bin

A window is therefore mostly a range of hours, but an hour with very many batches can be split.

`PointerIndex.add` adds columns of pointers. Beyond `entries_max` different paths, the index keeps
the smallest keys and lowers the upper bound `until` of its window. The next window has the rest;
the topic is read again for it. One window is enough if the index holds the whole topic: with the
default, a topic with a million payloads that are not swept yet.

The index has no I/O and no clock. All loops are over chunks.

Source: `design/host-and-outbox.md`, Collect.
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
from penstock.outbox.reader.decoding import INLINE, POINTER, decode_records
from penstock.records.extents import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.client import Client


INDEX_ENTRIES_MAX: Final = 1_000_000
"""Paths in an index of pointers. Each takes about 300 bytes."""

INDEX_SCHEMA: Final = pa.schema(
    [
        ("key", pa.large_string()),
        ("file_path", pa.large_string()),
        ("size_least", pa.int64()),
        ("size_most", pa.int64()),
        ("crc_least", pa.int64()),
        ("crc_most", pa.int64()),
        ("consumed", pa.bool_()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
"""One row per path.

The least and most values differ if pointers to the path contradict each other. `consumed` means
that all of them are consumed. `partition` and `offset` are the highest ones.
"""
_MERGES: Final = {"size_least": "min", "size_most": "max", "crc_least": "min", "crc_most": "max",
                  "consumed": "min", "partition": "max", "offset": "max"}  # fmt: skip
_SOURCES: Final = {"size_least": "size_bytes", "size_most": "size_bytes", "crc_least": "crc32c",
                   "crc_most": "crc32c"}  # fmt: skip
HOUR_DIGITS: Final = 10
_HOUR: Final = (
    r"/year=(?P<year>\d{4})/month=(?P<month>\d\d)/day=(?P<day>\d\d)/hour=(?P<hour>\d\d)"
    r"/batch-[^/]+/"
)
_SLACK: Final = 2
"""Factor by which the index may exceed its limit before it is reduced to the limit."""


class Window(Struct, frozen=True, kw_only=True):
    """A range of keys from `start` on and below `until`. None means that it has no upper bound."""

    start: str = ""
    until: str | None = None

    def touches_hour(self, hour: str) -> bool:
        return hour >= self.start[: len(hour)] and (
            self.until is None or hour <= self.until[: len(hour)]
        )

    def holds(self, keys: Any) -> Any:
        """Return a boolean array that says which keys are in the window."""
        inside = pc.greater_equal(keys, self.start)
        if self.until is not None:
            inside = pc.and_(inside, pc.less(keys, self.until))
        return inside


def keys_of(paths: Any) -> Any:
    found = pc.extract_regex(paths.cast(pa.large_string()), _HOUR)
    parts = [pc.struct_field(found, index) for index in range(4)]
    hours = pc.binary_join_element_wise(*parts, pa.scalar("", parts[0].type))
    separator = pa.scalar(" ", pa.large_string())
    return pc.binary_join_element_wise(
        hours.cast(pa.large_string()), paths.cast(pa.large_string()), separator
    )


class Looked(Struct, frozen=True):
    """Result of `PointerIndex.look`, with a value for each path that was looked up.

    `referenced` says whether a pointer names the path.
    """

    referenced: np.ndarray[Any, np.dtype[np.bool_]]
    consumed: np.ndarray[Any, np.dtype[np.bool_]]
    """Whether every pointer to the path is below the committed offsets of all groups."""


class PointerIndex:
    """Index of the pointers of one window. Fill it with `add`, then query it."""

    def __init__(self, *, start: str = "", entries_max: int) -> None:
        if entries_max < 1:
            raise InvalidError(f"pointer index of {entries_max} entries: it must have at least 1")
        self._entries_max = entries_max
        self._tables: list[Any] = []
        self._rows = 0
        self._merged: Any = None
        self._hours: dict[str, tuple[int, int]] | None = None
        self.window = Window(start=start)

    @property
    def rows(self) -> int:
        """Number of entries, at most twice `entries_max` plus one chunk."""
        return self._rows

    def add(self, pointers: Any, *, consumed: Any) -> None:
        """Add a table of pointers with file_path, size_bytes, crc32c, partition and offset.

        `consumed` is a boolean array, which says of each pointer whether all groups have read it.
        """
        keys = keys_of(_flat(pointers.column("file_path")))
        columns = [keys]
        for field in list(INDEX_SCHEMA)[1:]:
            source = _SOURCES.get(field.name, field.name)
            column = consumed if source == "consumed" else _flat(pointers.column(source))
            columns.append(column.cast(field.type))
        table = pa.Table.from_arrays(columns, schema=INDEX_SCHEMA)
        table = table.filter(self.window.holds(keys))
        if not table.num_rows:
            return
        self._tables.append(table)
        self._rows += table.num_rows
        self._hours = None
        if self._rows > _SLACK * self._entries_max:
            self._shrink()

    def finish(self) -> Window:
        """Reduce the index to `entries_max` paths; return the window that it covers."""
        self._shrink()
        return self.window

    def hour(self, hour: str) -> Any:
        """Return the entries of an hour (ten digits) in the order of keys, by `INDEX_SCHEMA`."""
        if self._hours is None:
            self._hours = self._cut_hours()
        low, high = self._hours.get(hour, (0, 0))
        return self._merged.slice(low, high - low)

    def hours(self) -> list[str]:
        if self._hours is None:
            self._hours = self._cut_hours()
        return list(self._hours)

    def table(self) -> Any:
        """Return all entries in the order of keys, by `INDEX_SCHEMA`."""
        self._shrink()
        return self._merged

    def rows_of(self, hour: str, paths: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the row number in `table` of each path of an hour; -1 if missing."""
        found = pc.index_in(paths, value_set=self.hour(hour).column("file_path"))
        low = self._low(hour)
        rows = pc.add(found.cast(pa.int64()), low).fill_null(-1)
        return np.asarray(_flat(rows).to_numpy(zero_copy_only=False), np.int64)

    def _low(self, hour: str) -> int:
        return (self._hours or {}).get(hour, (0, 0))[0]

    def look(self, hour: str, paths: Any) -> Looked:
        table = self.hour(hour)
        paths = paths.cast(pa.large_string())
        every = table.column("file_path")
        waiting = every.filter(pc.invert(table.column("consumed")))
        referenced = pc.is_in(paths, value_set=every)
        pending = pc.is_in(paths, value_set=waiting)
        return Looked(
            referenced=_flags(referenced), consumed=_flags(pc.and_not(referenced, pending))
        )

    def _cut_hours(self) -> dict[str, tuple[int, int]]:
        self._shrink()
        starts = pc.utf8_slice_codeunits(self._merged.column("key"), 0, HOUR_DIGITS)
        if not len(starts):
            return {}
        runs = pc.run_end_encode(_flat(starts.cast(pa.string())))
        ends = runs.run_ends.to_pylist()
        lows = [0, *ends[:-1]]
        return dict(zip(runs.values.to_pylist(), zip(lows, ends, strict=True), strict=True))

    def _shrink(self) -> None:
        if self._merged is not None and len(self._tables) == 1:
            return
        table = self._merge()
        if table.num_rows > self._entries_max:
            until = table.column("key")[self._entries_max].as_py()
            self.window = Window(start=self.window.start, until=until)
            table = table.slice(0, self._entries_max)
        self._tables, self._rows, self._merged = [table], table.num_rows, table

    def _merge(self) -> Any:
        if not self._tables:
            return INDEX_SCHEMA.empty_table()
        merged = pa.concat_tables(self._tables).group_by(["key", "file_path"])
        table = merged.aggregate(list(_MERGES.items()))
        names = [*(f"{name}_{how}" for name, how in _MERGES.items())]
        table = table.select(["key", "file_path", *names])
        return table.rename_columns(INDEX_SCHEMA.names).sort_by("key").combine_chunks()


def _flat(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _flags(array: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    flat = _flat(array)
    return np.asarray(flat.to_numpy(zero_copy_only=False), np.bool_)


# Pointers on the topic, and the progress of the groups that read them.
#
# The groups' committed offsets are read before the topic. They only grow, so a pointer that counts
# as consumed was consumed. The exception is a group that is reset during a sweep (`penstock group
# seek`). Do not reset groups during a sweep.


FILL_ATTEMPTS_MAX: Final = 5
"""Attempts to read the topic while retention removes its first records."""
GROUPS_MAX: Final = 1_000
"""Consumer groups whose offsets one sweep or audit reads."""

_COLUMNS: Final = ("partition", "offset", "key", "value", "headers")


class Progress(Struct, frozen=True, kw_only=True):
    """The progress of consumer groups, which decides whether a payload may be swept.

    `floors` has, for each partition, the offset below which all `groups` have read.
    """

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
