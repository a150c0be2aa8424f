"""Which leader epoch wrote which offsets: a pure core over the entries of its checkpoint.

Source: Kafka's `LeaderEpochFileCache`; KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from penstock.storage.formats.epochs import Entry

UNKNOWN: Final = (-1, -1)


class EpochHistory:
    """Entries (epoch, start offset), both rising."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._entries = list(entries or [])

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        """The newest epoch, -1 without one."""
        return self._entries[-1][0] if self._entries else -1

    @property
    def latest_start(self) -> int:
        """Where the newest epoch begins, -1 without one."""
        return self._entries[-1][1] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Begin an epoch; entries that it makes meaningless go. False if nothing changed."""
        if self._entries and epoch <= self._entries[-1][0]:
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        return True

    def cut_start(self, offset: int) -> bool:
        """The log now begins at `offset`: forget older epochs. False if nothing changed."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        if index < 0 or (index == 0 and self._entries[0][1] == offset):
            return False
        kept = [(self._entries[index][0], offset), *self._entries[index + 1 :]]
        changed = kept != self._entries
        self._entries = kept
        return changed

    def cut_end(self, offset: int) -> bool:
        """The log now ends at `offset`: forget epochs that begin there or later."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        return len(self._entries) != before

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and where it ends; (-1, -1) if unknown."""
        if epoch < 0 or not self._entries or epoch > self._entries[-1][0]:
            return UNKNOWN
        if epoch == self._entries[-1][0]:
            return epoch, log_end_offset
        index = bisect_right(self._entries, epoch, key=lambda entry: entry[0])
        end = self._entries[index][1]
        if index == 0:
            return epoch, end
        return self._entries[index - 1][0], end

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, -1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else -1
