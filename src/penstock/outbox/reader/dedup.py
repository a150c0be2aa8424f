"""Dedup window of recent batches, which makes an at-least-once outbox look like exactly once.

A producer that misses an acknowledgement publishes its pointer again, and a consumer that crashes
before a commit reads the same pointers again. Both show as a second record of the same batch. The
window stores batches by partition id and batch id (two producers may choose the same batch id for
different partitions), with the checksum of their payload: the same batch with another payload is
not a duplicate but a batch id used twice. The window is bounded by entries and by age. A duplicate
that comes later than either bound is yielded.

Entries are in the order of their addition, so both bounds cut from the front. The caller passes
times in milliseconds.

Source: `filesystem-outbox.txt`, failure semantics; `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

from penstock.base.errors import InvalidError

BatchKey = tuple[str, str]
"""(partition id, batch id)"""


class DedupWindow:
    """Window of at most `entries_max` batches for at most `age_max_ms`.

    Raises:
        InvalidError: a bound below 0. An `entries_max` of 0 disables the window.
    """

    __slots__ = ("_age_max_ms", "_entries_max", "_seen", "forgotten")

    def __init__(self, *, entries_max: int, age_max_ms: int) -> None:
        if entries_max < 0 or age_max_ms < 0:
            raise InvalidError(
                f"dedup window of {entries_max} entries and {age_max_ms} ms: neither may be below 0"
            )
        self._entries_max = entries_max
        self._age_max_ms = age_max_ms
        self._seen: dict[BatchKey, tuple[int, int]] = {}  # time and CRC32C
        self.forgotten = 0
        """Number of batches that the bounds have removed."""

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, key: BatchKey, now_ms: int) -> int | None:
        """Return the batch's CRC32C; None if it was not added, or a bound has removed it."""
        added_ms, crc = self._seen.get(key, (None, None))
        return crc if added_ms is not None and now_ms - added_ms <= self._age_max_ms else None

    def add(self, key: BatchKey, crc: int, now_ms: int) -> None:
        """Add a batch; one that is in the window becomes the newest."""
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
