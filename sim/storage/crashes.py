"""What may be there after a power loss, enumerated: which of the changes that were not synced, and
which parts of a write.

Nothing, all, each alone, all but each, the first and the last so many. Of each write its length
without its bytes; and torn where a sector (512 bytes) or a page (4 KiB) of the file begins, and at
single bytes, with nothing and with all of the others. Of a write that is not the newest, one tear.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from sim.disk import Change, Written, torn

SECTOR_BYTES = 512
EVERY_BYTE_MAX = 24
"""Writes up to this size are torn at every byte."""

Crash = tuple[str, Sequence[Change]]


def crashes(pending: Sequence[Change], dice: random.Random) -> Iterator[Crash]:
    """What survives, each with a name for it; the dice choose the bytes at which writes tear."""
    yield "nothing", ()
    count = len(pending)
    if not count:
        return
    yield "all", pending
    for place in range(count):
        yield f"only {place}", pending[place : place + 1]
        yield f"all but {place}", [*pending[:place], *pending[place + 1 :]]
    for kept in range(2, count - 1):
        yield f"the first {kept}", pending[:kept]
        yield f"the last {kept}", pending[-kept:]
    for place, change in enumerate(pending):
        if isinstance(change, Written) and change.data:
            yield from _in_part(pending, place, change, dice)


def _in_part(
    pending: Sequence[Change], place: int, change: Written, dice: random.Random
) -> Iterator[Crash]:
    before, behind = pending[:place], pending[place + 1 :]
    length = Written(change.node, change.end, b"")
    yield f"the length of {place}", (length,)
    yield f"all, but of {place} the length", [*before, length, *behind]
    cuts = _cuts(change, dice)
    if behind:
        cuts = [dice.choice(cuts)] if cuts else []
    for cut in cuts:
        for number, parts in enumerate(torn(change, cut)):
            yield f"{place} torn at {cut} ({number})", parts
            yield f"all, {place} torn at {cut} ({number})", [*before, *parts, *behind]


def _cuts(change: Written, dice: random.Random) -> list[int]:
    size = len(change.data)
    first = -change.position % SECTOR_BYTES
    cuts = {*range(first, size, SECTOR_BYTES), 1, size // 2, size - 1, dice.randint(0, size)}
    if size <= EVERY_BYTE_MAX:
        cuts.update(range(size))
    return sorted(cut for cut in cuts if 0 < cut < size)
