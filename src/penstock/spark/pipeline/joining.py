"""Where a sink joined a query: what came before, it has not seen, and can be given by a backfill.

A sink that is added to a file gets what its query reads from then on. When a run starts, each sink
that the query has not had before is noted, once, with the positions at which the first batch that
writes it begins:

    <state>/joined/<query>/<sink>.json

    {"since": "the first batch"}
    {"since": "positions", "positions": {…as in Spark's checkpoint…}, "held_version": 3, "at_ms": …}

Spark's checkpoint says where that batch begins: at the end of the last batch that it knows to be
done. A batch that had begun and was not done is run again, with the new sink. `held_version` is
the version of the holding lot before that batch: records in it were waiting, and reach the new
sink through the pipeline once they are let go.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from penstock.base.errors import CorruptError, PenstockError
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.holding import HoldingLot
from penstock.spark.pipeline.journal import Journal, write_durably
from penstock.spark.pipeline.places import Places
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import WRITTEN
from penstock.spark.pipeline.status import checkpoint_positions
from penstock.spark.positions import Positions, from_json

Since = Literal["the first batch", "positions", "unknown"]
FIRST: Final[Since] = "the first batch"
POSITIONS: Final[Since] = "positions"
UNKNOWN: Final[Since] = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """When a sink joined its query. `unknown`: the checkpoint could not be read."""

    since: Since
    positions: tuple[Positions, ...] = ()
    held_version: int | None = None
    at_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "since": self.since,
            "positions": [one.to_json() for one in self.positions],
            "held_version": self.held_version,
            "at_ms": self.at_ms,
        }


def note(spec: PipelineSpec, plans: Sequence[QueryPlan], *, now_ms: int) -> None:
    """Note the sinks that the queries have not had before. To be called before they start."""
    for plan in plans:
        unknown = [sink for sink in plan.sinks if not _path(spec, plan.name, sink).exists()]
        if not unknown:
            continue
        joined = _now(spec, plan.name, now_ms)
        founders = _founders(spec, plan.name, unknown)
        for sink in unknown:
            entry = Joined(since=FIRST, at_ms=now_ms) if sink in founders else joined
            write_durably(_path(spec, plan.name, sink), json.dumps(entry.to_json()).encode())


def read(spec: PipelineSpec, query: str, sink: str) -> Joined | None:
    """When a sink joined; None when no run has started with it.

    Raises:
        CorruptError: the note cannot be read.
    """
    path = _path(spec, query, sink)
    try:
        body = json.loads(path.read_bytes())
        return Joined(
            since=body["since"],
            positions=tuple(from_json(one) for one in body["positions"]),
            held_version=body["held_version"],
            at_ms=body["at_ms"],
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, PenstockError) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from error


def _path(spec: PipelineSpec, query: str, sink: str) -> Path:
    return Places(spec).joined(query) / f"{sink}.json"


def _now(spec: PipelineSpec, query: str, now_ms: int) -> Joined:
    """What a sink that is new now has missed."""
    places = Places(spec)
    checkpoint = places.checkpoint(query)
    commits = checkpoint / "commits"
    done = [int(one.name) for one in commits.glob("*") if one.name.isdigit()]
    if not done:
        return Joined(since=FIRST, at_ms=now_ms)
    positions = checkpoint_positions(checkpoint)
    if not positions:
        return Joined(since=UNKNOWN, at_ms=now_ms)
    begun = [
        entry
        for entry in Journal(places.journal(query)).entries()
        if entry.batch_id == max(done) + 1
    ]
    held = HoldingLot(places.held(query), application="").version()
    return Joined(
        since=POSITIONS,
        positions=positions,
        held_version=begun[0].held_version if begun else held,
        at_ms=now_ms,
    )


def _founders(spec: PipelineSpec, query: str, sinks: Sequence[str]) -> set[str]:
    """Sinks that the query wrote before there were notes: now a note comes before any row."""
    entries = Journal(Places(spec).journal(query)).entries()
    return {sink for sink in sinks if any(WRITTEN + sink in entry.counts for entry in entries)}
