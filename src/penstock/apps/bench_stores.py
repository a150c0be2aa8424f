"""The parts of a diskless topic's latency: writing an object, reading one, committing one.

Everything that is made lies in a place of its own, which is emptied in the end: a directory or
prefix below the store's URL, and a schema of its own in a PostgreSQL database (the rows of brokers
that use the database are never touched).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import click

from penstock.apps.bench_machine import noise
from penstock.apps.bench_steps import Figures, Step, quantile_hows, quantiles_ms
from penstock.base.errors import InvalidError, InvalidSetting, PenstockError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS

if TYPE_CHECKING:
    from uuid import UUID

    from penstock.control import ObjectLease, SqliteControlPlane
    from penstock.control.postgres import PostgresControlPlane
    from penstock.objects import ObjectStore

    Plane = SqliteControlPlane | PostgresControlPlane

OBJECT_BYTES: Final = {"": 64 << 10, "4mib_": 4 << 20}
OBJECTS_MIN: Final = 3
"""Of one run, beside the first, which opens the connection and does not count."""
OBJECTS_MAX: Final = 2_000
DELETED_AT_ONCE: Final = 1_000
COMMIT_ENTRIES: Final = 16
COMMIT_BATCH: Final = (64 << 10, 64)
LEASED_AT_ONCE: Final = 64
COMMITS_MIN: Final = 5
BROKER_ID: Final = 1

_now = SYSTEM_CLOCK.monotonic


def own_name(separator: str) -> str:
    """A name that nothing else has."""
    return separator.join(("penstock", "bench", SYSTEM_RANDOMNESS.uuid().hex[:12]))


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A place of our own in a store; `given` is the store's URL."""

    given: str
    url: str
    options: Mapping[str, str]

    def open(self) -> ObjectStore:
        """A client of it.

        Raises:
            InvalidError: the URL or an option is not one.
            StoreRefused: a directory cannot be made or opened.
        """
        from penstock.objects import open_store

        try:
            return open_store(self.url, options=self.options)
        except InvalidSetting as error:
            raise InvalidError(f"--store {self.given}: {error.reason}") from None


@contextmanager
def store_place(url: str, options: Mapping[str, str]) -> Iterator[StorePlace]:
    """A new place below a store's URL; it and all in it go with the context.

    Raises:
        InvalidError: the URL or an option is not one, or there is no such directory.
        PenstockError: the store does not take an object.
    """
    parts = urlsplit(url)
    directory = Path(unquote(parts.path)) if parts.scheme == "file" else None
    if directory is not None and not directory.is_dir():
        raise InvalidError(f"--store {url}: there is no such directory")
    place = StorePlace(url, f"{url.rstrip('/')}/{own_name('-')}", options)
    asyncio.run(_probe(place))
    try:
        yield place
    finally:
        if directory is not None:
            shutil.rmtree(directory / place.url.rpartition("/")[2], ignore_errors=True)
        else:
            _emptied(place)


async def _probe(place: StorePlace) -> None:
    """Write an object and delete it, so that a store that refuses does so at once."""
    store = place.open()
    try:
        await store.put("probe/first", [b"penstock bench"])
        await store.delete(["probe/first"])
    finally:
        await store.close()


def _emptied(place: StorePlace) -> None:
    """Delete all objects; what cannot be deleted is told, since the figures are worth as much."""
    try:
        asyncio.run(_empty(place))
    except PenstockError as error:
        click.echo(f"penstock: objects below {place.url} may be left behind: {error}", err=True)


async def _empty(place: StorePlace) -> None:
    store = place.open()
    try:
        keys = [info.key async for info in store.list("")]
        for start in range(0, len(keys), DELETED_AT_ONCE):
            await store.delete(keys[start : start + DELETED_AT_ONCE])
    finally:
        await store.close()


def store_steps(place: StorePlace, *, where: str) -> list[Step]:
    """Writing and reading objects one after the other, 64 KiB and 4 MiB."""
    return [_store_step(place, infix, size, where) for infix, size in OBJECT_BYTES.items()]


def _store_step(place: StorePlace, infix: str, size_bytes: int, where: str) -> Step:
    label = f"{size_bytes >> 10} KiB" if size_bytes < 1 << 20 else f"{size_bytes >> 20} MiB"
    put, get = f"put_{infix}".rstrip("_"), f"get_{infix}".rstrip("_")
    what = f"objects of {label}, one after the other, {where}"

    def run(seconds: float) -> Figures:
        puts, gets = asyncio.run(_objects(place, size_bytes, seconds))
        return quantiles_ms(put, puts) | quantiles_ms(get, gets)

    return Step(
        label=f"objects of {label}",
        share=0.06,
        run=run,
        hows=quantile_hows(put, f"writing {what}")
        | quantile_hows(get, f"reading the whole of {what}"),
    )


async def _objects(
    place: StorePlace, size_bytes: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Seconds of every put and get of one run; the objects are deleted."""
    store, content, stem = place.open(), noise(size_bytes), SYSTEM_RANDOMNESS.uuid().hex
    puts, gets, keys, began = list[float](), list[float](), list[str](), _now()
    try:
        while len(puts) <= OBJECTS_MIN or (_now() - began < seconds and len(puts) < OBJECTS_MAX):
            keys.append(f"objects/{stem}-{len(puts):05}")
            start = _now()
            await store.put(keys[-1], [content])
            written = _now()
            await store.get(keys[-1], 0, size_bytes)
            puts.append(written - start)
            gets.append(_now() - written)
        await store.delete(keys)
    finally:
        await store.close()
    return puts[1:], gets[1:]


@contextmanager
def control_place(url: str) -> Iterator[str]:
    """The URL of a new schema of a PostgreSQL database; it is dropped in the end.

    Raises:
        InvalidError: it is no URL of one.
        ControlUnavailable: the server does not answer, or refuses.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise InvalidError(f"--control {url}: must begin with postgresql://")
    name = own_name("_")
    parts = urlsplit(url)
    kept = [(key, value) for key, value in parse_qsl(parts.query) if key != "search_path"]
    query = urlencode([*kept, ("search_path", name)])
    asyncio.run(_execute(url, f"CREATE SCHEMA {name}"))
    try:
        yield urlunsplit(parts._replace(query=query))
    finally:
        asyncio.run(_execute(url, f"DROP SCHEMA IF EXISTS {name} CASCADE"))


async def _execute(url: str, statement: str) -> None:
    from penstock.control import ControlUnavailable
    from penstock.control.postgres_connections import connect, database_name
    from penstock.control.postgres_failures import DATABASE_ERRORS

    try:
        connection = await connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()
    except (*DATABASE_ERRORS, ValueError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        where = f"--control: {database_name(url)}"
        raise ControlUnavailable(
            f"{where}: {statement.partition(' penstock')[0]}: {reason}"
        ) from error


def commit_step(open_plane: Callable[[], Plane], *, where: str) -> Step:
    """Commits of objects, one after the other. `open_plane` makes a new plane over one database."""

    def run(seconds: float) -> Figures:
        return quantiles_ms("commit", asyncio.run(_commits(open_plane(), seconds)))

    return Step(
        label="commits",
        share=0.05,
        run=run,
        hows=quantile_hows(
            "commit",
            f"diskless commits of an object with {COMMIT_ENTRIES} partitions, one after the"
            f" other, in {where}",
        ),
    )


@asynccontextmanager
async def _started(plane: Plane) -> AsyncIterator[UUID]:
    """A plane with a broker of ours; the broker's incarnation."""
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
            partitions=[[BROKER_ID]] * COMMIT_ENTRIES,
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

    size_bytes, records = COMMIT_BATCH
    now_ms = SYSTEM_CLOCK.now_ms()
    entries = [
        BatchEntry(
            topic_id=topic_id,
            partition=partition,
            byte_offset=partition * size_bytes,
            size_bytes=size_bytes,
            offset_count=records,
            max_timestamp=now_ms,
            append_time=False,
            layout=pack("<ii", size_bytes, records),
        )
        for partition in range(COMMIT_ENTRIES)
    ]
    commit = ObjectCommit(
        object_id=lease.object_id,
        size_bytes=COMMIT_ENTRIES * size_bytes,
        entries=tuple(entries),
        now_ms=now_ms,
    )
    start = _now()
    answer = await plane.commit_object(commit)
    elapsed = _now() - start
    refused = [placed for placed in answer.placed if placed.error is not None]
    if refused:
        raise InvalidError(f"a commit was refused: {refused[0].error}: {refused[0].message}")
    return elapsed
