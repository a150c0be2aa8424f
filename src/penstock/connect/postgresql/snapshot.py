"""Snapshots of tables: rows by ranges of the primary key, each read in one database snapshot.

A range is a *segment*: the keys up to a bound that were read in a snapshot, which PostgreSQL
describes as `xmin:xmax:xip`. A killed run continues behind the last segment, in another snapshot.
The stream then has changes that a segment's snapshot already shows. A change is left out if its
transaction is visible in the snapshot of the segment that has its key. So each change is in the log
once: as a row of the snapshot, or as an event.

A table without a primary key is one segment. If its snapshot is killed, it is read again from the
beginning.

Source: PostgreSQL documentation, "pg_snapshot"; Netflix, "DBLog" (2020).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct
from pyarrow import csv

from penstock.connect.postgresql.catalog import Table
from penstock.connect.postgresql.connection import Session, literal, quoted, translated
from penstock.connect.postgresql.pgoutput import Relation, lsn_number

ROWS_FIRST: Final = 1_000
"""Rows of the first chunk; later chunks have as many rows as `CHUNK_BYTES` need."""
ROWS_MAX: Final = 100_000
CHUNK_BYTES: Final = 16 << 20
PAGES: Final = 1_024
"""Pages of a chunk of a table without a primary key."""


class Segment(Struct, frozen=True, kw_only=True):
    """Keys that were read in one snapshot.

    Attributes:
        upto: texts of the last key; None for the rest of the table.
        snapshot: the snapshot as PostgreSQL writes it.
        lsn: end of the log when the snapshot was taken; transactions that it shows end before.
    """

    snapshot: str
    lsn: int
    upto: tuple[str, ...] | None = None


class TableState(Struct, frozen=True, kw_only=True):
    """Stored state of a table's snapshot.

    Attributes:
        id: OID of the table; a table that was dropped and created again has another one.
    """

    id: int
    done: bool = False
    segments: tuple[Segment, ...] = ()

    @property
    def until_lsn(self) -> int:
        """Position after which no transaction is visible in a segment."""
        return max((segment.lsn for segment in self.segments), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """Transactions that a snapshot shows."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Visible:
        xmin, xmax, running = text.split(":")
        xids = frozenset(int(xid) for xid in running.split(",") if xid)
        return cls(xmin=int(xmin), xmax=int(xmax), running=xids)

    def shows(self, xids: Any) -> Any:
        """Return a mask of the transactions (32 bits, near `xmax`) that the snapshot shows."""
        # Of all 64-bit ids with these low bits, the one nearest to xmax is meant.
        distance = (np.asarray(xids, np.int64) - self.xmax) & 0xFFFF_FFFF
        distance = np.where(distance >= 1 << 31, distance - (1 << 32), distance)
        full = self.xmax + distance
        running = np.isin(full, np.fromiter(self.running, np.int64, len(self.running)))
        return (full < self.xmin) | ((full < self.xmax) & ~running)


class SnapshotReader:
    """Reader of tables in one snapshot, which stays open until `close`."""

    def __init__(self, url: str, exported: str | None = None) -> None:
        """Begin the snapshot; `exported` is the name of one that another session exports."""
        self._session = Session(url)
        self._session.rows("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        if exported is not None:
            self._session.rows(f"SET TRANSACTION SNAPSHOT {literal(exported)}")
        self.snapshot, lsn, self.time_us, self.xid = self._session.row(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text,"
            " (extract(epoch FROM now()) * 1000000)::bigint,"
            " (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1) & 4294967295"
        )
        self.lsn = lsn_number(lsn)

    def chunks(
        self, table: Table, relation: Relation, after: Sequence[str] | None
    ) -> Iterator[tuple[list[Any], tuple[str, ...] | None]]:
        """Yield the columns of each chunk as texts, and its last key; None for the last chunk.

        For a table without a primary key, the key is None for all chunks.

        Args:
            after: texts of the last key that was read; None to begin with the first row.
        """
        if not table.key:
            yield from self._pages(table, relation)
            return
        estimated = table.size_bytes // max(table.rows, 1) if table.size_bytes else 0
        limit = max(1, min(ROWS_FIRST, CHUNK_BYTES // max(estimated, 1)))
        places = [self._place(relation, name) for name in table.key]
        while True:
            size, columns = self._copy(
                table, relation, f"{self._range(table, after)} LIMIT {limit}"
            )
            count = len(columns[0])
            if count < limit:
                yield columns, None
                return
            after = tuple(columns[place][count - 1].as_py() for place in places)
            yield columns, after
            limit = max(1, min(ROWS_MAX, limit * 2, CHUNK_BYTES * count // max(size, 1)))

    def _pages(
        self, table: Table, relation: Relation
    ) -> Iterator[tuple[list[Any], tuple[str, ...] | None]]:
        """Yield the rows of a table without a primary key by ranges of pages."""
        [pages] = self._session.row(
            "SELECT max(pg_relation_size(relid)) / current_setting('block_size')::int"
            " FROM (SELECT %s::oid AS relid UNION ALL"
            " SELECT relid FROM pg_partition_tree(%s::oid::regclass)) AS parts",
            [table.id, table.id],
        )
        for page in range(0, int(pages or 0) + 1, PAGES):
            condition = f" WHERE ctid >= '({page},0)' AND ctid < '({page + PAGES},0)'"
            yield self._copy(table, relation, condition)[1], None

    def _copy(self, table: Table, relation: Relation, rest: str) -> tuple[int, list[Any]]:
        """Return the bytes of a query's result and its columns."""
        names = ", ".join(quoted(column.name) for column in relation.columns)
        query = f"SELECT {names} FROM {quoted(table.schema, table.name)}{rest}"  # noqa: S608
        output = io.BytesIO()
        with translated(self._session.url), self._session.connection.cursor() as cursor:
            cursor.copy_expert(
                f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *, ENCODING 'UTF8')", output
            )
        return output.tell(), read_texts(output.getbuffer(), relation)

    def _range(self, table: Table, after: Sequence[str] | None) -> str:
        key = ", ".join(quoted(name) for name in table.key)
        condition = ""
        if after is not None:
            values = ", ".join(literal(text) for text in after)
            condition = f" WHERE ({key}) > ({values})"
        return f"{condition} ORDER BY {key}"

    @staticmethod
    def _place(relation: Relation, name: str) -> int:
        return next(index for index, column in enumerate(relation.columns) if column.name == name)

    def close(self) -> None:
        self._session.close()


def read_texts(data: Any, relation: Relation) -> list[Any]:
    """Return the columns of COPY's CSV form, in which all values but null are quoted."""
    names = [str(index) for index in range(len(relation.columns))]
    if not len(data):
        return [pa.array([], pa.large_string()) for _ in names]
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(
            column_names=names, use_threads=False, block_size=max(len(data), 1)
        ),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            null_values=[""], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            column_types=dict.fromkeys(names, pa.large_string()),
        ),
    )  # fmt: skip
    return [table.column(name).combine_chunks() for name in names]


class SnapshotFilter:
    """Filter of streamed changes that the snapshots of tables already show."""

    def __init__(self, states: dict[str, TableState], session: Session) -> None:
        self._states = states
        self._session = session

    @property
    def until_lsn(self) -> int:
        """Position after which nothing is left out."""
        return max((state.until_lsn for state in self._states.values()), default=0)

    def kept(self, table: Table, keys: Sequence[Any], xids: Any, commit_lsns: Any) -> Any:
        """Return a mask of changes that no segment shows.

        Args:
            keys: columns of the primary key as texts, of the rows' old or new key.
            xids: transactions of the changes, 32 bits; `commit_lsns` their commit positions.
        """
        state = self._states.get(table.full_name)
        kept = np.ones(len(xids), bool)
        if state is None or not len(xids) or int(commit_lsns.min()) > state.until_lsn:
            return kept
        shown = np.stack([
            Visible.parse(segment.snapshot).shows(xids) & (commit_lsns <= segment.lsn)
            for segment in state.segments
        ])  # fmt: skip
        everywhere, somewhere = shown.all(axis=0), shown.any(axis=0)
        kept[everywhere] = False
        unsure = np.flatnonzero(somewhere & ~everywhere)
        if len(unsure):
            owners = self._owners(table, [key.take(pa.array(unsure)) for key in keys], state)
            kept[unsure] = ~shown[owners, unsure]
        return kept

    def _owners(self, table: Table, keys: Sequence[Any], state: TableState) -> Any:
        """Return the index of the segment of each key, which the database compares."""
        columns = ", ".join(quoted(name) for name in table.key)
        cases = " ".join(
            f"WHEN ({columns}) <= ({', '.join(literal(text) for text in segment.upto)})"
            f" THEN {number}"
            for number, segment in enumerate(state.segments)
            if segment.upto is not None
        )
        last = len(state.segments) - 1
        values = ", ".join(
            "(" + ", ".join([str(number), *(literal(text) for text in row)]) + ")"
            for number, row in enumerate(zip(*(key.to_pylist() for key in keys), strict=True))
        )
        casts = ", ".join(
            f"given.c{number}::text::{kind} AS {quoted(name)}"
            for number, (name, kind) in enumerate(zip(table.key, self._types(table), strict=True))
        )
        names = ", ".join(["number", *(f"c{number}" for number in range(len(table.key)))])
        query = (
            f"SELECT CASE {cases} ELSE {last} END FROM (SELECT number, {casts}"  # noqa: S608
            f" FROM (VALUES {values}) AS given({names})) AS typed ORDER BY number"
        )
        return np.array([row[0] for row in self._session.rows(query)], np.int64)

    def _types(self, table: Table) -> list[str]:
        found = dict(self._session.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped", [table.id],
        ))  # fmt: skip
        return [str(found[name]) for name in table.key]
