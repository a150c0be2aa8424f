"""Where the items of arrays and maps begin, found before they are read.

An array is a series of blocks, each a number of items (negative: then its size in bytes follows)
and the items, until a block of none. Items of a fixed size and plain numbers are found by
arithmetic, a whole block of every cursor at once; others one after the other, the n-th items of all
cursors in one step. A block cannot count more items than it has bytes left, so that a number in the
data never decides how much memory is taken.

Source: the Avro 1.12 specification, "Arrays" and "Maps".
"""

from __future__ import annotations

import numpy as np

from penstock.formats.avro.schema import (
    Decimal,
    Enum,
    Fixed,
    Items,
    Named,
    Node,
    Primitive,
    Record,
    Union,
    size_fixed,
    size_min,
)
from penstock.formats.limits import STEPS_MAX
from penstock.formats.vectorised.cursor import ENDS_EARLY, Cursors, Longs, numbered

Found = list[tuple[Longs, Longs]]
_STRING = Primitive(kind="string")


def find_items(cursors: Cursors, parts: tuple[Node, ...], where: str) -> tuple[Longs, Cursors]:
    """The owner of each item (in order), and a cursor at each one; moves the cursors behind.

    Args:
        parts: what an item is made of: the item, or key and value of a map's entry.
    """
    found = _blocks(cursors, parts, where)
    owner = np.concatenate([owners for owners, _ in found]) if found else np.zeros(0, np.int64)
    start = np.concatenate([starts for _, starts in found]) if found else np.zeros(0, np.int64)
    keep = cursors.good[owner]
    owner, start = owner[keep], start[keep]
    order = np.lexsort((start, owner))
    owner, start = owner[order], start[order]
    return owner, cursors.within(start, cursors.end[owner])


def _blocks(cursors: Cursors, parts: tuple[Node, ...], where: str) -> Found:
    found: Found = []
    label = f"field {where}: "
    rows = np.flatnonzero(cursors.good)
    for _ in range(STEPS_MAX):
        if not rows.size:
            return found
        part = cursors.at(rows)
        count = _block_head(part, sum(map(size_min, parts)), label)
        found.extend((rows[owner], start) for owner, start in _items(part, count, parts, where))
        cursors.put(rows, part)
        rows = rows[(count > 0) & part.good]
    cursors.fail_at(rows, f"{label}more than {STEPS_MAX} blocks")
    return found


def _block_head(part: Cursors, item_bytes: int, label: str) -> Longs:
    """The number of items in the next block; 0 at the end and for cursors that failed."""
    count = part.zigzag(label)
    sized = np.flatnonzero(count < 0)
    if sized.size:
        some = part.at(sized)
        size = some.zigzag(label)
        some.fail((size < 0) | (size > some.end - some.position), f"{label}{ENDS_EARLY}")
        part.put(sized, some)
        # The smallest number has no opposite; it is refused below like any that is too large.
        count = np.where(count == np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.abs(count))
    wrong = count > (part.end - part.position) // max(1, item_bytes)
    part.fail(wrong & part.good, f"{label}{ENDS_EARLY}")
    return np.where(part.good, count, 0)


def _items(part: Cursors, count: Longs, parts: tuple[Node, ...], where: str) -> Found:
    if len(parts) == 1:
        size = size_fixed(parts[0])
        if size is not None:
            return [_fixed_items(part, count, size)]
        if _is_varint(parts[0]):
            return [_varint_items(part, count, where)]
    return _single_items(part, count, parts, where)


def _fixed_items(part: Cursors, count: Longs, size: int) -> tuple[Longs, Longs]:
    owner, number = numbered(count)
    start = part.position[owner] + number * size
    part.advance(count * size, "")
    return owner, start


def _varint_items(part: Cursors, count: Longs, where: str) -> tuple[Longs, Longs]:
    ends = part.octets.varint_ends
    first = np.searchsorted(ends, part.position)
    # Behind the bytes are zeros, each of which ends a number: the last index is always there.
    last = np.minimum(first + count, ends.size) - 1
    behind = np.where(count > 0, ends[np.maximum(last, 0)] + 1, part.position)
    wrong = behind > part.end
    part.fail(wrong, f"field {where}: {ENDS_EARLY}")
    count = np.where(wrong, 0, count)
    owner, number = numbered(count)
    start = np.where(number == 0, part.position[owner], ends[first[owner] + number - 1] + 1)
    part.position = np.where(part.good, behind, part.position)
    return owner, start


def _single_items(part: Cursors, count: Longs, parts: tuple[Node, ...], where: str) -> Found:
    found: Found = []
    rows = np.flatnonzero(count > 0)
    for step in range(STEPS_MAX):
        if not rows.size:
            return found
        some = part.at(rows)
        found.append((rows, some.position))
        for node in parts:
            skip(node, some, where)
        part.put(rows, some)
        rows = rows[some.good & (count[rows] > step + 1)]
    part.fail_at(rows, f"field {where}: more than {STEPS_MAX} items")
    return found


def _is_varint(node: Node) -> bool:
    return isinstance(node, Enum) or (isinstance(node, Primitive) and node.kind in ("int", "long"))


def skip(node: Node, cursors: Cursors, where: str) -> None:
    """Move the cursors behind a value, looking only at what says where that is."""
    label = f"field {where}: "
    size = size_fixed(node)
    if size is not None:
        cursors.advance(size, label)
        return
    match node:
        case Primitive(kind="null"):
            return
        case Primitive(kind="int" | "long") | Enum():
            cursors.varint(label)
        case Primitive() | Decimal() | Fixed():
            cursors.sized(label)
        case Items(item=item):
            _blocks(cursors, (item,), where)
        case Named(value=value):
            _blocks(cursors, (_STRING, value), where)
        case Record(fields=fields):
            for name, child in fields:
                skip(child, cursors, f"{where}.{name}")
        case Union():
            _skip_union(node, cursors, where)


def find_branch(node: Union, cursors: Cursors, label: str) -> Longs:
    """The number of the branch that each cursor has; 0 for cursors that fail."""
    return cursors.index(len(node.branches), label, "no such branch of the union")


def _skip_union(node: Union, cursors: Cursors, where: str) -> None:
    index = find_branch(node, cursors, f"field {where}: ")
    for number, branch in enumerate(node.branches):
        rows = np.flatnonzero(cursors.good & (index == number))
        if rows.size:
            part = cursors.at(rows)
            skip(branch, part, where)
            cursors.put(rows, part)
