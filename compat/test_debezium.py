"""Changes of PostgreSQL have Debezium's envelopes, field by field, from a second slot.

Both connectors read the same database into the same broker. Rows of a snapshot are paired by key,
changes by their order in the topic. `FIELDS` and `VALUES` list all differences with their
reasons; each has a check of both values, and must occur.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.connect.postgresql.bed import (
    LOGICAL,
    Database,
    Event,
    connector_file,
    database,
    events,
    run_once,
)
from tests.postgres import postgres_server

from compat.conftest import missing
from compat.debezium.changes import NAMES, TABLES, Changes
from compat.debezium.columns import COLUMNS, EXTENSIONS, NUMERICS, TYPES, statements
from compat.debezium.worker import WAIT_SECONDS, Debezium
from compat.parts import PartMissing
from penstock.testing import Broker

SEED: Final = 38
SAMPLE, WHOLE = 500, 15_000
MODES: Final = ("precise", "string", "double")
MISSING: Final = object()
MAX, DATE_MAX = 2**63 - 1, 2**31 - 1
UNAVAILABLE: Final = "__debezium_unavailable_value"


class Pair(NamedTuple):
    """The same field of both envelopes; `MISSING` where there is none."""

    ours: Any
    theirs: Any
    event: Event
    other: Event

    @property
    def read(self) -> bool:
        return bool(self.event.value["op"] == "r")


class Difference(NamedTuple):
    """Difference that is accepted if its check is true."""

    reason: str
    check: Callable[[Pair], bool]


def _counts(pair: Pair) -> bool:
    return isinstance(pair.ours, int) and isinstance(pair.theirs, int)


def _sequence(pair: Pair) -> bool:
    (before, lsn), (other, other_lsn) = json.loads(pair.ours), json.loads(pair.theirs)
    return pair.read or (lsn == other_lsn and int(other or 0) <= int(before or 0) <= int(lsn))


def _negative_scale(pair: Pair) -> bool:
    if "." in pair.theirs:
        return Decimal(pair.ours) == Decimal(pair.theirs)
    ours, theirs = (
        int.from_bytes(base64.b64decode(v), signed=True) for v in (pair.ours, pair.theirs)
    )
    return theirs == ours * 10**2048


def _unsent(pair: Pair, name: str) -> bool:
    own, foreign = pair.event.value["after"][name], pair.other.value["after"][name]
    return (own, foreign) == (None, UNAVAILABLE)


def _same_float(pair: Pair) -> bool:
    return struct.pack(">f", pair.ours) == struct.pack(">f", pair.theirs)


def _no_key(pair: Pair) -> bool:
    deleted = pair.event.value["op"] == "d" and pair.event.value["source"]["table"] == "indexed"
    return bool(deleted) and (pair.ours, pair.theirs) == (None, 0)


_SNAPSHOT: Final = Difference("the snapshots were taken at different times", lambda pair: pair.read)
_CLOCK: Final = Difference("time of the connector's clock", _counts)
FIELDS: Final = {
    "source.version": Difference(
        "version of the connector", lambda pair: pair.theirs.endswith("Final")
    ),
    "source.name": Difference(
        "name of the connector", lambda pair: pair.theirs == f"dbz_{pair.ours}"
    ),
    "source.snapshot": Difference(
        "Debezium marks the first and last rows; here a killed snapshot continues, so the last row"
        " is not known",
        lambda pair: pair.ours == "true" and pair.theirs.split("_")[0] in ("first", "last"),
    ),
    "source.sequence": Difference(
        "transactions of heartbeats count, and those before a restart", _sequence
    ),
    **dict.fromkeys(
        ("source.ts_ms", "source.ts_us", "source.ts_ns", "source.txId", "source.lsn"), _SNAPSHOT
    ),
    **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), _CLOCK),
    "unchanged": Difference(
        "names of columns that were not sent; Debezium writes a marker as their value",
        lambda pair: pair.ours is None or all(map(partial(_unsent, pair), pair.ours)),
    ),
}  # fmt: skip
"""Differences by path."""

_LEFT_OUT: Final = Difference(
    "Debezium leaves the column out; here it has PostgreSQL's text",
    lambda pair: pair.theirs is MISSING and pair.ours is not MISSING,
)
_FAR: Final = Difference(
    "Debezium's number overflows; here it is the largest number",
    lambda pair: pair.ours == MAX and pair.theirs < 0,
)
_NESTED: Final = Difference(
    "Debezium cannot read nested arrays; here all elements are in one list",
    lambda pair: all(item is None or item.startswith("[Ljava") for item in pair.theirs),
)
_SCALE: Final = Difference("Debezium reads a negative scale as 2048 more", _negative_scale)
_NO_ARRAY: Final = Difference(
    "Debezium has no such arrays, and writes null",
    lambda pair: pair.theirs is None and isinstance(pair.ours, list),
)
_NAN: Final = Difference(
    "Debezium writes NAN as text; here it is PostgreSQL's NaN",
    lambda pair: (pair.ours, pair.theirs) == ("NaN", "NAN"),
)
_DEFAULT: Final = Difference(
    "Kafka Connect's converter writes the column's default value for null",
    lambda pair: pair.ours is None and pair.theirs in ("x", True),
)
VALUES: Final = {
    "id": Difference(
        "a delete by a replica identity without the primary key; Debezium makes the key 0", _no_key
    ),
    **dict.fromkeys(
        ("mr", "a_iv", "tq", "bx", "ln", "ls", "pa", "po", "ci", "lsn", "rc", "jp", "xid", "xid8"),
        _LEFT_OUT,
    ),
    **dict.fromkeys(("ts", "ts6"), _FAR),
    **dict.fromkeys(("a_i4", "a_tx"), _NESTED),
    **dict.fromkeys(("n_5_m3", "n_2_m1"), _SCALE),
    **dict.fromkeys(("a_md", "a_b1"), _NO_ARRAY),
    **dict.fromkeys(("n_any", "n_12_2"), _NAN),
    "gen": Difference(
        "pgoutput does not send generated columns; Debezium has them in snapshots alone",
        lambda pair: pair.ours is MISSING and pair.read,
    ),
    "a_tt": Difference(
        "Debezium cuts fractions of seconds in arrays",
        lambda pair: [item.partition(".")[0] + "Z" for item in pair.ours] == pair.theirs,
    ),
    "nm": Difference(
        "Debezium writes null for names of the stream",
        lambda pair: pair.theirs is None and not pair.read,
    ),
    "f4": Difference("Java's shortest text of a float is longer", _same_float),
    "dt": Difference(
        "Debezium's days of infinity, and in snapshots of years before Christ, are wrong",
        lambda pair: pair.ours in (DATE_MAX, ~DATE_MAX) or (pair.read and pair.ours < -719_162),
    ),
}  # fmt: skip
"""Differences by column."""


# Comparison


def differences(ours: Sequence[Event], theirs: Sequence[Event], seen: set[str]) -> Iterator[str]:
    """Yield the differences that are not accepted; add the names of those that are to `seen`."""
    own, foreign = _ordered(ours), _ordered(theirs)
    if len(own) != len(foreign):
        yield f"{len(own)} records, Debezium has {len(foreign)}"
    for event, other in zip(own, foreign, strict=False):
        unknown = (event.key, other.key) == ({"id": None}, {"id": 0})
        if _in_order(event.key) != _in_order(other.key) and not unknown:
            yield f"key: {event.key} instead of {other.key}"
        headers = [found for found in other.headers if ".context." not in found["key"]]
        if event.headers != headers:
            yield f"headers of {event.key}: {event.headers} instead of {headers}"
        for path, value, expected in _fields(event.value, other.value):
            if repr(value) == repr(expected):
                continue
            column = path.rpartition(".")[2]
            listed = FIELDS.get(path) or VALUES.get(column) or _DEFAULT
            if listed.check(Pair(value, expected, event, other)):
                seen.add(path if path in FIELDS else column)
            elif expected != UNAVAILABLE or column not in (event.value.get("unchanged") or ()):
                op = event.value and event.value["op"]
                yield f"{event.key} {op} {path}: {value!r} instead of {expected!r}"


def _in_order(key: Any) -> Any:
    return list(key.items()) if isinstance(key, dict) else key


def _ordered(found: Sequence[Event]) -> list[Event]:
    """Return the rows of the snapshot by key, then the changes.

    Debezium's tombstones of tables without a key are left out.
    """
    found = [event for event in found if (event.key, event.value) != (None, None)]
    read = [event for event in found if event.value and event.value["op"] == "r"]
    return [*sorted(read, key=lambda event: str(event.key)), *found[len(read) :]]


def _fields(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields of both envelopes with their paths: those of rows and of `source`."""
    if path.count(".") == 2 or not (isinstance(ours, dict) and isinstance(theirs, dict)):
        yield path[1:], ours, theirs
        return
    for name in dict.fromkeys([*ours, *theirs]):
        yield from _fields(ours.get(name, MISSING), theirs.get(name, MISSING), f"{path}.{name}")


# Both connectors over one database


class Bed:
    """Database, broker, and both connectors in each mode of decimals."""

    def __init__(
        self, sql: Database, broker: Broker, directory: Path, modes: Sequence[str]
    ) -> None:
        self.sql = sql
        self.bootstrap = broker.bootstrap
        self._files = {
            mode: connector_file(directory, sql.url, name=mode, more=f'decimals = "{mode}"\n',
                                 tables="public.*" if mode == "precise" else "public.n*")
            for mode in modes
        }  # fmt: skip
        self.run()
        self.debezium = Debezium(self.bootstrap, sql.url, {
            f"dbz_{mode}": {
                "publication.name": f"penstock_{mode}",
                "decimal.handling.mode": mode,
                "table.include.list": "public.*" if mode == "precise" else "public.n.*",
            } for mode in modes
        }, directory)  # fmt: skip

    def run(self) -> None:
        for file in self._files.values():
            run_once(file, self.bootstrap)

    def finish(self) -> None:
        """Run until both connectors have written the last row of table `n_end`."""
        self.sql("INSERT INTO n_end VALUES (1)")
        self.run()
        deadline = time.monotonic() + WAIT_SECONDS
        for mode in self._files:
            while not self.events(f"dbz_{mode}", "n_end"):
                self.debezium.check()
                assert time.monotonic() < deadline, self.debezium.log()
                time.sleep(0.1)

    def events(self, name: str, table: str) -> list[Event]:
        from penstock.client import Client

        topic = f"{name}.public.{table}"
        with Client(self.bootstrap) as client:
            if topic not in {found.name for found in client.list_topics()}:
                return []
        return events(self.bootstrap, topic)


@pytest.fixture(scope="module", name="bed_of")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Bed]]:
    with ExitStack() as stack:

        def bed(before: Sequence[str], modes: Sequence[str]) -> Bed:
            server = stack.enter_context(postgres_server(settings=LOGICAL))
            broker = stack.enter_context(Broker(process=True))
            name = stack.enter_context(server.database())
            sql = stack.enter_context(database(server.url(name)))
            for statement in (*before, "CREATE TABLE n_end (id int PRIMARY KEY)"):
                sql(statement)
            try:
                made = Bed(sql, broker, tmp_path_factory.mktemp("bed"), modes)
            except PartMissing as error:
                missing(error)
            stack.enter_context(made.debezium)
            made.debezium.wait_until_streaming(sql)
            return made

        yield bed


TYPED: Final = {"everything": COLUMNS, "n_numbers": NUMERICS}


@pytest.fixture(scope="module", name="values")
def bed_with_values(bed_of: Callable[..., Bed]) -> Bed:
    """Rows of all types that were read, inserted, updated and deleted; and generated changes."""
    before = [f"CREATE EXTENSION {name}" for name in EXTENSIONS] + [*TYPES, *TABLES]
    for table, columns in TYPED.items():
        before += statements(table, columns)
    bed = bed_of(before, MODES)
    for table, columns in TYPED.items():
        names = ", ".join(columns)
        bed.sql(f"INSERT INTO {table} (id, {names}) SELECT id + 1000, {names} FROM {table}")
        bed.sql(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        bed.sql(f"UPDATE {table} SET mark = 1 WHERE id < 1000")
        bed.sql(f"DELETE FROM {table} WHERE id < 1000")
    Changes(SEED).transactions(bed.sql, SAMPLE)
    bed.finish()
    return bed


def compared(bed: Bed, mode: str, tables: Sequence[str]) -> set[str]:
    """Check that the records of tables are equal; return the names of the listed differences."""
    seen: set[str] = set()
    for table in tables:
        ours, theirs = bed.events(mode, table), bed.events(f"dbz_{mode}", table)
        assert theirs, table
        found = [f"{table}: {text}" for text in differences(ours, theirs, seen)]
        assert not found[:20]
    return seen


def test_values_of_every_type_equal(values: Bed) -> None:
    seen = compared(values, "precise", list(TYPED))
    for mode in ("string", "double"):
        seen |= compared(values, mode, ["n_numbers"])
    assert seen >= {*FIELDS, *VALUES} - {"unchanged", "id"}


def test_generated_changes_equal(values: Bed) -> None:
    assert compared(values, "precise", NAMES) >= {"unchanged", "id"}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_generated_changes_equal(bed_of: Callable[..., Bed]) -> None:
    bed = bed_of(TABLES, ["precise"])
    Changes(SEED + 1).transactions(bed.sql, WHOLE)
    bed.finish()
    compared(bed, "precise", NAMES)
    assert sum(len(bed.events("precise", table)) for table in NAMES) >= 10_000
