"""State of a running query, shown by progress, status page and metrics."""

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
