"""Parts of the tests of SQL connectors: SQLite, sources and sinks without a broker, and kills."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.connect.plugins import Records, SinkBatch, SourceBatch, SourceContext
from penstock.connect.sql.sink import SqlSink, SqlSinkSettings
from penstock.connect.sql.source import SqlSource, SqlSourceSettings
from tests.connect.postgresql.bed import run_once

END_SECONDS = 60.0
_CONTEXT = get_context("forkserver")


class Sqlite:
    """Database of SQLite, with one connection that commits each statement."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self._connection = sqlite3.connect(file, isolation_level=None)

    def __call__(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(statement.replace("%s", "?"), values))

    def close(self) -> None:
        self._connection.close()


def source(url: str, **settings: Any) -> SqlSource:
    """Return a source of the topic `shop.{table}`, which reads without pauses."""
    given = {"topic": "shop.{table}", "poll_interval_seconds": 0.01, **settings}
    return SqlSource(SqlSourceSettings(url=url, **given), SourceContext(connector="shop"))


def read_once(
    reader: SqlSource, positions: dict[str, Any] | None = None
) -> tuple[list[Records], dict[str, Any]]:
    """Return the rows up to the end of a reading, and the positions after it."""
    found: list[Records] = []
    stored = dict(positions or {})
    for batch in reader.read(stored):
        found += batch.records
        stored |= batch.positions
        if batch.caught_up:
            break
    reader.close()
    return found, stored


def values(records: list[Records]) -> list[dict[str, Any]]:
    """Return the values of all rows."""
    return [value for item in records for value in item.rows.column("value").to_pylist()]


def next_rows(batches: Any) -> SourceBatch:
    """Return the next batch that has rows."""
    found: SourceBatch = next(batch for batch in batches if batch.records)
    return found


def sink(url: str, **settings: Any) -> SqlSink:
    return SqlSink(SqlSinkSettings(url=url, **settings), "shop")


def batch(
    values: list[Any], keys: list[Any] | None = None, *, first: int = 0, kind: Any = None
) -> SinkBatch:
    """Return a batch of topic `shop.orders`, with offsets from `first` in partition 0."""
    count = len(values)
    columns: dict[str, Any] = {
        "value": pa.array(values, kind),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(first, first + count), pa.int64()),
    }
    if keys is not None:
        columns["key"] = pa.array(keys)
    return SinkBatch(
        topic="shop.orders",
        parts=[Records("shop.orders", pa.table(columns))],
        next_offsets={0: first + count},
    )


def of_records(records: list[Records]) -> SinkBatch:
    """Return the rows of a source as a batch of a sink."""
    rows = pa.concat_tables([item.rows for item in records])
    rows = rows.append_column("partition", pa.array([0] * len(rows), pa.int32()))
    rows = rows.append_column("offset", pa.array(range(len(rows)), pa.int64()))
    return SinkBatch(
        topic=records[0].topic, parts=[Records(records[0].topic, rows)], next_offsets={0: len(rows)}
    )


# Runs in processes that are killed

Steps = Mapping[str, Callable[[], tuple[Any, str]]]


def killed(file: Path, bootstrap: str, step: int, *steps: str) -> str:
    """Run a connector in a process and kill it at a step; return the step's name.

    Return an empty name if the run ended before.

    Args:
        step: number of the call at which the process is killed, from 1; before and after a call
            are two steps.
        steps: functions whose calls are counted, as `module:Class.name`.
    """
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_child, args=(file, bootstrap, step, steps, theirs))
    process.start()
    theirs.close()
    assert ours.poll(END_SECONDS), f"no answer in {END_SECONDS} s"
    kind, text = ours.recv()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    ours.close()
    assert kind != "failed", text
    return str(text)


def _child(file: Path, bootstrap: str, step: int, steps: tuple[str, ...], ends: Connection) -> None:
    from importlib import import_module

    left = step

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def at(when: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                ends.send(("step", f"{when} {name}"))
                signal.pause()

        def call(*arguments: Any, **named: Any) -> Any:
            at("before")
            result = function(*arguments, **named)
            at("after")
            return result

        return call

    for text in steps:
        module, _, path = text.partition(":")
        holder = getattr(import_module(module), path.partition(".")[0])
        name = path.partition(".")[2]
        setattr(holder, name, counted(getattr(holder, name), name))
    try:
        run_once(file, bootstrap)
    except Exception as error:
        ends.send(("failed", f"{type(error).__name__}: {error}"))
    else:
        ends.send(("ended", ""))
    signal.pause()
