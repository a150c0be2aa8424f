"""State of a running query, shown by progress, status page and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from penstock.spark.pipeline.spec import PipelineSpec

Phase = Literal["starting", "running", "idle", "restarting", "ended", "failed"]

MILLISECONDS: Final = 1_000
ROWS: Final = "rows"
BATCHES: Final = "batches"
BUSY_MS: Final = "busy_ms"
DEAD_LETTERS: Final = "dead_letters"
LATE: Final = "late"
SHREDDED: Final = "shredded"
REJECTED: Final = "rejected."
WARNED: Final = "warned."
WRITTEN: Final = "written."
"""Keys of `QueryState.counts`; the last three are prefixes before a rule or a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """State of a query at one moment; `held` is the number of held records.

    `counts` are totals since the process started: `rows` read, `rejected.<rule or "undecodable">`,
    `warned.<rule>`, `dead_letters`, `late` (rows behind the watermark), `shredded` (values that are
    null because their key was deleted), `written.<sink>`, `batches`, and `busy_ms`, the time of all
    batches.
    """

    query: str
    group_id: str
    phase: Phase
    batch_id: int | None = None
    batch_rows: int = 0
    batch_ms: int = 0
    lag_records: int | None = None
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None
    held: int = 0
    restarts: int = 0
    error: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def batch_rows_per_second(self) -> float:
        return self.batch_rows * MILLISECONDS / self.batch_ms if self.batch_ms else 0.0

    @property
    def rows_per_second(self) -> float:
        """Rate of the last batch while running, of all batches after the end, else 0; rows/s."""
        if self.phase in ("ended", "failed"):
            busy_ms = self.counts.get(BUSY_MS, 0)
            return self.counts.get(ROWS, 0) * MILLISECONDS / busy_ms if busy_ms else 0.0
        return self.batch_rows_per_second if self.phase == "running" else 0.0


# Paths of a pipeline's files below its state directory.
#
#     <state>/lock                     lock file of the process that runs the pipeline
#     <state>/run.json                 address of the running pipeline's status page
#     <state>/checkpoints/<query>/     Spark's checkpoint
#     <state>/journal/<query>/         journal: a file per batch
#     <state>/definitions/             stored copies of the pipeline file
#     <state>/schemas/<source>.ddl     inferred schemas
#     <state>/schemas/<source>.reader  pinned schemas of registries
#     <state>/schemas/<source>.ids     pinned schema ids of sources without a registry
#     <state>/held/<query>/            retry store: a Delta table
#     <state>/releases/<query>/        requests to release parked records; completed ones in done/
#     <state>/wake-<query>             time of the next batch of a query with held records
#     <state>/joined/<query>/          start positions of added sinks
#     <state>/backfills/<query>/       progress of backfills of added sinks
#     <state>/replaying/               the open replay of dead letters, and completed ones
#     <state>/replays                  replayed dead letters: a Delta table
#
# The settings `run.state` and `--state` name the state directory.


class PipelinePaths:
    """Paths of one pipeline."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.state = spec.run.state

    def checkpoint(self, query: str) -> Path:
        return self.state / "checkpoints" / query

    def committed(self, query: str, batch_id: int) -> Path:
        """Return the path of the file that Spark writes when it has completed a batch."""
        return self.checkpoint(query) / "commits" / str(batch_id)

    def journal(self, query: str) -> Path:
        return self.state / "journal" / query

    def held(self, query: str) -> Path:
        return self.state / "held" / query

    def releases(self, query: str) -> Path:
        return self.state / "releases" / query

    @property
    def definitions(self) -> Path:
        return self.state / "definitions"

    def schema(self, source: str) -> Path:
        return self.state / "schemas" / f"{source}.ddl"

    def joined(self, query: str) -> Path:
        return self.state / "joined" / query

    def reader(self, source: str) -> Path:
        return self.state / "schemas" / f"{source}.reader"

    def ids(self, source: str) -> Path:
        return self.state / "schemas" / f"{source}.ids"

    @property
    def replays(self) -> Path:
        return self.state / "replays"

    @property
    def replaying(self) -> Path:
        return self.state / "replaying"

    def backfill(self, query: str, sink: str) -> Path:
        return self.state / "backfills" / query / f"{sink}.json"

    def wake_file(self, query: str) -> Path:
        return self.state / f"wake-{query}"

    @property
    def lock(self) -> Path:
        return self.state / "lock"
