"""Where every record of many batches starts, without stepping through them one by one.

Records are chained: each says how long it is, and the next one follows. Following the chain in
Python costs 60 to 130 ns a record, more than everything else together. So the starts are
guessed for all records at once, and the guess is *proved* before it is used: if the first guess
is the true first start, every guessed record ends where the next guess begins, and the last one
ends where its batch does, then by induction all of them are the records.

1. **Runs.** Records of one size follow at one stride. Compare the length bytes along the stride.
   Fixed-size messages; about 3 ns a record.
2. **Marks.** Most records end in `00` (no headers) and have `00` (attributes) after the one or
   two bytes of the next length: `00 LL 00` or `00 LL LL 00`. Mark where the bytes say so, over
   all batches at once, and check the links. 20 to 30 ns a record of 100 bytes.
3. **Steps.** Where marks miss a record (it has headers) or are too many (values full of zeros),
   step through that batch, jumping along stretches of marks that do link up.

Whatever the bytes, the result is the chain or `CorruptBatch`; the guess only decides how fast.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.varints import read_ints, read_lengths
from penstock.records.errors import CorruptBatch
from penstock.records.header import HEADER_BYTES

RUN_RECORDS_MIN: Final = 48
"""A shorter run says that the records are not of one size."""
RUN_BATCH_RECORDS_MIN: Final = 256
RUN_WINDOW_RECORDS: Final = 16_384
MARKED_RECORD_BYTES_MAX: Final = 512
"""Marking costs by the byte and stepping by the record; above this size stepping is cheaper."""
MARKED_RECORDS_MIN: Final = 128
MARKED_BLOCK_BYTES: Final = 1 << 17
MARKS_SHARE_MAX: Final = 2
"""More marks than this for one record, and the values are full of zeros."""
LINKED_SHARE_MIN: Final = 4
"""Fewer than three linked marks for four records, and plain stepping is as fast."""
RECORD_BYTES_MIN: Final = 7

_STEPS: Final = tuple((b >> 1) + 1 if b < 128 else 2 + ((b & 0x7F) >> 1) for b in range(256))


def record_bodies(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return where every record begins behind its length field, and where it ends.

    Batch `i` has `counts[i]` records that fill `data[begins[i]:ends[i]]`; the sections are in
    ascending order and do not overlap; no count is zero.

    Raises:
        CorruptBatch: the records of a batch do not fill its section exactly.
    """
    starts = np.empty(int(counts.sum()), np.int64)
    done, filled = _take_runs(data, begins, ends, counts, starts)
    if done < counts.size:
        begins, ends, counts = begins[done:], ends[done:], counts[done:]
        left = starts[filled:]
        section_bytes = int(ends[-1] - begins[0])
        if left.size < MARKED_RECORDS_MIN or section_bytes > MARKED_RECORD_BYTES_MAX * left.size:
            _step_all(data, begins, ends, counts, left)
        else:
            found = _take_marks(data, begins, ends, counts, left)
            if found is not None and done == 0:
                return found
    length, bodies = read_ints(data, starts)
    return bodies, bodies + length


def _take_runs(
    data: Bytes, begins: Ints, ends: Ints, counts: Ints, starts: Ints
) -> tuple[int, int]:
    """Fill in batches from the first on while they are made of runs; return batches, records."""
    filled = 0
    for index, count in enumerate(counts.tolist()):
        target = starts[filled : filled + count]
        if count < RUN_BATCH_RECORDS_MIN or not _is_runs(
            data, int(begins[index]), int(ends[index]), target
        ):
            return index, filled
        filled += count
    return counts.size, filled


def _is_runs(data: Bytes, position: int, end: int, target: Ints) -> bool:
    filled, count, window = 0, target.size, RUN_WINDOW_RECORDS
    while filled < count:
        length, size = _length(data, position, end, filled)
        stride = length + size
        run = min(count - filled, (end - position) // stride, window)
        same = data[position : position + run * stride : stride] == data[position]
        for index in range(1, size):
            same &= data[position + index : end : stride][:run] == data[position + index]
        if not same.all():
            run = int(same.argmin())
            if run < RUN_RECORDS_MIN:
                return False
        target[filled : filled + run] = np.arange(run) * stride + position
        filled += run
        position += run * stride
        window = 4 * run  # a wrong guess costs no more than a few times what was found
        if position == end and filled < count:
            break
    if position != end or filled != count:
        raise _misfit(position, end, filled)
    return True


def _take_marks(
    data: Bytes, begins: Ints, ends: Ints, counts: Ints, target: Ints
) -> tuple[Ints, Ints] | None:
    """Fill in all batches by their marks; return the records' bodies if no mark was wrong."""
    marks = _marks(data, begins, ends, MARKS_SHARE_MAX * target.size)
    if marks.size == 0:
        _step_all(data, begins, ends, counts, target)
        return None
    length, bodies = read_lengths(data, marks)
    links = bodies + length
    firsts = np.concatenate(([0], np.cumsum(counts)))
    if _all_linked(marks, links, begins, ends, firsts):
        target[:] = marks
        return bodies, links
    marks, links = _linked_to(marks, links, begins, int(ends[-1]))
    if _all_linked(marks, links, begins, ends, firsts):
        target[:] = marks
        return None
    bounds = np.searchsorted(marks, np.append(begins, ends[-1])).tolist()
    edges = firsts.tolist()
    for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        low, high = bounds[index], bounds[index + 1]
        into = target[edges[index] : edges[index + 1]]
        _follow(data, marks[low:high], links[low:high], begin, end, into)
    return None


def _marks(data: Bytes, begins: Ints, ends: Ints, marks_max: int) -> Ints:
    """Positions that look like starts, all of `begins` among them, ascending; none if too many."""
    high = int(ends[-1])
    pieces: list[Ints] = []
    count = 0
    for low in range(int(begins[0]) + RECORD_BYTES_MIN, high - 2, MARKED_BLOCK_BYTES):
        piece = _marks_of_block(data, low, min(low + MARKED_BLOCK_BYTES, high - 2))
        pieces.append(piece)
        count += piece.size
        if count > marks_max + HEADER_BYTES * begins.size:
            return np.empty(0, np.int64)
    if begins.size > 1:
        pieces = [_outside_gaps(np.concatenate(pieces), begins, ends)]
    marks = np.concatenate([begins, *pieces])
    if begins.size > 1:
        marks.sort(kind="stable")
    return marks if marks.size <= marks_max else np.empty(0, np.int64)


def _marks_of_block(data: Bytes, low: int, high: int) -> Ints:
    size = high - low
    bits = np.empty((size + 7) // 8 * 8, np.uint8)
    bits[size:] = 1
    inner = bits[:size]
    np.minimum(data[low + 1 : high + 1], data[low + 2 : high + 2], out=inner)
    inner |= data[low - 1 : high - 1]
    # Now zeros are marks. Few bytes among many are found faster by words, then within those.
    marked = (bits == 0).view(np.uint64)
    words = np.flatnonzero(marked != 0)
    within = np.flatnonzero(marked.take(words).view(np.bool_))
    marks: Ints = words.take(within >> 3)
    marks <<= 3
    marks += within & 7
    marks += low
    return marks


def _outside_gaps(marks: Ints, begins: Ints, ends: Ints) -> Ints:
    """Drop the marks between batches, and those so near a begin that they can be no start."""
    change = np.zeros(marks.size + 1, np.int64)
    np.add.at(change, np.searchsorted(marks, ends[:-1]), 1)
    np.add.at(change, np.searchsorted(marks, begins[1:] + RECORD_BYTES_MIN), -1)
    outside: Ints = marks[np.cumsum(change)[:-1] == 0]
    return outside


def _linked_to(marks: Ints, links: Ints, begins: Ints, end: int) -> tuple[Ints, Ints]:
    """Drop the marks that neither begin a batch nor follow from another mark."""
    low = int(begins[0])
    reached = np.zeros(end + 1 - low, np.bool_)
    reached[np.clip(links, low, end) - low] = True
    reached[begins - low] = True
    kept = reached[marks - low]
    return marks[kept], links[kept]


def _all_linked(marks: Ints, links: Ints, begins: Ints, ends: Ints, firsts: Ints) -> bool:
    if marks.size != firsts[-1] or not np.array_equal(marks[firsts[:-1]], begins):
        return False
    expected = np.empty_like(marks)
    expected[:-1] = marks[1:]
    expected[firsts[1:] - 1] = ends
    return np.array_equal(links, expected)


def _follow(data: Bytes, marks: Ints, links: Ints, begin: int, end: int, into: Ints) -> None:
    """Fill in one batch: along stretches of linked marks, and by steps where marks miss."""
    broken = np.flatnonzero(links[:-1] != marks[1:]).tolist()
    linked = marks.size - len(broken)
    if linked * LINKED_SHARE_MIN < into.size * (LINKED_SHARE_MIN - 1):
        _step(data, begin, end, into)
        return
    broken.append(marks.size - 1)
    filled, count, mark = 0, into.size, 0
    while True:
        last = broken[bisect_left(broken, mark)]
        stretch = last + 1 - mark
        if filled + stretch > count:
            raise _misfit(int(marks[last]), end, count)
        into[filled : filled + stretch] = marks[mark : last + 1]
        filled += stretch
        position = _next(data, int(marks[last]), end, filled - 1)
        while True:
            if filled == count or not begin < position < end:
                if filled != count or position != end:
                    raise _misfit(position, end, filled)
                return
            mark = int(np.searchsorted(marks, position))
            if mark < marks.size and marks[mark] == position:
                break
            into[filled] = position
            filled += 1
            position = _next(data, position, end, filled - 1)


def _step_all(data: Bytes, begins: Ints, ends: Ints, counts: Ints, target: Ints) -> None:
    filled = 0
    for begin, end, count in zip(begins.tolist(), ends.tolist(), counts.tolist(), strict=True):
        _step(data, begin, end, target[filled : filled + count])
        filled += count


def _step(data: Bytes, begin: int, end: int, into: Ints) -> None:
    """Follow the chain in one tight loop."""
    view = data.data[begin:end]
    size = end - begin
    steps = _STEPS
    starts: list[int] = []
    append = starts.append
    position = 0
    try:
        for _ in range(into.size):
            append(position)
            low = view[position]
            if low < 0x80:
                position += steps[low]
            else:
                high = view[position + 1]
                if high < 0x80:
                    position += steps[low] + (high << 6)
                else:
                    position = _next(view, position, size, len(starts) - 1)
    except IndexError:
        raise _misfit(begin + position, end, len(starts) - 1) from None
    if position != size:
        raise _misfit(begin + position, end, len(starts))
    into[:] = starts
    into += begin


def _length(data: Bytes | memoryview, position: int, end: int, record: int) -> tuple[int, int]:
    """The length field of a record at `position`: its value and its own size."""
    raw = 0
    for index in range(5):
        if position + index >= end:
            break
        byte = int(data[position + index])
        raw |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if raw & 1 or raw >> 1 > end - position:
                break
            return raw >> 1, index + 1
    raise CorruptBatch(
        f"record at byte {position}: its length cannot be, {end - position} follow", record=record
    )


def _next(data: Bytes | memoryview, position: int, end: int, record: int) -> int:
    length, size = _length(data, position, end, record)
    return position + size + length


def _misfit(position: int, end: int, passed: int) -> CorruptBatch:
    """`passed` records lie before `position`, the last of them beyond `end` if that is."""
    return CorruptBatch(
        f"the records of a batch do not fill it: they end at byte {position}, it ends at {end}",
        record=passed - (position > end),
    )
