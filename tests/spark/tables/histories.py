"""Histories of a database's table as change events: SQLite executes the statements."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa

COLUMNS = ("region", "id", "name", "body", "note")
TOASTED = ("body", "note")
TEXTS = ("", " ", "ä\U0001f600", "null", "__debezium", "'\"\\", "x" * 300, None)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
EVENT = pa.schema(
    [
        ("op", pa.string()), ("lsn", pa.int64()), ("at", pa.timestamp("us", "UTC")),
        ("region", pa.string()), ("id", pa.int64()),
        *((name, pa.string()) for name in COLUMNS[2:]),
    ]
)  # fmt: skip
VERSIONS = """
with keyed as (select * from events where op <> 't'),
truncations as (select lsn, "at" as moment from events where op = 't'),
versions as (
    select *, lead(lsn) over following as next_lsn, lead("at") over following as next_at
    from keyed window following as (partition by region, id order by lsn))
select region, id, name, body, note, "at" as begins, coalesce(
    (select arg_min(t.moment, t.lsn) from truncations t
     where t.lsn > v.lsn and (v.next_lsn is null or t.lsn < v.next_lsn)), next_at) as ends
from versions v where op <> 'd'
"""
"""The versions of all rows, by DuckDB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change: `sent` is the row as the event has it, `row` as the database has it."""

    op: str
    lsn: int
    at: datetime
    row: dict[str, Any]
    sent: dict[str, Any] = field(default_factory=dict)
    unchanged: tuple[str, ...] = ()


class Database:
    """A table in SQLite, and the change events of the statements that it has executed."""

    def __init__(self, seed: int, *, keys: int, moved_toast: bool) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = []
        self._keys = keys
        self._moved_toast = moved_toast
        self._lsn, self._at = 100, EPOCH
        self._sqlite = sqlite3.connect(":memory:")
        self._sqlite.execute(
            "create table t (region text, id int, name text, body text, note text,"
            " primary key (region, id))"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table, in the order of the key."""
        found = self._sqlite.execute("select * from t order by region, id")
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]

    def run(self, changes: int) -> None:
        """Execute statements until there are so many changes."""
        while len(self.events) < changes:
            self._lsn += self.random.randint(1, 40)
            self._at += timedelta(milliseconds=self.random.choice((0, 0, 1, 7)))
            key = (self.random.choice(("eu", "us ", "")), self.random.randrange(self._keys))
            old = self._row(key)
            dice = self.random.random()
            if dice < 0.0004:
                self._sqlite.execute("delete from t")
                self._note("t", dict.fromkeys(COLUMNS))
            elif old is None:
                self._insert(key)
            elif dice < 0.15:
                self._delete(old)
            elif dice < 0.2:
                self._move(old)
            else:
                self._update(old)

    def versions(self) -> list[dict[str, Any]]:
        """Return all versions of all rows, which DuckDB computes."""
        events = pa.Table.from_pylist(
            [dict(event.row, op=event.op, lsn=event.lsn, at=event.at) for event in self.events],
            schema=EVENT,
        )
        with duckdb.connect() as connection:
            connection.execute("set timezone = 'UTC'")
            connection.register("events", events)
            found: list[dict[str, Any]] = connection.sql(VERSIONS).to_arrow_table().to_pylist()
        return found

    def arriving(self, *, apart: float, again: float) -> Iterator[Event]:
        """Yield the events in the order of a log: up to `apart` places off, some of them twice."""
        moments: list[tuple[float, Event]] = []
        for number, event in enumerate(self.events):
            moved = number and self.events[number - 1].lsn == event.lsn
            place = moments[-1][0] if moved else number + self.random.uniform(0, apart)
            moments.append((place, event))
        moments += [
            (place + self.random.uniform(1, 2 * apart + 9), event)
            for place, event in moments
            if self.random.random() < again
        ]
        return (event for _, event in sorted(moments, key=lambda moment: moment[0]))

    def _row(self, key: tuple[str, int]) -> dict[str, Any] | None:
        found = self._sqlite.execute("select * from t where region = ? and id = ?", key).fetchone()
        return None if found is None else dict(zip(COLUMNS, found, strict=True))

    def _text(self) -> str | None:
        return self.random.choice((*TEXTS, str(self.random.random())))

    def _note(self, op: str, row: dict[str, Any], unchanged: Sequence[str] = ()) -> None:
        keyed = COLUMNS[:2] if op == "d" else COLUMNS
        sent = {name: row[name] if name in keyed else None for name in COLUMNS}
        sent |= dict.fromkeys(unchanged)
        event = Event(
            op=op, lsn=self._lsn, at=self._at, row=row, sent=sent, unchanged=tuple(unchanged)
        )
        self.events.append(event)

    def _insert(self, key: tuple[str, int]) -> None:
        row = dict(zip(COLUMNS, (*key, self._text(), self._text(), self._text()), strict=True))
        self._sqlite.execute("insert into t values (?, ?, ?, ?, ?)", tuple(row.values()))
        self._note(self.random.choice(("c", "r")), row)

    def _delete(self, old: dict[str, Any]) -> None:
        self._sqlite.execute("delete from t where region = ? and id = ?", _key(old))
        self._note("d", old)

    def _move(self, old: dict[str, Any]) -> None:
        new = dict(old, id=old["id"] + self._keys * self.random.randint(1, 3), name=self._text())
        if self._row(_key(new)) is not None:
            return
        self._sqlite.execute(
            "update t set id = ?, name = ? where region = ? and id = ?",
            (new["id"], new["name"], *_key(old)),
        )
        self._note("d", old)
        self._note("c", new, TOASTED if self._moved_toast else ())

    def _update(self, old: dict[str, Any]) -> None:
        kept = [name for name in TOASTED if self.random.random() < 0.6]
        new = {name: old[name] if name in kept else self._text() for name in COLUMNS} | {
            name: old[name] for name in COLUMNS[:2]
        }
        self._sqlite.execute(
            "update t set name = ?, body = ?, note = ? where region = ? and id = ?",
            (new["name"], new["body"], new["note"], *_key(old)),
        )
        self._note("u", new, kept)


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return row["region"], row["id"]
