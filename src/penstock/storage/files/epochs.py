"""History of leader epochs by start offset, a pure core, and its checkpoint file.

Source: Kafka's `LeaderEpochFileCache`; KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final

from penstock.base.settings import whole_number
from penstock.storage.files.errors import CorruptFile

# `leader-epoch-checkpoint`: the start offset of each leader epoch of a partition.
#
# Text, in the form of Kafka's checkpoint files:
#
#     0\n                       version
#     2\n                       number of entries
#     0 0\n                     epoch, start offset
#     3 117\n
#
# Source: Kafka's `LeaderEpochCheckpointFile` and `CheckpointFile`; KIP-101.


Entry = tuple[int, int]
"""Leader epoch and start offset."""

_VERSION: Final = 0
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1


def encode_epochs(entries: list[Entry]) -> bytes:
    lines = [str(_VERSION), str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries)]
    return ("\n".join(lines) + "\n").encode()


def decode_epochs(data: bytes) -> list[Entry]:
    """Decode the entries; raises CorruptFile."""
    try:
        text = data.decode("ascii")
        lines = text.split("\n")
        if len(lines) < 3 or lines[-1] != "":
            raise CorruptFile("leader-epoch-checkpoint is truncated")
        version, count = _number(lines[0], _INT_MAX), _number(lines[1], _INT_MAX)
        if version != _VERSION:
            raise CorruptFile(f"leader-epoch-checkpoint has version {version}, not {_VERSION}")
        body = lines[2:-1]
        if len(body) != count:
            raise CorruptFile(
                f"leader-epoch-checkpoint states {count} entries, but has {len(body)}"
            )
        entries = [_entry(line) for line in body]
    except (ValueError, UnicodeDecodeError) as error:
        raise CorruptFile(f"leader-epoch-checkpoint: {error}") from None
    for before, after in pairwise(entries):
        if not (before[0] < after[0] and before[1] <= after[1]):
            raise CorruptFile(f"leader-epoch-checkpoint: {before} is followed by {after}")
    return entries


def _entry(line: str) -> Entry:
    epoch, _, start = line.partition(" ")
    return _number(epoch, _INT_MAX), _number(start, _LONG_MAX)


def _number(text: str, maximum: int) -> int:
    found = whole_number(text, maximum)
    if found is None:
        raise ValueError(f"{text!r} is not a number up to {maximum}")
    return found


UNKNOWN: Final = (-1, -1)


class EpochHistory:
    """Entries (epoch, start offset), both strictly rising."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._entries = list(entries or [])

    @property
    def entries(self) -> list[Entry]:
        return list(self._entries)

    @property
    def latest(self) -> int:
        return self._entries[-1][0] if self._entries else -1

    @property
    def latest_start(self) -> int:
        """Start offset of the newest epoch, -1 without one."""
        return self._entries[-1][1] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Record that an epoch, if it is higher than all others, begins at `start_offset`.

        Drops entries of epochs that begin at or above that offset. Returns whether anything
        changed.
        """
        if self._entries and epoch <= self._entries[-1][0]:
            return False
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))
        return True

    def cut_start(self, offset: int) -> bool:
        """Drop epochs below the new log start offset; return whether anything changed."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1]) - 1
        if index < 0 or (index == 0 and self._entries[0][1] == offset):
            return False
        kept = [(self._entries[index][0], offset), *self._entries[index + 1 :]]
        changed = kept != self._entries
        self._entries = kept
        return changed

    def cut_end(self, offset: int) -> bool:
        """Drop epochs that begin at or above a new end offset; return whether any did."""
        before = len(self._entries)
        while self._entries and self._entries[-1][1] >= offset:
            self._entries.pop()
        return len(self._entries) != before

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch not above `epoch` and its end offset; (-1, -1) if unknown."""
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
        """Return the epoch that wrote `offset`, -1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else -1
