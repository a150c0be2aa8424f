"""Change events of a database, applied to a Delta table: the current rows, or all versions of rows.

A view of change events has the table's columns and the struct `_change`: `op`, `sequence` (the
database's log position and the offset), `at`, and the `unchanged` columns, whose values were not
sent. Each batch is one commit, as for an upsert (`upsert.py`). The result depends on the sequence
of the changes alone, not on the batches in which they come:

1. The stored rows of the batch's keys are read, with the deletes that are still remembered.
2. All changes of a key are sorted by their sequence. An unchanged value is that of the change
   before. Of several changes of a key with the same log position, the last one counts.
3. The rows that differ are merged. Without `history` this is the last change of each key, unless it
   is a delete, or a truncation came after it. With `history` these are all versions: `__START_AT`
   and `__END_AT` are the times of this change and of the next one.

The table has two more columns: `_penstock_sequence`, and `_penstock_carried`, which has the
sequence and the name of each column whose value comes from an earlier change. Deletes and
truncations are remembered in a Delta table below this one, `_penstock_deleted`, so that an older
change that comes later does not restore a row. They are forgotten `REMEMBERED` after them.

Source: Databricks, "AUTO CDC APIs", for the names `__START_AT` and `__END_AT`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from operator import or_
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.table import TableMerger
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, StringType, StructField, StructType, TimestampType

from penstock.formats.json.debezium import CHANGE, CHANGE_TYPE
from penstock.spark.errors import InvalidOption, TableMismatch
from penstock.spark.schema import quoted
from penstock.spark.staged import Staged, query_of
from penstock.spark.tables.append import Written
from penstock.spark.tables.commits import Commit, in_table
from penstock.spark.tables.location import absolute, open_table
from penstock.spark.tables.newest import in_tasks
from penstock.spark.tables.rules import lengths_of, merged_rules
from penstock.spark.tables.upsert import (
    BATCH_ROWS_MAX,
    REMOVES,
    DeltaUpsert,
    KeyedRows,
    partitions_of,
)

SEQUENCE: Final = "_penstock_sequence"
CARRIED: Final = "_penstock_carried"
START: Final = "__START_AT"
END: Final = "__END_AT"
DELETED: Final = "_penstock_deleted"
SEQUENCE_SQL: Final = (
    "concat(lpad(hex(coalesce({lsn}, 0L)), 16, '0'), '-', lpad(hex({offset}), 16, '0'))"
)
"""SQL of a change's sequence: two numbers of 64 bits, in hexadecimal."""
REMEMBERED: Final = timedelta(days=7)
REWRITE_VERSIONS: Final = 50

_OP, _AT, _UNCHANGED = "_penstock_op", "_penstock_at", "_penstock_unchanged"
_KIND, _ONLY, _STORED = "_penstock_kind", "_penstock_only", "_penstock_stored"
_PARTIAL, _ROW, _NEW_ROW, _DELETE = range(4)
"""Kinds of events: a value that a stored row carries from an earlier change, a row, a row that a
create or a snapshot wrote, a delete."""
_TIME: Final = CHANGE_TYPE.field("at").type
_TEXTS: Final = pa.list_(pa.string())
_NOTHING: Final = {_ONLY: (None, pa.string()), _STORED: (False, pa.bool_()), END: (None, _TIME)}
"""Columns that only stored rows have, and their values and types in changes.

They are not scalars, because PyArrow imports pandas to make the first one, which takes 0.2 s.
"""
_UNKNOWN: Final = "-" * 33
"""Sequence of a carried value that no change has set: less than any sequence."""
_NO_LSN: Final = b"0" * 16
_OWN: Final = (
    StructField(SEQUENCE, StringType()),
    StructField(CARRIED, ArrayType(StringType())),
)
OWN_NAMES: Final = (SEQUENCE, CARRIED)
_TIMES: Final = (StructField(START, TimestampType()), StructField(END, TimestampType()))

Numbers = npt.NDArray[Any]


class StoredRows(Protocol):
    """Rows of one version of a table."""

    def with_keys(self, keys: pa.Table) -> pa.Table:
        """Return the rows with some keys."""
        ...

    def open_since(self, columns: Sequence[str], column: str, since: Any = None) -> pa.Table:
        """Return the rows in which a column is null, or at least `since` unless this is None."""
        ...


class DeltaChanges:
    """Sink that applies change events to a Delta table; pass it to `foreachBatch`."""

    def __init__(
        self,
        table: str,
        *,
        application: str,
        keys: Sequence[str],
        history: bool = False,
        add_columns: bool = False,
        leave_out: Sequence[str] = (),
        codec: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        batch_rows_max: int = BATCH_ROWS_MAX,
        rewrite_versions: int = REWRITE_VERSIONS,
    ) -> None:
        """Args:
        keys: columns of the table's key; they must not be null.
        history: whether the table keeps all versions of a row.
        batch_rows_max: most changes of a batch.
        rewrite_versions: versions of the table of deletes after which it is rewritten without
            deletes that are too old.

        Other arguments are those of `DeltaUpsert`.
        """
        self._table = absolute(table)
        self._history = history
        self._rewrite_versions = rewrite_versions
        self._storage_options = dict(storage_options or {}) or None
        self._read = ChangeReader(
            self._table, keys=keys, history=history, leave_out=leave_out,
            batch_rows_max=batch_rows_max,
        )  # fmt: skip
        self._target = DeltaUpsert(
            table,
            application=application,
            keys=self._read.row_keys,
            add_columns=add_columns,
            own=OWN_NAMES,
            codec=codec,
            storage_options=storage_options,
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.write(batch, batch_id)

    def write(self, batch: DataFrame, batch_id: int) -> Written:
        """Apply a batch unless the table already has it; errors are those of `stage`.

        The result's `rows` counts the changes.
        """
        return self.stage(batch, batch_id).commit()

    def stage(self, batch: DataFrame, batch_id: int) -> Staged[Written]:
        """Load the changes into memory; the table does not change until the result is committed.

        Raises:
            TableMismatch: the columns differ from the table's, a row breaks a rule of the table,
                there are too many changes, or a key is null.
            QueryChanged: the table has batches of this application from another checkpoint.
        """
        commit = Commit(
            application=self._target.application, batch_id=batch_id, query=query_of(batch)
        )
        table = self._open()
        if in_table(table, commit):
            return Staged(rows=0, commit=partial(_written, batch_id), replayed=True)
        schema = self._schema(table, batch)
        changes = self._read(batch, batch_id, table)
        return Staged(
            rows=changes.rows.num_rows, commit=partial(self._finish, changes, schema, commit)
        )

    def check(self, batch: DataFrame) -> None:
        """Check that change events with these columns can be applied; no row is read.

        Raises:
            InvalidOption: a column's type cannot be a key.
            TableMismatch: the table rejects the columns.
            UnwritableTable: the table has features that this sink cannot write.
        """
        self._schema(self._open(), batch)

    def _open(self) -> DeltaTable | None:
        return open_table(self._table, self._storage_options)

    def _schema(self, table: DeltaTable | None, batch: DataFrame) -> Schema:
        return self._target.schema(table, self._read.columns(batch))

    def _finish(self, changes: Changes, schema: Schema, commit: Commit) -> Written:
        self._remember(changes, commit)
        beside = None
        if changes.last_cut is not None and not self._history:
            older = f'(kept."{SEQUENCE}" IS NULL OR kept."{SEQUENCE}" < \'{changes.last_cut}\')'
            beside = partial(TableMerger.when_not_matched_by_source_delete, predicate=older)
        deleted = open_table(self._deleted, self._storage_options)
        remembered = None if deleted is None else _DeltaRows(deleted)

        def rows(table: DeltaTable | None) -> pa.Table:
            stored = None if table is None else _DeltaRows(table)
            return self._target.fitted_rows(changes.applied(stored, remembered), schema)

        version = self._target.commit(rows, commit, beside=beside)
        return _written(commit.batch_id, changes.rows.num_rows, version)

    @property
    def _deleted(self) -> str:
        return f"{self._table}/{DELETED}"

    def _remember(self, changes: Changes, commit: Commit) -> None:
        """Add a batch's deletes and truncations to the table of deletes, unless it has them."""
        added = changes.deletes()
        table = open_table(self._deleted, self._storage_options)
        if not added.num_rows or in_table(table, commit):
            return
        rewritten = table is not None and (table.version() + 1) % self._rewrite_versions == 0
        if rewritten and table is not None:
            added = with_remembered(added, table.to_pyarrow_table())
        write_deltalake(
            self._deleted,
            added,
            mode="overwrite" if rewritten else "append",
            storage_options=self._storage_options,
            commit_properties=commit.properties(),
        )
        if rewritten and table is not None:
            table.update_incremental()
            table.vacuum(dry_run=False)


class ChangeReader:
    """Reader of a batch's changes; the arguments are those of `DeltaChanges`.

    Attributes:
        row_keys: columns that identify a row of the table: `keys`, with `history` and the sequence.
    """

    def __init__(
        self,
        name: str,
        *,
        keys: Sequence[str],
        history: bool,
        leave_out: Sequence[str],
        batch_rows_max: int,
    ) -> None:
        self._name = name
        self._keys = tuple(keys)
        self._history = history
        self._leave_out = (CHANGE, *leave_out)
        self._rows_max = batch_rows_max
        self._rows = KeyedRows(name, keys=keys, delete_when=f"{_OP} in ('d', 't')")
        self.row_keys = (*self._keys, SEQUENCE) if history else self._keys

    def columns(self, batch: DataFrame) -> StructType:
        """Return the columns of the table.

        Raises:
            InvalidOption: a column's type cannot be a key.
        """
        columns = batch.drop(*self._leave_out).schema
        known = [name for name in self._keys if name in columns.names]
        if not in_tasks(batch.schema, keys=known, order=known[0] if known else columns.names[0]):
            kinds = ", ".join(columns[name].dataType.simpleString() for name in known)
            raise InvalidOption("keys", kinds, "change events need keys of exact types. Cast them")
        return StructType([*columns, *_OWN, *(_TIMES if self._history else ())])

    def __call__(self, batch: DataFrame, batch_id: int, table: DeltaTable | None = None) -> Changes:
        """Return the changes of a batch.

        Args:
            table: Delta table whose rules the rows must meet.

        Raises:
            TableMismatch: a row breaks a rule, there are too many changes, or a key is null.
        """
        names = [name for name in batch.columns if name not in self._leave_out]
        parts = {"op": _OP, "sequence": SEQUENCE, "at": _AT, "unchanged": _UNCHANGED}
        flat = batch.selectExpr(
            *map(quoted, names), *(f"{CHANGE}.{part} as {name}" for part, name in parts.items())
        )
        partitions = partitions_of(table, names)
        rules = [*lengths_of(table), *merged_rules(flat.schema, partitions)]
        rows, _ = self._rows.gather(flat, rules, partitions)
        return self._checked(rows.drop_columns([REMOVES]), batch_id)

    def _checked(self, rows: pa.Table, batch_id: int) -> Changes:
        what = f"table {self._name}: batch {batch_id}"
        if rows.num_rows > self._rows_max:
            raise TableMismatch(
                f"{what} has more than {self._rows_max} changes. Lower the trigger's limit of "
                "records"
            )
        if rows[SEQUENCE].null_count:
            raise TableMismatch(
                f"{what} has rows whose {CHANGE} is null. Each row must have that of its record"
            )
        truncates = pc.equal(rows[_OP], "t")
        kept = rows.filter(pc.invert(truncates))
        if null := [name for name in self._keys if kept[name].null_count]:
            raise TableMismatch(
                f"{what} has changes whose key column {null[0]} is null. Name the columns of the "
                "primary key"
            )
        which = pc.index_in(kept[_OP], value_set=pa.array(["u", "c", "r", "d"]))
        kind = pa.array([_ROW, _NEW_ROW, _NEW_ROW, _DELETE], pa.int8()).take(which)
        kept = kept.drop_columns([_OP]).append_column(_KIND, kind)
        for name, nothing in _NOTHING.items():
            kept = kept.append_column(name, pa.repeat(pa.scalar(*nothing), kept.num_rows))
        return Changes(
            rows=kept,
            truncations=rows.filter(truncates).select([SEQUENCE, _AT]).sort_by(SEQUENCE),
            keys=self._keys,
            history=self._history,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of a batch.

    `rows` has the table's columns, `SEQUENCE`, and the kind, time and unchanged columns of each
    change. `truncations` has sequences and times, in order.
    """

    rows: pa.Table
    truncations: pa.Table
    keys: tuple[str, ...]
    history: bool

    @property
    def last_cut(self) -> str | None:
        """Sequence of the last truncation."""
        sequences = self.truncations[SEQUENCE]
        return str(sequences[-1]) if len(sequences) else None

    def deletes(self) -> pa.Table:
        """Return the rows of the table of deletes; truncations have null keys."""
        deletes = self.rows.filter(pc.equal(self.rows[_KIND], _DELETE))
        deletes = deletes.select([*self.keys, SEQUENCE, _AT])
        return pa.concat_tables([deletes, _shaped(self.truncations, deletes.schema, {})])

    def applied(self, table: StoredRows | None, remembered: StoredRows | None) -> pa.Table:
        """Return the rows to merge into a version of a table, each with its column `REMOVES`.

        Args:
            table: None if there is no table yet.
            remembered: deletes of earlier batches, and of this one.
        """
        deleted = self.rows.schema.empty_table()
        truncations = self.truncations
        keys = _distinct(self.rows.select(self.keys))
        if self.history and table is not None and len(truncations):
            found = self._truncated(table, keys.schema)
            keys = _distinct(pa.concat_tables([keys, found]))
        if remembered is not None:
            deleted = remembered.with_keys(keys)
            found = remembered.open_since([SEQUENCE, _AT], self.keys[0])
            found = _shaped(found, truncations.schema, {})
            truncations = pa.concat_tables([truncations, found])
        events = [self.rows, _shaped(deleted, self.rows.schema, {_KIND: _DELETE})]
        if table is not None:
            events += _stored_events(table.with_keys(keys), self.rows.schema)
        truncations = truncations.sort_by(SEQUENCE)
        applied = Applied(pa.concat_tables(events), truncations, keys=self.keys)
        return applied.rows(history=self.history)

    def _truncated(self, table: StoredRows, keys: pa.Schema) -> pa.Table:
        """Return the keys of versions that begin before a truncation and do not end before it."""
        columns, first = [*self.keys, SEQUENCE, END], pc.min(self.truncations[_AT]).as_py()
        found = table.open_since(columns, END, first)
        conditions = [
            (pc.field(SEQUENCE) < sequence) & (pc.field(END).is_null() | (pc.field(END) >= at))
            for sequence, at in zip(self.truncations[SEQUENCE], self.truncations[_AT], strict=True)
        ]
        return _shaped(found.filter(reduce(or_, conditions)), keys, {})


class Applied:
    """Events of some keys in the order of their sequences, with unchanged values filled in."""

    def __init__(self, events: pa.Table, truncations: pa.Table, *, keys: Sequence[str]) -> None:
        order = [(name, "ascending") for name in (*keys, SEQUENCE, _KIND)]
        events = events.take(pc.sort_indices(events, order)).combine_chunks()
        self._count = events.num_rows
        self._rows = np.arange(self._count)
        first = np.ones(self._count, np.bool_)
        first[1:] = False
        for name in keys:
            column = events[name]
            first[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy()
        self._starts = np.maximum.accumulate(np.where(first, self._rows, 0))
        self._kind = events[_KIND].to_numpy()
        self._is_row = (self._kind == _ROW) | (self._kind == _NEW_ROW)
        # A new row takes no value of an earlier row with its key.
        fresh = first | (self._kind == _NEW_ROW)
        self._since = np.maximum.accumulate(np.where(fresh, self._rows, 0))
        self._sequence = _bytes(events[SEQUENCE])
        self._cuts = _bytes(truncations[SEQUENCE])
        self._cut_times = truncations[_AT].combine_chunks()
        self._stored = events[_STORED].fill_null(False).to_numpy()
        self._times, self._ends = events[_AT], events[END].combine_chunks()
        own = (SEQUENCE, _KIND, _AT, _UNCHANGED, _ONLY, _STORED, START, END, CARRIED)
        self._names = [name for name in events.column_names if name not in (*keys, *own)]
        self._columns = events.select([*keys, *self._names, SEQUENCE])
        self._fill(self._unset(events))

    def _unset(self, events: pa.Table) -> Numbers:
        """Return the flag of each event and column: whether the event does not set it."""
        names = pa.array(self._names, pa.string())
        unset = np.zeros((self._count, len(names)), np.bool_)
        listed = events[_UNCHANGED].combine_chunks()
        which = pc.index_in(pc.list_flatten(listed), value_set=names)
        known = which.is_valid().to_numpy(zero_copy_only=False)
        rows = pc.list_parent_indices(listed).to_numpy()
        unset[rows[known], which.drop_null().to_numpy()] = True
        unset[self._kind == _DELETE] = False
        partial_rows = np.flatnonzero(self._kind == _PARTIAL)
        unset[partial_rows] = True
        which = pc.index_in(events[_ONLY].take(partial_rows), value_set=names)
        known = which.is_valid().to_numpy()
        unset[partial_rows[known], which.drop_null().to_numpy()] = False
        return unset

    def _fill(self, unset: Numbers) -> None:
        sources = np.where(unset, -1, self._rows[:, None])
        carried = unset & self._is_row[:, None]
        for number in np.flatnonzero(unset.any(axis=0)).tolist():
            found, moved = self._source(unset[:, number])
            sources[:, number] = found
            carried[moved, number] = False
            at = self._columns.schema.get_field_index(self._names[number])
            column = self._columns.column(at).take(pa.array(found, mask=found < 0))
            self._columns = self._columns.set_column(at, self._columns.field(at), column)
        rows, columns = np.nonzero(carried)
        found = sources[rows, columns]
        since = self._columns[SEQUENCE].take(pa.array(found, mask=found < 0)).fill_null(_UNKNOWN)
        names = pa.array(self._names, pa.string()).take(pa.array(columns))
        entries = pc.binary_join_element_wise(since.combine_chunks(), names, " ")
        offsets = np.zeros(self._count + 1, np.int32)
        np.cumsum(carried.sum(axis=1), out=offsets[1:])
        self._carried = carried.any(axis=1)
        lists = pa.ListArray.from_arrays(pa.array(offsets), entries, mask=pa.array(~self._carried))
        self._columns = self._columns.append_column(CARRIED, lists)

    def _source(self, unset: Numbers) -> tuple[Numbers, Numbers]:
        """Return the event whose value of a column each event has (-1: none).

        A row whose key changed has the value of its old key, which a delete with the same log
        position ends. The second result are these rows.
        """
        anchors, origins = ~unset, self._rows.copy()
        deletes = np.flatnonzero(self._kind == _DELETE)
        positions = self._sequence.astype("S16")
        deletes = deletes[np.argsort(positions[deletes], kind="stable")]
        while True:
            last = np.maximum.accumulate(np.where(anchors, self._rows, -1))
            sources = np.where(last >= self._since, origins[last], -1)
            moved = np.flatnonzero((sources < 0) & unset & (self._kind == _NEW_ROW))
            moved = moved[positions[moved] != _NO_LSN]
            at = np.searchsorted(positions[deletes], positions[moved])
            moved, at = moved[at < deletes.size], at[at < deletes.size]
            same = positions[deletes[at]] == positions[moved]
            moved, before = moved[same], deletes[at[same]] - 1
            inside = before >= self._starts[before + 1]
            moved, before = moved[inside], before[inside]
            known = sources[before] >= 0
            if not known.any():
                return sources, np.flatnonzero(anchors & unset)
            anchors[moved[known]] = True
            origins[moved[known]] = sources[before[known]]

    def rows(self, *, history: bool) -> pa.Table:
        """Return the rows to merge: those that differ from the stored rows."""
        whole = np.flatnonzero(self._kind != _PARTIAL)
        sequence, group = self._sequence[whole], self._starts[whole]
        position = sequence.astype("S16")
        same = (sequence[1:] == sequence[:-1]) | (
            (position[1:] == position[:-1]) & (position[1:] != _NO_LSN)
        )
        replaced = np.zeros(whole.size, np.bool_)
        replaced[:-1] = same & (group[1:] == group[:-1])
        lost, kept = whole[replaced], whole[~replaced]
        following = np.append(kept[1:], -1)[: kept.size]
        following[self._starts[following] != self._starts[kept]] = -1
        cut = np.searchsorted(self._cuts, self._sequence[kept], side="right")
        is_cut = cut < self._cuts.size
        later = np.append(self._cuts, b"")[cut] < self._sequence[following]
        is_cut &= (following < 0) | later
        if not history:
            last = following < 0
            gone = kept[last & ((self._kind[kept] == _DELETE) | is_cut)]
            stays = kept[last & self._is_row[kept] & ~is_cut]
            return self._merged(stays[~self._stored[stays] | self._carried[stays]], gone, {})
        ends = self._times.take(pa.array(following, mask=following < 0))
        cut_ends = self._cut_times.take(pa.array(cut, mask=~is_cut))
        ends = pc.coalesce(cut_ends, ends.combine_chunks())
        before = self._ends.take(kept)
        equal = pc.or_kleene(pc.equal(before, ends), pc.and_(before.is_null(), ends.is_null()))
        same_end = equal.fill_null(False).to_numpy(zero_copy_only=False)
        chosen = self._is_row[kept] & ~(self._stored[kept] & ~self._carried[kept] & same_end)
        gone = lost[self._stored[lost] & self._is_row[lost]]
        return self._merged(kept[chosen], gone, {END: ends.filter(pa.array(chosen))})

    def _merged(self, rows: Numbers, gone: Numbers, ends: Mapping[str, Any]) -> pa.Table:
        found = self._columns.take(np.concatenate([rows, gone]))
        for name, values in ends.items():
            starts = self._times.take(np.concatenate([rows, gone]))
            found = found.append_column(START, starts)
            nothing = pa.nulls(gone.size, values.type)
            found = found.append_column(name, pa.concat_arrays([values, nothing]))
        removes = np.arange(found.num_rows) >= rows.size
        return found.append_column(REMOVES, pa.array(removes))


def _written(batch_id: int, rows: int = 0, version: int | None = None) -> Written:
    replayed = version is None and not rows
    return Written(batch_id=batch_id, rows=rows, files=0, version=version, replayed=replayed)


def _bytes(sequences: Any) -> Numbers:
    """Return sequences as bytes of one width, which NumPy compares as the table does."""
    return np.asarray(sequences.fill_null("").to_pylist(), "S33")


def _distinct(keys: pa.Table) -> pa.Table:
    return keys.group_by(keys.column_names).aggregate([])


@dataclass(frozen=True, slots=True)
class _DeltaRows:
    """`StoredRows` of a Delta table."""

    table: DeltaTable

    def with_keys(self, keys: pa.Table) -> pa.Table:
        dataset = self.table.to_pyarrow_dataset()
        if not keys.num_rows:
            return dataset.schema.empty_table()
        kinds = [dataset.schema.field(name) for name in keys.column_names]
        keys = keys.cast(pa.schema(kinds))
        values = keys.column(0).combine_chunks()
        field = pc.field(keys.column_names[0])
        bounds = pc.min_max(values)
        wanted = (field >= bounds["min"]) & (field <= bounds["max"]) & field.isin(values)
        found = dataset.to_table(filter=wanted)
        if keys.num_columns == 1:
            return found
        numbers = pa.array(range(len(found)))
        numbered = found.select(keys.column_names).append_column(_STORED, numbers)
        chosen = numbered.join(keys, keys.column_names, join_type="left semi")
        return found.take(chosen[_STORED])

    def open_since(self, columns: Sequence[str], column: str, since: Any = None) -> pa.Table:
        condition = pc.field(column).is_null()
        if since is not None:
            condition |= pc.field(column) >= since
        return self.table.to_pyarrow_dataset().to_table(list(columns), filter=condition)


def with_remembered(added: pa.Table, remembered: pa.Table) -> pa.Table:
    """Return deletes with those of a table of deletes that are not too old."""
    kept = _shaped(remembered, added.schema, {})
    since = pc.max(added[_AT]).as_py() - REMEMBERED
    return pa.concat_tables([kept.filter(pc.greater_equal(kept[_AT], since)), added])


def _shaped(rows: pa.Table, schema: pa.Schema, constants: Mapping[str, int]) -> pa.Table:
    """Return rows with the columns of a schema; columns that they lack are null or constant."""
    columns = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows.num_rows)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _stored_events(rows: pa.Table, schema: pa.Schema) -> list[pa.Table]:
    """Return the events of stored rows: the rows, and the values that they carry."""
    carried = rows[CARRIED].cast(_TEXTS).combine_chunks()
    entries = pc.list_flatten(carried)
    sequences = pc.utf8_slice_codeunits(entries, 0, 33)
    names = pc.utf8_slice_codeunits(entries, 34)
    parents = pc.list_parent_indices(carried)
    made = _shaped(rows, schema, {_KIND: _ROW, _STORED: True})
    unset = pa.ListArray.from_arrays(carried.offsets, names, mask=carried.is_null())
    made = _with(made, {_UNCHANGED: unset})
    if START in rows.column_names:
        made = _with(made, {_AT: rows[START].cast(_TIME)})
    values = _with(
        made.take(parents),
        {
            SEQUENCE: sequences,
            _KIND: pa.repeat(pa.scalar(_PARTIAL, pa.int8()), len(entries)),
            _ONLY: names,
        },
    )
    return [made, values.filter(pc.not_equal(sequences, _UNKNOWN))]


def _with(rows: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    """Return rows with some columns replaced."""
    for name, column in columns.items():
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows
