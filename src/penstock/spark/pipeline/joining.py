"""Start positions of sinks that were added to a query; a backfill writes the records before them.

When the first batch that writes a sink begins, the sink's file is written, with the positions at
which that batch begins:

    <state>/joined/<query>/<sink>.json

    {"since": "the first batch"}
    {"since": "positions", "positions": {…as in Spark's checkpoint…}, "held_version": 3, "at_ms": …}

The batch begins at the end of the checkpoint's last completed batch. `held_version` is the version
of the retry store before the batch; records held there reach the new sink when they are released.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.base.errors import CorruptError, PenstockError
from penstock.base.files import write_durably
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.journal import Entry, Journal
from penstock.spark.pipeline.retry_store import RetryStore
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import WRITTEN, PipelinePaths
from penstock.spark.pipeline.status import checkpoint_positions
from penstock.spark.reads.positions import Positions, from_json

Since = Literal["the first batch", "positions", "unknown"]
FIRST: Final[Since] = "the first batch"
POSITIONS: Final[Since] = "positions"
UNKNOWN: Final[Since] = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Start of a sink in its query; `since` is `unknown` if the checkpoint could not be read."""

    since: Since
    positions: tuple[Positions, ...] = ()
    held_version: int | None = None
    at_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "positions": [position.to_json() for position in self.positions],
            "held_version": self.held_version,
            "at_ms": self.at_ms,
        }


def note(spec: PipelineSpec, plan: QueryPlan, entry: Entry) -> None:
    """Write the start of each new sink; called just before the batch of `entry` begins."""
    unknown = [sink for sink in plan.sinks if not _path(spec, plan.name, sink).exists()]
    if not unknown:
        return
    joined = _now(spec, plan.name, entry)
    founders = _founders(spec, plan.name, unknown)
    for sink in unknown:
        found = Joined(since=FIRST, at_ms=entry.now_ms) if sink in founders else joined
        write_durably(_path(spec, plan.name, sink), json.dumps(found.to_json()).encode())


def note_at_rest(spec: PipelineSpec, plan: QueryPlan, *, now_ms: int) -> None:
    """Write the start of each new sink when a run starts, for backfills before its first batch.

    Do nothing if no batch has run, or if the last batch is unfinished.
    """
    paths = PipelinePaths(spec)
    last = Journal(paths.journal(plan.name)).last()
    if last is None or not (paths.checkpoint(plan.name) / "commits" / str(last.batch_id)).exists():
        return
    held = RetryStore(paths.held(plan.name), application="").version()
    following = Entry(batch_id=last.batch_id + 1, query_id=None, now_ms=now_ms, held_version=held)
    note(spec, plan, following)


def read(spec: PipelineSpec, query: str, sink: str) -> Joined | None:
    """Return the start of a sink; None if no batch has begun with it.

    Raises:
        CorruptError: the sink's file cannot be read.
    """
    path = _path(spec, query, sink)
    try:
        body = json.loads(path.read_bytes())
        return Joined(
            since=body["since"],
            positions=tuple(from_json(position) for position in body["positions"]),
            held_version=body["held_version"],
            at_ms=body["at_ms"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, PenstockError) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from error


def _path(spec: PipelineSpec, query: str, sink: str) -> Path:
    return PipelinePaths(spec).joined(query) / f"{sink}.json"


def _now(spec: PipelineSpec, query: str, entry: Entry) -> Joined:
    if entry.batch_id == 0:
        return Joined(since=FIRST, at_ms=entry.now_ms)
    positions = checkpoint_positions(PipelinePaths(spec).checkpoint(query))
    return Joined(
        since=POSITIONS if positions else UNKNOWN,
        positions=positions,
        held_version=entry.held_version if positions else None,
        at_ms=entry.now_ms,
    )


def _founders(spec: PipelineSpec, query: str, sinks: Sequence[str]) -> set[str]:
    """Return the sinks without a file that batches in the journal have already written.

    These sinks are older than the files of start positions; they count as present from the first
    batch.
    """
    entries = Journal(PipelinePaths(spec).journal(query)).entries()
    return {sink for sink in sinks if any(WRITTEN + sink in entry.counts for entry in entries)}
