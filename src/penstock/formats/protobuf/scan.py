"""Where the fields of messages lie, found before they are read.

A message is a series of tags and values in any order. One step reads one tag of every cursor and
moves behind its value, which the wire type alone says the size of; after the last cursor is at its
end the pieces found are handed out by field number. Fields that the schema does not have are
stepped over just so.

Source: the Protocol Buffers guide "Encoding".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.formats.limits import STEPS_MAX
from penstock.formats.protobuf.schema import FIXED32, FIXED64, SIZED, VARINT
from penstock.formats.vectorised.cursor import ENDS_EARLY, Cursors, Longs

TAG_MAX: Final = 2**32 - 1
NUMBER_SHIFT: Final = 3
WIRE_MASK: Final = 7


@dataclass(frozen=True, slots=True)
class Pieces:
    """Occurrences of fields: cursor, tag, and the range of the value's bytes.

    Those of one cursor are in the order in which they were written.
    """

    owner: Longs
    tag: Longs
    start: Longs
    end: Longs

    def of(self, chosen: Longs) -> Pieces:
        return Pieces(self.owner[chosen], self.tag[chosen], self.start[chosen], self.end[chosen])

    def ordered(self) -> Pieces:
        """By cursor, and within a cursor as written."""
        return self.of(np.argsort(self.owner, kind="stable"))


def scan(cursors: Cursors, label: str) -> dict[int, Pieces]:
    """The pieces of all fields by number; moves the cursors to their ends."""
    found: list[Pieces] = []
    rows = np.flatnonzero(cursors.good & (cursors.position < cursors.end))
    whole = rows.size == len(cursors)
    for _ in range(STEPS_MAX):
        if not rows.size:
            return _by_number(found, cursors)
        part = cursors if whole else cursors.at(rows)
        tag = _tag(part, label)
        start = _behind(part, tag, label)
        if not whole:
            cursors.put(rows, part)
        found.append(Pieces(rows, tag, start, part.position))
        rows = rows[part.good & (part.position < part.end)]
        whole = rows.size == len(cursors)
    cursors.fail_at(rows, f"{label}more than {STEPS_MAX} fields and items")
    return _by_number(found, cursors)


def _tag(part: Cursors, label: str) -> Longs:
    tag = part.varint(label)
    part.fail(
        part.good & ((tag > TAG_MAX) | (tag >> np.uint64(NUMBER_SHIFT) == 0)),
        f"{label}a tag without a field number",
    )
    return np.where(part.good, tag, 0).astype(np.int64)


def _behind(part: Cursors, tag: Longs, label: str) -> Longs:
    """Move behind the values; where the values start."""
    wire = tag & WIRE_MASK
    first = int(wire[0])
    if (wire == first).all():
        return _step(part, first, label)
    start = part.position.copy()
    for kind in np.unique(wire):
        rows = np.flatnonzero(wire == kind)
        some = part.at(rows)
        start[rows] = _step(some, int(kind), label)
        part.put(rows, some)
    return start


def _step(part: Cursors, wire: int, label: str) -> Longs:
    start = part.position
    if wire == VARINT:
        part.varint(label)
    elif wire == FIXED64:
        part.advance(8, label)
    elif wire == FIXED32:
        part.advance(4, label)
    elif wire == SIZED:
        return _step_sized(part, label)
    else:
        words = "a group" if wire in (3, 4) else f"wire type {wire}, which there is not"
        part.fail(np.ones(len(part), np.bool_), f"{label}has {words}")
    return start


def _step_sized(part: Cursors, label: str) -> Longs:
    size = part.varint(label)
    left = (part.end - part.position).view(np.uint64)
    part.fail(part.good & (size > left), f"{label}{ENDS_EARLY}")
    start = part.position
    part.advance(np.where(part.good, size, np.uint64(0)).astype(np.int64), label)
    return start


def _by_number(found: list[Pieces], cursors: Cursors) -> dict[int, Pieces]:
    """Pieces of cursors that are good, by field number."""
    if not found:
        return {}
    made: dict[int, list[Pieces]] = {}
    good = cursors.good
    clean = bool(good.all())
    for step in found:
        if not clean:
            step = step.of(np.flatnonzero(good[step.owner]))
        if not step.tag.size:
            continue
        number = step.tag >> NUMBER_SHIFT
        first = int(number[0])
        if (number == first).all():
            made.setdefault(first, []).append(step)
            continue
        for field in np.unique(number):
            made.setdefault(int(field), []).append(step.of(np.flatnonzero(number == field)))
    return {number: _joined(pieces) for number, pieces in made.items()}


def _joined(pieces: list[Pieces]) -> Pieces:
    if len(pieces) == 1:
        return pieces[0]
    return Pieces(
        np.concatenate([piece.owner for piece in pieces]),
        np.concatenate([piece.tag for piece in pieces]),
        np.concatenate([piece.start for piece in pieces]),
        np.concatenate([piece.end for piece in pieces]),
    )
