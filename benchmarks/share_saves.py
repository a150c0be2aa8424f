"""Share partitions: what is decided and stored for records that are acquired and accepted.

1, 100 and 1,000 share partitions each acquire 500 records in one turn of the loop, and accept them
in the next: two saves for 500 records. What one turn decides is one transaction of the control
plane. The reference decides the same with an entry for each record, and stores nothing.

Predictions (2 cores): one partition is what a commit costs, 0.4 ms on the file and 1 ms on the
server. In a batch a save is 50 µs on SQLite and PostgreSQL: a look-up, an upsert of one row of some
50 bytes, and 15 µs in the broker.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.broker.share.per_record import PerRecord
from tests.postgres import postgres_server

from benchmarks.harness import Row
from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.share.partition import SharePartition
from penstock.broker.share.shares import Shares
from penstock.broker.share.stored import StoredShare, encode_state
from penstock.broker.share.values import (
    Acknowledge,
    Acknowledged,
    Batch,
    ShareLimits,
    ShareSettings,
)
from penstock.control import ControlPlane, SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.records.extents import EARLIEST

RECORDS = 500
MEMBER = "qgBlPXq7TZKJ3mJ0vQ8b3A"
COUNTS = (1, 100, 1_000)
PREDICTIONS = {
    "SQLite": {1: 2_000.0, 100: 15_000.0, 1_000: 15_000.0},
    "PostgreSQL": {1: 900.0, 100: 13_000.0, 1_000: 13_000.0},
}


class Log:
    """A partition as share partitions look at it."""

    look_up = None
    leader_epoch = log_start_offset = high_watermark = 0
    log_end_offset = 1 << 60

    def __init__(self, number: int) -> None:
        self.topic_id = UUID(int=number)
        self.topic_partition = TopicPartition("t", 0)


async def _turn(shares: Shares, held: list[StoredShare]) -> None:
    """Acquire, and accept, what all partitions have next."""
    for accepts in (False, True):
        for stored in held:
            share, now_ms = stored.share, shares.now_ms()
            first, last = share.start, share.start + RECORDS - 1
            if accepts:
                said = [Acknowledged(first, last, Acknowledge.ACCEPT)]
                share.acknowledge(MEMBER, said, now_ms=now_ms)
            else:
                share.acquire(
                    MEMBER, [Batch(first, last)], begin=first, records_max=RECORDS, exact=False,
                    now_ms=now_ms,
                )  # fmt: skip
        await asyncio.gather(*(stored.store() for stored in held))


def _each_record(rounds: int) -> float:
    """Records a second of which an entry is kept for each."""
    share = PerRecord(limit=5, lock_ms=30_000)
    start = time.perf_counter()
    for _ in range(rounds):
        first = share.start
        for offset in range(first, first + RECORDS):
            share.acquired(MEMBER, offset, 0)
        share.acknowledge(Acknowledged(first, first + RECORDS - 1, Acknowledge.ACCEPT), 1)
    return rounds * RECORDS / (time.perf_counter() - start)


async def _measure(plane: ControlPlane, name: str, seconds: float, rounds: int) -> list[Row]:
    await plane.start()
    settings = ShareSettings(begins_at=EARLIEST)
    rows = []
    for count in COUNTS:
        shares = Shares(
            control=plane,
            clock=SYSTEM_CLOCK,
            settings_of=lambda _: settings,
            changed=lambda _: None,
            archiving=lambda _: None,
        )
        logs: list[Any] = [Log(number + (count << 32)) for number in range(count)]
        held = list(await asyncio.gather(*(shares.open("group", log) for log in logs)))
        rates = []
        for _ in range(rounds):
            turns, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < seconds:
                await _turn(shares, held)
                turns += 1
            rates.append(turns * 2 * count / elapsed)
        await shares.stop()
        rate = statistics.median(rates)
        rows += [
            Row(
                name=f"{name}, {count:,} share partitions",
                value=rate,
                unit="saves/s",
                prediction=PREDICTIONS[name][count],
            ),
            Row(
                name=f"{name}, {count:,} share partitions, of {RECORDS} records each",
                value=rate * RECORDS / 2,
                unit="records/s",
                reference=_each_record(50),
                reference_name="an entry for each record, not stored",
            ),
        ]
    await plane.close()
    return rows


@contextmanager
def _planes() -> Iterator[list[tuple[str, ControlPlane]]]:
    with (
        tempfile.TemporaryDirectory(prefix="share-saves-") as directory,
        postgres_server(durable=True) as server,
        server.database() as database,
    ):
        yield [
            ("SQLite", SqliteControlPlane(Path(directory) / "metadata.sqlite")),
            ("PostgreSQL", PostgresControlPlane(server.url(database))),
        ]


def _row_bytes() -> int:
    """What one save writes while a member has all that was acquired."""
    share = SharePartition(limits=ShareLimits(), start=10**6)
    batches = [Batch(10**6, 10**6 + RECORDS - 1)]
    share.acquire(MEMBER, batches, begin=10**6, records_max=1, exact=False, now_ms=10**12)
    return len(encode_state(0, 0, share.start, share.runs))


def measure(quick: bool) -> list[Row]:
    """Saves and records of a second by both databases; see the module's text."""
    rows = [Row(name="Stored in a save", value=_row_bytes(), unit="bytes", prediction=50.0)]
    seconds, rounds = (0.3, 3) if quick else (1.5, 5)
    with _planes() as planes:
        for name, plane in planes:
            rows += asyncio.run(_measure(plane, name, seconds, rounds))
    return rows
