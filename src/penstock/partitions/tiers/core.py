"""Decision of the next tiering step of one partition: a core without I/O.

The first condition that is true determines the effect:

| condition                                       | effect                                         |
|-------------------------------------------------|------------------------------------------------|
| the last attempt has just failed                | none                                           |
| this leader does not know the archive's state   | `Ask` the control plane                        |
| the archive has records that an unclean         | `Cut` them                                     |
| election discarded                              |                                                |
| archived records exceed the topic's retention   | `Retain`                                       |
| a closed segment is not archived, and all of it | `Copy` it, from the end of the archive on      |
| is committed and all its transactions decided   |                                                |
| the active segment is old enough to expire      | `Roll` it, or an idle topic would never expire |

The log is copied in order, one segment of a partition at a time, so the archive has each offset at
most once. A new leader continues at the archive's end in the control plane. If that is within one
of its segments, the leader copies the rest of the segment. The sweeper deletes uncommitted uploads
of failed or slower leaders.

Source: KIP-405; Kafka's `RemoteLogManager` (copy and expiration tasks).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.base.retry import Backoff
from penstock.control.values.tiers import TierBounds, TiersDropped, TierSegment
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.log.tiering import ClosedSegment

LOOKS_PER_LIFE: Final = 100
"""Number of checks of the oldest segment's age per `retention.ms`."""
LAG_LOOKS: Final = 8
"""Number of measurements that determine whether the copy lag grows."""
RETRY: Final = Backoff(first_ms=500, ceiling_ms=60_000, steady=0.5)
"""Pauses after failed copies of a partition."""


class Look(NamedTuple):
    """State of a log that this broker leads.

    `segments` are the closed segments that end above the archive's end. Below `stable`, all records
    are committed and all transactions decided. `open_bytes` and `open_timestamp` are size and
    highest timestamp of the active segment; -1 is no timestamp.
    """

    leader_epoch: int
    start_offset: int
    local_start: int
    end_offset: int
    stable: int
    segments: Sequence[ClosedSegment]
    open_bytes: int
    open_timestamp: int
    epochs: Sequence[tuple[int, int]]


class Policy(NamedTuple):
    """Tiering policy of a topic; a retention of -1 means no limit."""

    copies: bool
    expires: bool
    retention_ms: int
    retention_bytes: int
    interval_ms: int


class Ask(NamedTuple):
    """Effect: request the archive's state from the control plane."""


class Cut(NamedTuple):
    """Effect: delete archived records from an offset on."""

    offset: int


class Retain(NamedTuple):
    """Effect: delete archived segments by age or size."""

    before_timestamp: int | None
    max_bytes: int | None


class Copy(NamedTuple):
    """Effect: copy a closed segment from an offset on."""

    segment: ClosedSegment
    base_offset: int


class Roll(NamedTuple):
    """Effect: close the active segment."""


Effect = Ask | Cut | Retain | Copy | Roll


class TierCore:
    """State of one partition's archive. Times are the broker's, in milliseconds."""

    def __init__(self) -> None:
        self.known = False
        self.bounds: TierBounds | None = None
        """Archive's state in the control plane; None if unknown, or if nothing was ever copied."""
        self.error = ""
        """Error of the last attempt; empty after a success."""
        self.failures = 0
        self.measured = False
        self.lag_bytes = self.lag_segments = 0
        """Bytes and segments that waited to be copied at the last step; valid if `measured`."""
        self._lags: deque[tuple[int, int]] = deque(maxlen=LAG_LOOKS)
        """Time and waiting bytes of each of the last measurements."""
        self._retry_ms = 0
        self._asked_epoch = self._compared_epoch = -1
        self._looked_ms: int | None = None

    @property
    def tiered_offset(self) -> int:
        """Offset below which all readable records are archived; 0 for none."""
        return 0 if self.bounds is None else self.bounds.tiered_offset

    @property
    def lag_grows(self) -> bool:
        """Whether copies to the archive do not keep up.

        At each of the last measurements segments waited to be copied, and at the last one they had
        more bytes than at the first.
        """
        lags = [size_bytes for _, size_bytes in self._lags]
        return len(lags) == LAG_LOOKS and min(lags) > 0 and lags[-1] > lags[0]

    def step(self, look: Look, policy: Policy, now_ms: int) -> Effect | None:
        """Return the effect to perform now, or None; the caller reports its result."""
        if now_ms < self._retry_ms:
            return None
        if not self.known or look.leader_epoch != self._asked_epoch:
            return Ask()
        self._measure(look, policy, now_ms)
        agreed = self._agreed(look)
        if agreed < self.tiered_offset:
            return Cut(agreed)
        self._compared_epoch = look.leader_epoch
        return self._retention(look, policy, now_ms) or self._copy(look, policy, now_ms)

    def learned(self, bounds: TierBounds | None, leader_epoch: int = -1) -> None:
        """Record the archive's state, and the epoch in which the leader requested it."""
        self.known, self.bounds = True, bounds
        self._asked_epoch = leader_epoch

    def copied(self, bounds: TierBounds, segment: TierSegment) -> None:
        before = self.bounds or bounds
        epochs, aborted = before.epochs, before.aborted_offset
        if not epochs or epochs[-1][0] != segment.leader_epoch:
            epochs = (*epochs, (segment.leader_epoch, segment.base_offset))
        if segment.aborted_bytes:
            aborted = segment.base_offset
        self._succeeded()
        self.bounds = bounds._replace(epochs=epochs, aborted_offset=aborted)

    def dropped(self, effect: Cut | Retain, dropped: TiersDropped | None, now_ms: int) -> None:
        """Record the result of a deletion; None if nothing of the partition is archived now."""
        self._succeeded()
        if isinstance(effect, Retain) and not (dropped and dropped.more):
            self._looked_ms = now_ms
        self.trimmed(dropped)

    def trimmed(self, dropped: TiersDropped | None) -> None:
        """Update the archive's state after a deletion; truncate its epochs accordingly."""
        if dropped is None:
            self.bounds = None
            return
        before, after = self.bounds or dropped.bounds, dropped.bounds
        history = EpochHistory(list(before.epochs))
        history.cut_start(after.log_start_offset)
        history.cut_end(after.tiered_offset)
        aborted = before.aborted_offset
        self.bounds = after._replace(epochs=tuple(history.entries), aborted_offset=aborted)

    def failed(self, error: str, now_ms: int) -> None:
        """Record a failed attempt; after a pause, the next step requests the state again."""
        self.error = error
        self.failures += 1
        self.known = False
        self._retry_ms = now_ms + int(RETRY.pause_ms(self.failures))

    def _succeeded(self) -> None:
        self.error, self.failures, self._retry_ms = "", 0, 0

    def _measure(self, look: Look, policy: Policy, now_ms: int) -> None:
        waiting = [segment for segment in look.segments if segment.next_offset > self.tiered_offset]
        waiting = waiting if policy.copies else []
        self.lag_segments = len(waiting)
        self.lag_bytes = sum(segment.size_bytes for segment in waiting)
        self.measured = True
        if not self._lags or not 0 <= now_ms - self._lags[-1][0] < policy.interval_ms:
            self._lags.append((now_ms, self.lag_bytes))

    def _agreed(self, look: Look) -> int:
        """Return the offset up to which archive and log have the same leader epochs.

        Archived records above it were discarded by an unclean election.
        """
        bounds = self.bounds
        if not (bounds and bounds.epochs) or look.leader_epoch == self._compared_epoch:
            return self.tiered_offset
        history = EpochHistory(list(look.epochs))
        ends = [start for _, start in bounds.epochs[1:]] + [bounds.tiered_offset]
        for (epoch, start), end in zip(bounds.epochs, ends, strict=True):
            if end <= look.local_start:
                continue
            first = max(start, look.local_start)
            if history.epoch_at(first) != epoch:
                return first
            _, ended = history.end_offset_for(epoch, look.end_offset)
            if ended < end:
                return max(first, ended)
        return bounds.tiered_offset

    def _retention(self, look: Look, policy: Policy, now_ms: int) -> Retain | None:
        bounds = self.bounds
        if bounds is None or not bounds.segments or not policy.expires:
            return None
        before_timestamp = max_bytes = None
        if policy.retention_bytes >= 0:
            here = look.open_bytes + sum(segment.size_bytes for segment in look.segments)
            room = max(0, policy.retention_bytes - here)
            max_bytes = room if bounds.size_bytes > room and self._due(0, policy, now_ms) else None
        if policy.retention_ms >= 0 and self._due(policy.retention_ms, policy, now_ms):
            before_timestamp = max(0, now_ms - policy.retention_ms)
        if before_timestamp is None and max_bytes is None:
            return None
        return Retain(before_timestamp, max_bytes)

    def _due(self, life_ms: int, policy: Policy, now_ms: int) -> bool:
        looked = self._looked_ms
        wait_ms = max(life_ms // LOOKS_PER_LIFE, policy.interval_ms)
        return looked is None or not 0 <= now_ms - looked < wait_ms

    def _copy(self, look: Look, policy: Policy, now_ms: int) -> Copy | Roll | None:
        bounds = self.bounds
        floor = max(self.tiered_offset, look.start_offset)
        for segment in look.segments if policy.copies else ():
            if segment.next_offset <= floor:
                continue
            if segment.next_offset > look.stable:
                return None
            base = segment.base_offset if bounds is None else max(segment.base_offset, bounds[1])
            return Copy(segment, base)
        old = 0 <= look.open_timestamp < now_ms - policy.retention_ms
        if policy.copies and policy.expires and policy.retention_ms >= 0 and old:
            return Roll()
        return None
