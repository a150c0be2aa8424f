"""Checks of everything that a pipeline wrote, however often a process died.

The source's log says what there was; nothing else is believed. A record is named by its place:
partition and offset. While the pipeline is between two lives, only what can never be true is
looked for (a record twice, out of order, of two fates); at the end nothing may be missing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Place = tuple[int, int]
SHOWN_MAX: Final = 5
UNDECODABLE: Final = "undecodable"
BAD: Final = "bad"
PARKED: Final = "park"
REJECTED: Final = frozenset({UNDECODABLE, BAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a sink: its place in the source, and what it says."""

    place: Place
    key: str
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Everything there is: `source` has key, number and kind of each record.

    `out` has the copied topic's partitions, each in the order of its offsets.
    """

    source: Mapping[Place, tuple[str, int, str]]
    table: tuple[Row, ...] = ()
    upsert: tuple[Row, ...] = ()
    out: Mapping[int, tuple[Row, ...]] = field(default_factory=dict)
    dead: tuple[Place, ...] = ()


def source_of(records: Iterable[Mapping[str, Any]]) -> dict[Place, tuple[str, int, str]]:
    """The source's records by place."""
    found: dict[Place, tuple[str, int, str]] = {}
    for record in records:
        try:
            value = json.loads(record["value"])
        except ValueError:
            value = {"n": -1, "kind": UNDECODABLE}
        place = (record["partition"], record["offset"])
        found[place] = (record["key"].decode(), value["n"], value["kind"])
    return found


def problems(written: Written, *, final: bool) -> list[str]:
    """Return the errors as sentences, none if all is well."""
    out = tuple(row for rows in written.out.values() for row in rows)
    found = [
        *_twice("table", [row.place for row in written.table]),
        *_twice("topic", [row.place for row in out]),
        *_twice("dead letters", list(written.dead)),
        *_twice("upsert table", [row.key for row in written.upsert]),
        *_strange("table", written, written.table),
        *_strange("topic", written, out),
        *_fates(written, out),
        *_order(written.out),
    ]
    return [*found, *(_missing(written, out) if final else ())]


def _list(text: str, items: Iterable[Any]) -> list[str]:
    some = sorted(set(items))
    if not some:
        return []
    shown = ", ".join(map(str, some[:SHOWN_MAX]))
    return [f"{text}: {len(some)} ({shown}{', …' if len(some) > SHOWN_MAX else ''})"]


def _twice(where: str, places: list[Any]) -> list[str]:
    return _list(
        f"{where}: more than once", (place for place, times in Counter(places).items() if times > 1)
    )


def _strange(where: str, written: Written, rows: Iterable[Row]) -> list[str]:
    """Rows that say something else than the record at their place, or should not be there."""
    return _list(
        f"{where}: not what the source has",
        (
            row.place
            for row in rows
            if written.source.get(row.place, ("", 0, ""))[:2] != (row.key, row.n)
            or written.source[row.place][2] in REJECTED
        ),
    )


def _fates(written: Written, out: Iterable[Row]) -> list[str]:
    dead = set(written.dead)
    may_die = {
        place for place, (_, _, kind) in written.source.items() if kind in {*REJECTED, PARKED}
    }
    return [
        *_list("dead letters: of good records", dead - may_die),
        *_list("in the table and dead", dead & {row.place for row in written.table}),
        *_list("in the topic and dead", dead & {row.place for row in out}),
    ]


def _order(out: Mapping[int, tuple[Row, ...]]) -> list[str]:
    """Rows of a key that overtook each other, or are in two partitions."""
    found: list[str] = []
    last: dict[str, tuple[int, int]] = {}
    overtaken: list[Place] = []
    for partition, rows in out.items():
        for row in rows:
            before = last.get(row.key)
            if before is not None and before[0] != partition:
                found += [f"topic: key {row.key} is in partitions {before[0]} and {partition}"]
            if before is not None and before[1] >= row.place[1]:
                overtaken.append(row.place)
            last[row.key] = (partition, row.place[1])
    return [*found, *_list("topic: behind a later record of the key", overtaken)]


def _missing(written: Written, out: tuple[Row, ...]) -> list[str]:
    dead = set(written.dead)
    table = {row.place for row in written.table}
    wanted = {place for place, (_, _, kind) in written.source.items() if kind not in REJECTED}
    newest: dict[str, Row] = {}
    for row in written.table:
        if row.key not in newest or newest[row.key].place[1] < row.place[1]:
            newest[row.key] = row
    upsert = {row.key: row for row in written.upsert}
    return [
        *_list("table: missing", wanted - dead - table),
        *_list("topic: missing", wanted - dead - {row.place for row in out}),
        *_list("dead letters: missing", set(written.source) - wanted - dead),
        *_list("topic and table differ", table ^ {row.place for row in out}),
        *_list(
            "upsert table: not the newest",
            (key for key in {*newest, *upsert} if newest.get(key) != upsert.get(key)),
        ),
    ]
