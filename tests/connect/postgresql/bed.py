"""Database, broker and runs of a connector between them, and the comparison of log and table."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import psycopg2

from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.status import StatusFile

LOGICAL = ("wal_level=logical", "max_replication_slots=50", "max_wal_senders=50")
"""Settings of a server with logical replication."""
END_SECONDS = 60.0
_STEPS = (
    "penstock/client.TransactionalProducer.begin",
    "penstock/client.TransactionalProducer.write_arrow",
    "penstock/client.TransactionalProducer.commit",
    "penstock/connect/postgresql/source.PostgresSource.committed",
    "penstock/connect/postgresql/source.PostgresSource._start",
    "penstock/connect/postgresql/source.PostgresSource._batch",
    "penstock/connect/postgresql/snapshot.SnapshotReader._copy",
    "penstock/connect/postgresql/slot.create_slot",
    "penstock/connect/postgresql/slot.publish",
)
STEPS = tuple(f"{at} {name.rpartition('.')[2]}" for name in _STEPS for at in ("before", "after"))
"""Names of the steps of a run."""

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.connect.postgresql.bed",
        "penstock.connect.postgresql.source",
        "penstock.client.columns",
        "penstock.client.writer",
        "penstock.records.columnar.decode",
        "penstock.records.columnar.encode",
    ]
)


class Database:
    """Database of a test, with one connection that commits each statement."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg2.connect(url)
        self._connection.autocommit = True

    def __call__(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def close(self) -> None:
        self._connection.close()


@contextmanager
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    try:
        yield opened
    finally:
        opened.close()


def connector_file(
    directory: Path, url: str, *, name: str = "shop", more: str = "", tables: str = "public.*"
) -> Path:
    """Write a connector's file; `more` are lines of `[source]` and further tables."""
    file = directory / f"{name}.toml"
    file.write_text(
        f'name = "{name}"\n[source]\nconnector = "postgresql"\nurl = "{url}"\n'
        f'tables = ["{tables}"]\ntopic = "{name}.{{schema}}.{{table}}"\n{more}'
    )
    return file


def run_once(file: Path, bootstrap: str, *, once: bool = True) -> running.Run:
    """Run a connector in this process until it has caught up; return the run."""
    spec = load(file, bootstrap=bootstrap)
    with Client(bootstrap) as client:
        run = running.Run(
            spec=spec, client=client, stop=running.Stop(), once=once,
            status=StatusFile(spec.name, spec.direction, spec.state),
        )  # fmt: skip
        running.run(run)
    return run


# Events in the log


class Event(NamedTuple):
    """Record of the log with its decoded key and value."""

    partition: int
    offset: int
    key: Any
    value: Any
    headers: Any


def events(bootstrap: str, topic: str) -> list[Event]:
    """Return the committed records of a topic by partition and offset."""
    with Client(bootstrap) as client:
        rows = client.read_arrow(topic, isolation="read_committed").to_pylist()
    return [
        Event(
            row["partition"], row["offset"], _json(row["key"]), _json(row["value"]), row["headers"]
        )
        for row in rows
    ]


def _json(text: bytes | None) -> Any:
    return None if text is None else json.loads(text)


def replayed(found: Sequence[Event], key: str = "id") -> dict[Any, Any]:
    """Return the rows by key after all events: the table that the log describes."""
    rows: dict[Any, Any] = {}
    for event in found:
        if event.value is None:
            continue
        if event.value["op"] == "t":
            rows.clear()
        elif event.value["op"] == "d":
            del rows[event.key[key]]
        else:
            rows[event.key[key]] = event.value["after"]
    return rows


# Runs in processes that die


def _killed_child(file: Path, bootstrap: str, step: int, ends: Connection) -> None:
    """Run a connector; at a step, report it and wait until the parent answers."""
    os.environ.pop("PENSTOCK_BOOTSTRAP", None)
    _Steps(step, ends).install()
    try:
        run_once(file, bootstrap)
    except Exception as error:
        ends.send(("failed", f"{type(error).__name__}: {error}"))
    else:
        ends.send(("ended", ""))


class _Steps:
    """Counter of the steps of a run: the calls that change the log, the slot or the database."""

    def __init__(self, step: int, ends: Connection) -> None:
        self._left = step
        self._ends = ends

    def install(self) -> None:
        for name in _STEPS:
            module, *holders, function = name.split(".")
            holder: Any = import_module(module.replace("/", "."))
            for part in holders:
                holder = getattr(holder, part)
            setattr(holder, function, self._counted(getattr(holder, function), function))

    def _counted(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._at(f"before {name}")
            result = function(*arguments, **named)
            self._at(f"after {name}")
            return result

        return call

    def _at(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._ends.send(("step", name))
            self._ends.recv()


class Child:
    """Process that runs a connector and stops at a step."""

    def __init__(self, file: Path, bootstrap: str, step: int) -> None:
        self._ends, theirs = _CONTEXT.Pipe()
        self._process: BaseProcess = _CONTEXT.Process(
            target=_killed_child, args=(file, bootstrap, step, theirs)
        )
        self._process.start()
        theirs.close()

    def wait(self) -> tuple[str, str]:
        """Return `step` with the name of the step, or `ended`, or `failed` with the error."""
        if not self._ends.poll(END_SECONDS):
            self.kill()
            raise AssertionError(f"the run neither ended nor reached its step in {END_SECONDS} s")
        try:
            kind, text = self._ends.recv()
        except EOFError:
            return "failed", f"the process ended with status {self._process.exitcode}"
        return str(kind), str(text)

    def peak_bytes(self) -> int:
        """Return the largest resident memory of the process so far, in bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) << 10

    def go_on(self) -> None:
        self._ends.send(None)

    def kill(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL
        self._ends.close()

    def join(self) -> None:
        self._process.join()
        self._ends.close()


__all__ = [
    "LOGICAL",
    "Child",
    "Database",
    "Event",
    "connector_file",
    "database",
    "events",
    "replayed",
    "run_once",
]
