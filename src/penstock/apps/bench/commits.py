"""Benchmark of commits of diskless objects, in a temporary SQLite file or PostgreSQL schema."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from struct import pack
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from penstock.apps.bench.steps import Figures, Step, quantile_hows
from penstock.apps.bench.stores import own_name
from penstock.apps.daemon import run_async
from penstock.apps.loads.figures import quantiles_ms
from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.urls import without_credentials

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.control import ObjectLease, SqliteControlPlane
    from penstock.control.postgres import PostgresControlPlane

    Plane = SqliteControlPlane | PostgresControlPlane

ENTRIES: Final = 16
BATCH_BYTES: Final = 64 << 10
BATCH_RECORDS: Final = 64
LEASED_AT_ONCE: Final = 64
COMMITS_MIN: Final = 5
BROKER_ID: Final = 1

_now = SYSTEM_CLOCK.monotonic


@contextmanager
def control_place(url: str) -> Iterator[str]:
    """Create a temporary schema in a PostgreSQL database, yield its URL, and drop it at the end.

    Raises:
        InvalidError: the URL is invalid.
        ControlUnavailable: the server does not answer, or rejects a statement.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        place = without_credentials(url)
        raise InvalidError(f"--control {place}: must begin with postgresql://")
    name = own_name("_")
    parts = urlsplit(url)
    kept = [(key, value) for key, value in parse_qsl(parts.query) if key != "search_path"]
    made = False
    query = urlencode([*kept, ("search_path", name)])
    try:
        run_async(_execute(url, f"CREATE SCHEMA {name}"))
        made = True
        yield urlunsplit(parts._replace(query=query))
    except KeyboardInterrupt:
        made = True  # the server may have created it
        raise
    finally:
        if made:
            run_async(_execute(url, f"DROP SCHEMA IF EXISTS {name} CASCADE"))


async def _execute(url: str, statement: str) -> None:
    from penstock.control import ControlUnavailable
    from penstock.control.drivers.postgres_connections import connect, database_name
    from penstock.control.drivers.postgres_failures import DATABASE_ERRORS

    try:
        connection = await connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
    except (*DATABASE_ERRORS, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        text = f"--control: {database_name(url)}: {statement}: {reason}"
        raise ControlUnavailable(text) from error


def commit_step(open_plane: Callable[[], Plane], *, where: str) -> Step:
    """Return the step that commits objects one after the other.

    `open_plane` opens a control plane; `where` names its database in descriptions.
    """

    def run(seconds: float) -> Figures:
        return quantiles_ms("commit", run_async(_commits(open_plane(), seconds)))

    return Step(
        label="commits",
        share=0.05,
        run=run,
        hows=quantile_hows(
            "commit",
            f"commits of diskless objects with batches of {ENTRIES} partitions, one after the"
            f" other, in {where}",
        ),
    )


@asynccontextmanager
async def _started(plane: Plane) -> AsyncIterator[UUID]:
    """Start a control plane, register a broker in it, and yield the broker's incarnation."""
    incarnation = SYSTEM_RANDOMNESS.uuid()
    try:
        await plane.start()
        await plane.register_broker(
            broker_id=BROKER_ID, host="127.0.0.1", port=9, rack=None, incarnation=incarnation
        )
        yield incarnation
    finally:
        await plane.close()


async def _commits(plane: Plane, seconds: float) -> list[float]:
    took, leases = list[float](), list["ObjectLease"]()
    async with _started(plane) as incarnation:
        topic_id = SYSTEM_RANDOMNESS.uuid()
        await plane.create_topic(
            name=topic_id.hex,
            topic_id=topic_id,
            partitions=[[BROKER_ID]] * ENTRIES,
            configs={"diskless.enable": "true"},
        )
        began = _now()
        while len(took) <= COMMITS_MIN or _now() - began < seconds:
            if not leases:
                leases = await plane.lease_objects(
                    broker_id=BROKER_ID, incarnation=incarnation, count=LEASED_AT_ONCE
                )
            took.append(await _commit(plane, leases.pop(0), topic_id))
    return took[1:]


async def _commit(plane: Plane, lease: ObjectLease, topic_id: UUID) -> float:
    from penstock.control import BatchEntry, ObjectCommit

    now_ms = SYSTEM_CLOCK.now_ms()
    entries = [
        BatchEntry(
            topic_id=topic_id,
            partition=partition,
            byte_offset=partition * BATCH_BYTES,
            size_bytes=BATCH_BYTES,
            offset_count=BATCH_RECORDS,
            max_timestamp=now_ms,
            append_time=False,
            layout=pack("<ii", BATCH_BYTES, BATCH_RECORDS),
        )
        for partition in range(ENTRIES)
    ]
    commit = ObjectCommit(
        object_id=lease.object_id,
        size_bytes=ENTRIES * BATCH_BYTES,
        entries=tuple(entries),
        now_ms=now_ms,
    )
    start = _now()
    answer = await plane.commit_object(commit)
    elapsed = _now() - start
    refused = [placed for placed in answer.placed if placed.error is not None]
    if refused:
        raise InvalidError(
            f"the commit of a diskless object was rejected: {refused[0].error}:"
            f" {refused[0].message}"
        )
    return elapsed
