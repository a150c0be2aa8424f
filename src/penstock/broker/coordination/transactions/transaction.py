"""State of one transactional id at its coordinator: metadata, pending change, waiting requests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec import Struct

from penstock.base.ids import TopicPartition
from penstock.broker.coordination.timers import Timer
from penstock.broker.coordination.transactions.metadata import (
    TransactionMetadata,
)
from penstock.broker.coordination.transactions.responses import Response
from penstock.broker.coordination.transactions.states import TransactionState
from penstock.control import OffsetsEnd

COMPLETION_LINGER_MS: Final = 100
"""Delay of the save which records that all markers are written.

A busy producer begins its next transaction within this time; one save then stores both changes.
After a crash before the save, the markers are written again.
"""


class TransactionLimits(Struct, frozen=True, kw_only=True):
    """Limits of transactional ids and transactions; times in milliseconds."""

    transactional_ids_max: int = 100_000
    transaction_partitions_max: int = 10_000
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000


NEVER_MS = 1 << 62


class Request(NamedTuple):
    event: Any
    token: int
    until_ms: int


class Pending:
    """Change to be saved, and the responses that depend on its save.

    `sent` is true once the save has begun; a failed save is retried at `retry_ms`. Before that,
    other requests of the same event-loop turn may add changes to the same save.
    """

    __slots__ = ("after", "answers", "completes_offsets", "retry_ms", "sent")

    def __init__(self, before: TransactionMetadata | None, after: TransactionMetadata) -> None:
        self.after = after
        self.answers: list[tuple[int, Response]] = []
        self.sent = False
        self.retry_ms: int | None = None
        self.completes_offsets = _offsets_end(before, after)

    @property
    def joinable(self) -> bool:
        """Whether another change may share this save; a commit or abort needs its own save."""
        return not self.sent and self.completes_offsets is None and not self.after.state.prepared

    def becomes(self, after: TransactionMetadata) -> None:
        self.completes_offsets = _offsets_end(self.after, after)
        self.after = after


def _offsets_end(
    before: TransactionMetadata | None, after: TransactionMetadata
) -> OffsetsEnd | None:
    """Return whether a change commits or aborts staged offsets; None if it does neither."""
    if before is None or not before.groups or after.groups:
        return None
    return "commit" if after.state.commits else "abort"


class Transaction:
    """State of one transactional id.

    `metadata` is durable, with one exception: a completed transaction is also in `unsaved`, until
    it is saved with the next change or at `save_at_ms`. `unmarked` partitions lack the marker of
    the prepared transaction.
    """

    __slots__ = (
        "metadata",
        "pending",
        "save_at_ms",
        "timer",
        "transactional_id",
        "unmarked",
        "unsaved",
        "waiting",
    )

    def __init__(self, transactional_id: str, due: Callable[[Transaction], None]) -> None:
        self.transactional_id = transactional_id
        self.metadata: TransactionMetadata | None = None
        self.unsaved: TransactionMetadata | None = None
        self.save_at_ms = NEVER_MS
        self.pending: Pending | None = None
        self.waiting: list[Request] = []
        self.unmarked: set[TopicPartition] = set()
        self.timer = Timer(partial(due, self))

    def completed(self, metadata: TransactionMetadata, now_ms: int) -> None:
        self.metadata = self.unsaved = metadata
        self.save_at_ms = now_ms + COMPLETION_LINGER_MS

    def over_ms(self, limits: TransactionLimits) -> int:
        """Return the time in ms at which the open transaction times out, or the idle id expires."""
        metadata = self.metadata
        if metadata is None or metadata.state.prepared:
            return NEVER_MS
        if metadata.state is TransactionState.ONGOING:
            interval_ms = limits.transaction_abort_timed_out_transaction_cleanup_interval_ms
            return _next(metadata.start_ms + metadata.timeout_ms, interval_ms)
        interval_ms = limits.transaction_remove_expired_transaction_cleanup_interval_ms
        return _next(metadata.updated_ms + limits.transactional_id_expiration_ms, interval_ms)

    def deadline_ms(self, limits: TransactionLimits) -> int | None:
        """Return the time in ms of the next action; None if there is none."""
        deadline_ms = min((request.until_ms for request in self.waiting), default=NEVER_MS)
        if self.pending is None:
            deadline_ms = min(deadline_ms, self.over_ms(limits))
            if self.unsaved is not None:
                deadline_ms = min(deadline_ms, self.save_at_ms)
        elif self.pending.retry_ms is not None:
            deadline_ms = min(deadline_ms, self.pending.retry_ms)
        return None if deadline_ms == NEVER_MS else deadline_ms

    def overdue(self, now_ms: int) -> list[Request]:
        """Remove and return the requests whose time limit has passed."""
        overdue = [request for request in self.waiting if request.until_ms <= now_ms]
        if overdue:
            self.waiting = [request for request in self.waiting if request.until_ms > now_ms]
        return overdue


def _next(time_ms: int, interval_ms: int) -> int:
    """Return the first multiple of the interval that is not before a time."""
    return -(-time_ms // interval_ms) * interval_ms
