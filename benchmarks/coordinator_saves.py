"""Saves of consumer groups: all of a turn of the loop in one transaction, against one for each.

Groups have ten members, with subscriptions and assignments of 200 bytes. 1, 100 and 1,000 of them
save in the same turn; the next turn's saves begin when all are durable. A save of a rebalance
changes all rows of its group; one of a static member that returns changes two. The reference makes
the same changes of the same rows in the same run, a transaction for each group, all at once:
SQLite's thread commits those that wait together, PostgreSQL has them on as many connections as the
broker opens.

Both databases sync: SQLite its file, PostgreSQL is a server over loopback.

Predictions (2 cores): one group is what a commit costs, 0.4 ms on the file and 1.5 ms on the
server, whoever makes it. In a batch a row costs 6 µs on SQLite (a look-up, an upsert) and 8 µs on
PostgreSQL, and 3 µs in the broker: 100 µs a group of eleven rows. For each its own transaction adds
20 µs of savepoint and future on SQLite, and on PostgreSQL 600 µs of CPU for four round trips.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

from tests.postgres import postgres_server

from benchmarks.harness import Row
from penstock.base.errors import BugError
from penstock.broker.groups.runtime.core import Save, Saved
from penstock.broker.groups.runtime.saving import KeyRows, Outcome, Ownership, Pending, Saver
from penstock.control import ControlPlane, MetadataImage, SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane

KIND = "group"
MEMBERS = 10
ROW_BYTES = 600
"""A member's row with 200 bytes of subscription and of assignment, in base64, and its settings."""
COUNTS = (1, 100, 1_000)
PREDICTIONS = {
    ("SQLite", "rebalance"): {1: 2_000.0, 100: 8_000.0, 1_000: 9_000.0},
    ("SQLite", "member"): {1: 2_300.0, 100: 20_000.0, 1_000: 25_000.0},
    ("PostgreSQL", "rebalance"): {1: 600.0, 100: 6_000.0, 1_000: 7_000.0},
    ("PostgreSQL", "member"): {1: 650.0, 100: 14_000.0, 1_000: 20_000.0},
}

Turn = Callable[[], Awaitable[None]]


class Groups:
    """Groups that save, turn by turn, what was not there before."""

    def __init__(self, plane: ControlPlane, image: MetadataImage, count: int, what: str) -> None:
        self._plane = plane
        self.image = image
        self._saver = Saver(plane, Ownership(1, self))
        self._groups = [KeyRows(f"{what}-{count}-{number}") for number in range(count)]
        self._changed = MEMBERS if what == "rebalance" else 1
        self._turn = 0

    async def refresh(self) -> None:
        """The image stays."""

    def _saves(self) -> Iterator[tuple[KeyRows, Save]]:
        self._turn += 1
        for known in self._groups:
            rows = {"": f"{self._turn:0{ROW_BYTES // 4}}".encode()}
            for number in range(MEMBERS):
                turn = self._turn if number < self._changed else 0
                rows[f"consumer-{number}-{UUID(int=number)}"] = f"{turn:0{ROW_BYTES}}".encode()
            yield known, Save(key=known.key, rows=rows)

    async def together(self) -> None:
        """As the runtime does it."""

        def report(outcome: Outcome) -> None:
            if not isinstance(outcome, Saved):
                raise BugError(f"a save ended as {outcome}")

        for known, save in self._saves():
            self._saver.put(Pending(KIND, known, save, report))
        await self._saver.finish()

    async def each(self) -> None:
        """A transaction for each group."""

        async def one(known: KeyRows, save: Save) -> None:
            change = known.change(KIND, save)
            saved = await self._plane.save_records([change], cluster_epoch=self.image.cluster_epoch)
            if saved.refused:
                raise BugError(f"a save was refused: {saved.refused}")
            known.stored(save, saved.version)

        await asyncio.gather(*(one(known, save) for known, save in self._saves()))


async def _rate(turn: Turn, count: int, seconds: float) -> float:
    """Saves of a second."""
    turns, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        await turn()
        turns += 1
    return turns * count / elapsed


async def _compare(plane: ControlPlane, name: str, *, rounds: int, seconds: float) -> list[Row]:
    await plane.start()
    await plane.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=UUID(int=1))
    image = await plane.image()
    rows = []
    for what, text in (("rebalance", "rebalances"), ("member", "one of ten members changes")):
        for count in COUNTS:
            groups = Groups(plane, image, count, what)
            figures: dict[str, list[float]] = {"together": [], "each": []}
            await groups.together()
            for _ in range(rounds):
                figures["together"].append(await _rate(groups.together, count, seconds))
                figures["each"].append(await _rate(groups.each, count, seconds))
            rows.append(
                Row(
                    name=f"{name}, {count:,} groups, {text}",
                    value=statistics.median(figures["together"]),
                    unit="saves/s",
                    prediction=PREDICTIONS[name, what][count],
                    reference=statistics.median(figures["each"]),
                    reference_name="a transaction for each",
                )
            )
    await plane.close()
    return rows


@contextmanager
def _planes() -> Iterator[list[tuple[str, ControlPlane]]]:
    with (
        tempfile.TemporaryDirectory(prefix="coordinator-saves-") as directory,
        postgres_server(durable=True) as server,
        server.database() as database,
    ):
        yield [
            ("SQLite", SqliteControlPlane(Path(directory) / "metadata.sqlite")),
            ("PostgreSQL", PostgresControlPlane(server.url(database))),
        ]


def measure(quick: bool) -> list[Row]:
    """Saves of a second by both databases; see the module's text."""
    compare = partial(_compare, rounds=3 if quick else 5, seconds=0.3 if quick else 1.5)
    rows: list[Row] = []
    with _planes() as planes:
        for name, plane in planes:
            rows += asyncio.run(compare(plane, name))
    return rows
