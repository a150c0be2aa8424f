r"""`leader-epoch-checkpoint`: the start offset of each leader epoch of a partition.

Text, in the form of Kafka's checkpoint files:

    0\n                       version
    2\n                       number of entries
    0 0\n                     epoch, start offset
    3 117\n

Source: Kafka's `LeaderEpochCheckpointFile` and `CheckpointFile`; KIP-101.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from penstock.base.settings import whole_number
from penstock.storage.errors import CorruptFile

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
