"""Dedup window: recently processed batches, by which a consumer recognises duplicates.

An outbox delivers at least once. A producer that receives no acknowledgement publishes its pointer
again, and a consumer that crashes before a commit reads pointers again. Both cause a second record
of a batch. The window has the partition id and batch id of each batch, because two producers may
choose the same batch id for different partition ids. It also has the checksum of the payload: if a
second record has another payload, the batch id was used twice, so the record is not a duplicate.

The window is limited in entries and in age. A duplicate that arrives after its batch has left the
window is yielded.

Entries are in the order in which they were added, so the first entries are removed first. The
caller passes times in milliseconds.

Source: `filesystem-outbox.txt`, failure semantics; `design/host-and-outbox.md`, Read.
"""

from __future__ import annotations

from penstock.base.errors import InvalidError

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
