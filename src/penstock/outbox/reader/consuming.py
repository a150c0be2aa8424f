"""Core of the consumer: positions, dedup window, counts of dead letters, and the times of commits.

It has no I/O. `OutboxConsumer` asks it about each record and reports the result to it:

    begin(partition, position)      start of reading; earlier offsets count as committed
    seen(key, now)                  checksum of a recently processed batch
    processed(...), passed(...), rejected(...), dead_lettered(...)
                                    the record is done: its position advances
    due(now), to_commit(), committed(...)          commits

A position is the next offset of a partition. It passes a record only when the record was processed,
is a duplicate, was reported as `BatchReused`, or is in the dead-letter topic. So positions may be
committed at any time, and a crash repeats at most the records since the last commit.

A batch enters the dedup window when it was *processed*, not when it was yielded. The batch of a
dead letter never enters it: after its payload was repaired, a new pointer to it must be read.

Source: `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.outbox.metrics import OTHER, ConsumerCounters
from penstock.outbox.settings import check_numbers

# Dedup window: recently processed batches, by which a consumer recognises duplicates.
#
# An outbox delivers at least once. A producer that receives no acknowledgement publishes its
# pointer again, and a consumer that crashes before a commit reads pointers again. Both cause a
# second record of a batch. The window has the partition id and batch id of each batch, because two
# producers may choose the same batch id for different partition ids. It also has the checksum of
# the payload: if a second record has another payload, the batch id was used twice, so the record is
# not a duplicate.
#
# The window is limited in entries and in age. A duplicate that arrives after its batch has left the
# window is yielded.
#
# Entries are in the order in which they were added, so the first entries are removed first. The
# caller passes times in milliseconds.
#
# Source: `filesystem-outbox.txt`, failure semantics; `design/host-and-outbox.md`, Read.


BatchKey = tuple[str, str]
"""(partition id, batch id)."""


class DedupWindow:
    """Window of at most `entries_max` batches, which were added at most `age_max_ms` ago.

    Raises:
        InvalidError: a limit is below 0. An `entries_max` of 0 disables the window.
    """

    __slots__ = ("_age_max_ms", "_entries_max", "_seen", "forgotten")

    def __init__(self, *, entries_max: int, age_max_ms: int) -> None:
        if entries_max < 0 or age_max_ms < 0:
            raise InvalidError(
                f"dedup window of {entries_max} entries and {age_max_ms} ms: both must be 0 or more"
            )
        self._entries_max = entries_max
        self._age_max_ms = age_max_ms
        self._seen: dict[BatchKey, tuple[int, int]] = {}  # time and CRC32C
        self.forgotten = 0
        """Number of batches that were removed because of the limits."""

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, key: BatchKey, now_ms: int) -> int | None:
        """Return the CRC32C of a batch, or None if the window no longer or never had it."""
        added_ms, crc = self._seen.get(key, (None, None))
        return crc if added_ms is not None and now_ms - added_ms <= self._age_max_ms else None

    def add(self, key: BatchKey, crc: int, now_ms: int) -> None:
        """Add a batch as the newest, even if the window already has it."""
        self._seen.pop(key, None)
        self._seen[key] = now_ms, crc
        self._cut(now_ms)

    def _cut(self, now_ms: int) -> None:
        while self._seen:
            oldest = next(iter(self._seen))
            too_many = len(self._seen) > self._entries_max
            if not too_many and now_ms - self._seen[oldest][0] <= self._age_max_ms:
                return
            del self._seen[oldest]
            self.forgotten += 1


REASONS_MAX: Final = 100
"""Reasons of dead letters that have their own time series. Callers of `give_up` choose reasons."""


class ConsumerLimits(Struct, frozen=True, kw_only=True):
    """Limits of a consumer.

    Raises:
        InvalidSetting: a number is too small.
    """

    dedup_entries_max: int = 100_000
    """Batches in a consumer's dedup window. An entry takes about 200 bytes."""
    dedup_age_ms: int = 3_600_000
    """Time for which a batch stays in the dedup window."""
    rebuild_records_max: int = 100_000
    """Records per partition below the committed offset that a starting consumer reads again."""
    commit_interval_ms: int = 1_000
    """Time between two commits while records are processed."""
    commit_messages: int = 1_000
    """Records after which offsets are committed, even before the interval has passed."""
    dead_letters_in_a_row_max: int = 100
    """Dead letters in a row at which the consumer stops, since the mount may be missing.

    With 0, it never stops for this reason.
    """

    def __post_init__(self) -> None:
        check_numbers(
            self,
            dedup_entries_max=1,
            dedup_age_ms=0,
            rebuild_records_max=0,
            commit_interval_ms=0,
            commit_messages=1,
            dead_letters_in_a_row_max=0,
        )


class ConsumerCore:
    """Positions and dedup window of a consumer of one topic."""

    def __init__(self, bounds: ConsumerLimits) -> None:
        self._bounds = bounds
        self._window = DedupWindow(
            entries_max=bounds.dedup_entries_max, age_max_ms=bounds.dedup_age_ms
        )
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._since_commit = 0
        self._last_commit_ms: int | None = None
        self._in_a_row = 0
        self.counters = ConsumerCounters()

    @property
    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    @property
    def suspicious(self) -> bool:
        """Whether so many records in a row became dead letters that the mount may be missing."""
        most = self._bounds.dead_letters_in_a_row_max
        return most > 0 and self._in_a_row >= most

    def begin(self, partition: int, position: int) -> None:
        self._positions[partition] = position
        self._committed[partition] = position

    def skip_to(self, partition: int, position: int) -> None:
        self.counters.lost_records += max(0, position - self._positions[partition])
        self._positions[partition] = position

    def remember(self, key: BatchKey, crc: int, at_ms: int) -> None:
        self._window.add(key, crc, at_ms)
        self.counters.remembered += 1

    def seen(self, key: BatchKey, now_ms: int) -> int | None:
        """Return the CRC32C of a batch that is in the dedup window, else None."""
        return self._window.seen(key, now_ms)

    def processed(self, partition: int, offset: int, key: BatchKey, crc: int, now_ms: int) -> None:
        """Record that the batch of a record was processed. Calling it again has no effect."""
        if offset < self._positions[partition]:
            return
        self._window.add(key, crc, now_ms)
        self._in_a_row = 0
        self.counters.messages += 1
        self._move(partition, offset)

    def passed(self, partition: int, offset: int) -> None:
        self.counters.duplicates += 1
        self._move(partition, offset)

    def rejected(self, partition: int, offset: int) -> None:
        self.counters.conflicts += 1
        self._move(partition, offset)

    def dead_lettered(self, partition: int, offset: int, reason: str) -> None:
        by_reason = self.counters.dead_letters_by_reason
        if reason not in by_reason and len(by_reason) >= REASONS_MAX:
            reason = OTHER
        by_reason[reason] += 1
        self._in_a_row += 1
        self._move(partition, offset)

    def at_end(self, partition: int, end: int) -> None:
        """Record that all records of a partition below `end` are done."""
        self._positions[partition] = max(end, self._positions[partition])

    def due(self, now_ms: int) -> bool:
        """Return whether it is time to commit. The first call starts the interval."""
        if self._last_commit_ms is None:
            self._last_commit_ms = now_ms
        if not self._since_commit:
            return False
        return (
            self._since_commit >= self._bounds.commit_messages
            or now_ms - self._last_commit_ms >= self._bounds.commit_interval_ms
        )

    def to_commit(self) -> dict[int, int]:
        return {p: at for p, at in self._positions.items() if at != self._committed.get(p)}

    def committed(self, positions: dict[int, int], now_ms: int) -> None:
        self._committed.update(positions)
        self._since_commit = 0
        self._last_commit_ms = now_ms
        self.counters.commits += 1

    def _move(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset + 1
        self._since_commit += 1
