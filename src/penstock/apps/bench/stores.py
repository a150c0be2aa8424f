"""Benchmark of an object store: writes and reads objects, which take most of a diskless topic's
latency.

All objects are below a temporary directory or prefix of the store's URL, which is emptied at the
end.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import click

from penstock.apps.bench.steps import Figures, Step, quantile_hows
from penstock.apps.loads.figures import noise, quantiles_ms
from penstock.apps.process.daemon import run_async
from penstock.base.errors import InvalidError, InvalidSetting, PenstockError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.urls import without_credentials

if TYPE_CHECKING:
    from penstock.objects import ObjectStore


OBJECT_BYTES: Final = {"": 64 << 10, "4mib_": 4 << 20}
OBJECTS_MIN: Final = 3
"""Fewest objects of one run, besides the first one, which opens the connection and is not
counted.
"""
OBJECTS_MAX: Final = 2_000
DELETED_AT_ONCE: Final = 1_000

_now = SYSTEM_CLOCK.monotonic


def own_name(separator: str) -> str:
    """Return a unique name for temporary resources, its parts joined by `separator`."""
    return separator.join(("penstock", "bench", SYSTEM_RANDOMNESS.uuid().hex[:12]))


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Temporary prefix in an object store: `given` is the store's URL, `url` that of the prefix."""

    given: str
    url: str
    options: Mapping[str, str]

    @property
    def remote(self) -> bool:
        """Whether the store is neither a directory nor memory."""
        from penstock.objects import is_local

        return not is_local(self.url)

    def open(self) -> ObjectStore:
        """Open the store at the prefix.

        Raises:
            InvalidError: the URL or an option is invalid.
            StoreRefused: a directory cannot be created or opened.
        """
        from penstock.objects import open_store

        try:
            return open_store(self.url, options=self.options)
        except InvalidSetting as error:
            raise InvalidError(f"--store {self.given}: {error.reason}") from None


@contextmanager
def store_place(url: str, options: Mapping[str, str]) -> Iterator[StorePlace]:
    """Create a temporary prefix in an object store, yield it, and delete its objects at the end.

    Raises:
        InvalidError: the URL or an option is invalid, or the directory does not exist.
        PenstockError: the store rejects an object.
    """
    parts = urlsplit(url)
    directory = Path(unquote(parts.path)) if parts.scheme == "file" else None
    if directory is not None and not directory.is_dir():
        raise InvalidError(f"--store {without_credentials(url)}: the directory does not exist")
    place = StorePlace(url, f"{url.rstrip('/')}/{own_name('-')}", options)
    taken = False
    try:
        run_async(_probe(place))
        taken = True
        yield place
    finally:
        if directory is not None:
            shutil.rmtree(directory / place.url.rpartition("/")[2], ignore_errors=True)
        else:
            _emptied(place, tell=taken)


async def _probe(place: StorePlace) -> None:
    """Write and delete an object, so that a store that rejects writes is found at once."""
    store = place.open()
    try:
        await store.put("probe/first", [b"penstock bench"])
        await store.delete(["probe/first"])
    finally:
        await store.close()


def _emptied(place: StorePlace, *, tell: bool) -> None:
    """Delete all objects below the temporary prefix; print a failure only if the flag is set."""
    try:
        run_async(_empty(place))
    except PenstockError as error:
        if tell:
            shown = without_credentials(place.url)
            text = f"penstock: objects below {shown} could not be deleted; delete them: {error}"
            click.echo(text, err=True)


async def _empty(place: StorePlace) -> None:
    store = place.open()
    try:
        keys = [info.key async for info in store.list("")]
        for start in range(0, len(keys), DELETED_AT_ONCE):
            await store.delete(keys[start : start + DELETED_AT_ONCE])
    finally:
        await store.close()


def store_steps(place: StorePlace, *, where: str) -> list[Step]:
    """Return the steps that write and read objects of 64 KiB and 4 MiB, one after the other.

    `where` names the store in descriptions. Figures of a remote store are named `remote_put_…` and
    `remote_get_…`; plans for stores in directories ignore them.
    """
    return [_store_step(place, infix, size, where) for infix, size in OBJECT_BYTES.items()]


def _store_step(place: StorePlace, infix: str, size_bytes: int, where: str) -> Step:
    label = f"{size_bytes >> 10} KiB" if size_bytes < 1 << 20 else f"{size_bytes >> 20} MiB"
    stem = "remote_" if place.remote else ""
    put, get = [f"{stem}{way}_{infix}".rstrip("_") for way in ("put", "get")]
    what = f"objects of {label}, one after the other, {where}"

    def run(seconds: float) -> Figures:
        puts, gets = run_async(_objects(place, size_bytes, seconds))
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
    """Return the seconds of every put and of every get in one run; delete the objects."""
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
    from penstock.control.drivers.postgres_connections import (
        DATABASE_ERRORS,
        connect,
        database_name,
    )

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
    """Return the step that measures commits of objects to a control plane, one by one.

    `open_plane` opens the control plane; `where` names its database in descriptions.
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
