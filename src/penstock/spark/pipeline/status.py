"""Status of a pipeline: from its status page while it runs, else from its files and the broker.

While a pipeline runs, `<state>/run.json` has the address of its page:

    {"pipeline": "orders", "file": "/…/orders.toml", "state_directory": "/…/.penstock",
     "version": "0.1.0", "pid": 4711, "started_ms": 1790000000000, "master": "local[2]",
     "broker_admin": null, "dead_letter_topic": "orders.dead", "admin": "http://127.0.0.1:41234"}

The file is removed when the run ends. If the process was killed, its page does not respond. The
status of a stopped pipeline comes from the checkpoints and journals in its state directory. The
broker adds the end offsets, and so the lag. If a query has no checkpoint, the broker's committed
offsets of the group `<pipeline>.<query>` are used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.base.files import write_durably
from penstock.client.admin_http import AdminHttp
from penstock.client.errors import AdminUnavailable, InvalidArgument
from penstock.records.extents import READ_COMMITTED
from penstock.spark.pipeline.admin import Run
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.reads.positions import TOPICS, Positions, from_json

if TYPE_CHECKING:
    from penstock.client import Client

RUN_FILE: Final = "run.json"
RUN_BYTES_MAX: Final = 64 << 10
PAGE_SECONDS: Final = 10.0
"""Longest wait for the status page, which may be slow during a batch."""
OFFSETS_BYTES_MAX: Final = 16 << 20
OFFSETS_VERSIONS: Final = frozenset({"v1"})


# The run's file


@contextmanager
def announced(run: Run, admin: str) -> Iterator[None]:
    """Write the status page's address to `<state>/run.json` while the block runs."""
    path = Path(run.state_directory) / RUN_FILE
    body = asdict(run) | {"admin": admin}
    write_durably(path, json.dumps(body).encode())
    try:
        yield
    finally:
        if (_read(path) or {}).get("pid") == run.pid:
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            body = json.loads(file.read(RUN_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def live(spec: PipelineSpec) -> dict[str, Any] | None:
    """Return the status page of a running pipeline, with its address as `admin`; else None."""
    found = _read(spec.run.state / RUN_FILE)
    admin = str((found or {}).get("admin", ""))
    try:
        with AdminHttp(admin) as address:
            answer = address.ask("GET", "/status", timeout_seconds=PAGE_SECONDS)
    except (InvalidArgument, AdminUnavailable):
        return None
    # Another program may use the port by now.
    if answer.status != HTTPStatus.OK or answer.body.get("pipeline") != spec.name:
        return None
    return {**answer.body, "admin": admin}


# State of a stopped pipeline


def stored(spec: PipelineSpec, client: Client) -> dict[str, Any]:
    """Return the status of a stopped pipeline from its state directory and the broker.

    Returns:
        `pipeline`, `file`, `running` (false), `state_directory`, `broker_error` (why there is no
        lag, or null) and `queries`. A query has `query`, `group`, `batch_id` (of the last finished
        batch), `unfinished` (whether a later batch has begun), `held_records`, `lag_records` (null
        if unknown) and `partitions`. A partition has `topic`, `partition`, `committed_offset`,
        `log_end_offset` and `lag` (null if unknown).
    """
    paths = PipelinePaths(spec)
    queries = []
    error: str | None = None
    for name in known_queries(spec):
        group = f"{spec.name}.{name}"
        committed = checkpoint_offsets(paths.checkpoint(name))
        ends: dict[tuple[str, int], int] = {}
        if error is None:
            try:
                committed = committed or {
                    at: found.offset for at, found in client.committed(group).items()
                }
                ends = _ends(client, {topic for topic, _ in committed})
            except (PenstockError, OSError) as failure:
                error = str(failure)
        queries.append(_stored_query(name, group, paths, committed, ends))
    return {
        "pipeline": spec.name,
        "file": str(spec.file),
        "state_directory": str(spec.run.state),
        "running": False,
        "broker_error": error,
        "queries": queries,
    }


def known_queries(spec: PipelineSpec) -> tuple[str, ...]:
    paths = PipelinePaths(spec)
    names: set[str] = set()
    for folder in (paths.checkpoint("x").parent, paths.journal("x").parent):
        if folder.is_dir():
            names |= {entry.name for entry in os.scandir(folder) if entry.is_dir()}
    return tuple(sorted(names))


def _stored_query(
    name: str,
    group: str,
    paths: PipelinePaths,
    committed: Mapping[tuple[str, int], int],
    ends: Mapping[tuple[str, int], int],
) -> dict[str, Any]:
    last = Journal(paths.journal(name)).last()
    rows = []
    for topic, partition in sorted(committed):
        at = committed[topic, partition]
        end = ends.get((topic, partition))
        rows.append(
            {
                "topic": topic,
                "partition": partition,
                "committed_offset": at,
                "log_end_offset": end,
                "lag": None if end is None else max(0, end - at),
            }
        )
    lags = [row["lag"] for row in rows if row["lag"] is not None]
    return {
        "query": name,
        "group": group,
        "batch_id": _finished(last),
        "unfinished": last is not None and not last.done,
        "held_records": last.held if last is not None else 0,
        "lag_records": sum(lags) if lags else None,
        "partitions": rows,
    }


def _finished(last: Entry | None) -> int | None:
    if last is None:
        return None
    number = last.batch_id if last.done else last.batch_id - 1
    return number if number >= 0 else None


def _ends(client: Client, topics: set[str]) -> dict[tuple[str, int], int]:
    return {
        (topic, partition): offset
        for topic in sorted(topics)
        for partition, offset in client.list_offsets(
            topic, "latest", isolation=READ_COMMITTED
        ).items()
    }


def checkpoint_offsets(checkpoint: Path) -> dict[tuple[str, int], int]:
    """Return the next offset to read, by topic and partition, from a checkpoint.

    If two sources read a topic, their lower offset is returned.
    """
    found: dict[tuple[str, int], int] = {}
    for position_of_source in checkpoint_positions(checkpoint):
        for at, position in position_of_source.partitions.items():
            key = (at.topic, at.partition)
            found[key] = min(position.offset, found.get(key, position.offset))
    return found


def checkpoint_positions(checkpoint: Path) -> tuple[Positions, ...]:
    """Return the positions of a checkpoint's sources after its last completed batch.

    There is one element per source of Spark's format `penstock`. The result is empty if no batch
    was completed, or if the checkpoint's format is unknown.

    Source: Spark's `OffsetSeqLog`: a version, a line of metadata, a line for each source.
    """
    done = numbers(checkpoint / "commits")
    if not done:
        return ()
    try:
        with (checkpoint / "offsets" / str(max(done))).open("rb") as file:
            version, _, *sources = file.read(OFFSETS_BYTES_MAX).decode().splitlines()
        bodies = [json.loads(line) for line in sources if line.startswith("{")]
        if version not in OFFSETS_VERSIONS:
            return ()
        return tuple(from_json(body) for body in bodies if TOPICS in body)
    except (OSError, ValueError, PenstockError):
        return ()


def numbers(folder: Path) -> list[int]:
    """Return the batch numbers of the files in a folder of Spark's checkpoint."""
    if not folder.is_dir():
        return []
    return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdigit()]
