"""What is known of a running query: the value behind progress, status page and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

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
"""Names in `QueryState.counts`; the last three are followed by a rule, and by a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """One query of a pipeline at one moment.

    `counts` are totals since the process started: `rows` read, `rejected.<rule or "undecodable">`,
    `warned.<rule>`, `dead_letters`, `late` (rows behind the watermark), `shredded` (values
    that are null because their key was deleted), `written.<sink>`, `batches` and their time
    `busy_ms`.
    `held` is what waits now.
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
        """The rate of the last batch."""
        return self.batch_rows * MILLISECONDS / self.batch_ms if self.batch_ms else 0.0

    @property
    def rows_per_second(self) -> float:
        """That of the last batch; of a query at rest none; of one that is over, that of all."""
        if self.phase in ("ended", "failed"):
            busy_ms = self.counts.get(BUSY_MS, 0)
            return self.counts.get(ROWS, 0) * MILLISECONDS / busy_ms if busy_ms else 0.0
        return self.batch_rows_per_second if self.phase == "running" else 0.0
