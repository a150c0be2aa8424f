"""Assembly of a measurement: a temporary directory, a broker, a store, a database, and the steps.

With a temporary broker everything is on this host, and all of it is measured. With a running broker
only what this host can observe is measured; notes list the rest.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.apps.bench.broker import Bed, look_for, own_broker
from penstock.apps.bench.latency import latency_steps
from penstock.apps.bench.log import diskless_step, load_steps, request_step
from penstock.apps.bench.machine import disk_steps, loopback_step
from penstock.apps.bench.steps import Step
from penstock.apps.bench.stores import commit_step, control_place, store_place, store_steps
from penstock.apps.client.session import State
from penstock.apps.process.daemon import deferred
from penstock.apps.process.wiring import DirectoryUnusable
from penstock.base.errors import PenstockError
from penstock.base.settings import INT_MAX, whole_number

if TYPE_CHECKING:
    from penstock.apps.bench.stores import Plane
    from penstock.client import Client

SPACE_BYTES: Final = 2 << 30
"""Free space that a measurement needs: topics of 256 MiB are written to a journal, segments and
objects.
"""
MEBIBYTE: Final = 1 << 20
DELIVERY_TIMEOUT_MS: Final = 15_000
"""Longest wait for a broker that does not answer, before the measurement fails. `-X
delivery.timeout.ms` overrides it.
"""
_CURE: Final = "choose another directory with --data-dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Locations:
    """Locations to measure. An empty `bootstrap` means a temporary broker.

    With a temporary broker, an empty `store` means a temporary directory, and an empty `control` a
    temporary SQLite file. With a running broker, an empty location is not measured.
    """

    data_dir: Path
    bootstrap: str = ""
    store: str = ""
    store_options: Mapping[str, str] = field(default_factory=dict)
    control: str = ""


@dataclass(slots=True)
class Target:
    """Steps of a measurement, with notes for its reader.

    `subject` names the broker in the result's title; `here` is true if the broker is on this host.
    """

    subject: str
    here: bool
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_space(directory: Path, free_bytes: int) -> None:
    """Reject a file system that the measurement could fill.

    Raises:
        DirectoryUnusable: less than `SPACE_BYTES` are free.
    """
    if free_bytes < SPACE_BYTES:
        raise DirectoryUnusable(
            f"data directory {directory}: {free_bytes // MEBIBYTE} MiB are free, but the"
            f" measurement needs {SPACE_BYTES // MEBIBYTE} MiB; {_CURE}"
        )


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Create a temporary directory below an existing one, and remove it at the end.

    Raises:
        DirectoryUnusable: it cannot be created, or has too little free space.
    """
    if not parent.is_dir():
        raise DirectoryUnusable(f"data directory {parent} does not exist; {_CURE}")
    check_space(parent, shutil.disk_usage(parent).free)
    directory = None
    try:
        with deferred():
            directory = _made(parent)
        yield directory
    finally:
        if directory is not None:
            _removed(directory)


def _made(parent: Path) -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent)).absolute()
    except OSError as error:
        text = f"data directory {parent}: {error.strerror}; {_CURE}"
        raise DirectoryUnusable(text) from None


def _removed(directory: Path) -> None:
    with deferred():
        shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        click.echo(f"penstock: {directory} could not be removed completely; delete it", err=True)


@contextmanager
def target(state: State, locations: Locations, directory: Path) -> Iterator[Target]:
    """Yield the steps for a temporary or a running broker; at the end remove what they created.

    Raises:
        PenstockError: a named broker, store or database cannot be used.
    """
    with ExitStack() as stack:
        if locations.bootstrap:
            yield _running(stack, state, locations, directory)
        else:
            yield _own(stack, state, locations, directory)


def _own(stack: ExitStack, state: State, locations: Locations, directory: Path) -> Target:
    objects = directory / "objects"
    objects.mkdir()
    url = locations.store or objects.as_uri()
    where = (
        f"in {locations.store}" if locations.store else "in a directory store on the data directory"
    )
    store = stack.enter_context(store_place(url, locations.store_options))
    settings: dict[str, object] = {
        "log.segment.delete.delay.ms": "0",  # the topics of all runs would not have room
        "diskless.storage.url": f"{store.url}/broker",
        "diskless.storage.options": [f"{key}={value}" for key, value in store.options.items()],
    }
    committing = _commits(stack, locations, directory)
    if locations.control:
        settings["control.url"] = stack.enter_context(control_place(locations.control))
    broker, bootstrap = stack.enter_context(own_broker(directory, settings))
    bed = stack.enter_context(_bed(state, bootstrap, broker.pid))
    found = Target("a temporary broker", here=True)
    found.steps += _limits(stack, directory)
    found.steps += _local_steps(bed)
    found.steps += [*store_steps(store, where=where), committing]
    found.steps.append(diskless_step(bed, where=f"a diskless topic, {where}"))
    if bed.cpu_seconds() is None:
        found.notes.append("not measured: the broker's CPU time (this system has no /proc)")
    return found


def _running(stack: ExitStack, state: State, locations: Locations, directory: Path) -> Target:
    bed = stack.enter_context(_bed(state, locations.bootstrap, None))
    seen = look_for(bed.client)
    bed.pid = seen.pid
    found = Target(f"the broker at {locations.bootstrap}", here=seen.here)
    if seen.pid is None:
        found.notes.append(f"not measured: the broker's CPU time ({seen.why_not})")
    else:
        found.notes.append("the broker's CPU time includes requests of other clients")
    if seen.here:
        found.steps += _limits(stack, directory)
        found.notes.append(f"disk figures describe the disk of {locations.data_dir}")
    else:
        found.notes.append(
            "not measured: loopback, disk and cores (they would describe this host, not the"
            " broker's)"
        )
    found.steps += _local_steps(bed)
    if locations.store:
        store = stack.enter_context(store_place(locations.store, locations.store_options))
        found.steps += store_steps(store, where=f"in {locations.store}")
    else:
        found.notes.append("not measured: the object store (name the broker's store with --store)")
    if locations.control:
        found.steps.append(_commits(stack, locations, directory))
    else:
        found.notes.append("not measured: commits (name the broker's database with --control)")
    refused = _no_diskless(bed)
    if refused:
        found.notes.append(f"not measured: diskless topics ({refused})")
    else:
        found.steps.append(diskless_step(bed, where="a diskless topic of the broker's store"))
        found.notes.append("objects of the deleted topics remain until the broker sweeps them")
    return found


@contextmanager
def _bed(state: State, bootstrap: str, pid: int | None) -> Iterator[Bed]:
    named = replace(state, bootstrap=bootstrap)
    given = state.overrides.get("delivery.timeout.ms", "")
    timeout_ms = whole_number(given, INT_MAX) or DELIVERY_TIMEOUT_MS

    def connect() -> Client:
        return named.client(client_id="penstock-bench", delivery_timeout_ms=timeout_ms)

    with connect() as client:
        bed = Bed(bootstrap, client, connect, pid, timeout_ms)
        try:
            yield bed
        finally:
            bed.delete_topics()


def _local_steps(bed: Bed) -> list[Step]:
    where = "a local topic"
    return [*latency_steps(bed), request_step(bed, where=where), *load_steps(bed, where=where)]


def _limits(stack: ExitStack, directory: Path) -> list[Step]:
    return [stack.enter_context(loopback_step()), *stack.enter_context(disk_steps(directory))]


def _commits(stack: ExitStack, locations: Locations, directory: Path) -> Step:
    if not locations.control:
        path = directory / "commits.sqlite"

        def sqlite() -> Plane:
            from penstock.control import SqliteControlPlane

            return SqliteControlPlane(path)

        return commit_step(sqlite, where="SQLite on the data directory")
    url = stack.enter_context(control_place(locations.control))

    def postgres() -> Plane:
        from penstock.control.postgres import PostgresControlPlane

        return PostgresControlPlane(url)

    return commit_step(postgres, where="PostgreSQL")


def _no_diskless(bed: Bed) -> str:
    """Return the broker's reason for rejecting a diskless topic; empty if it accepts one."""
    try:
        with bed.topic(1, {"diskless.enable": "true"}):
            return ""
    except PenstockError as error:
        return str(error)
