"""The cursors of a batch of values, and what can be read at them.

All values of a batch lie behind each other in one buffer. A cursor is one value (or an item or a
message within one): a position, an end, and a problem, which is 0 while nothing is wrong. Every
read moves all cursors at once. A cursor that goes wrong keeps its first problem and is sent to the
zeros behind the buffer, where whatever is read next is zero or empty, so that no read needs to
know which cursors are still good and no cursor can disturb another.

Source: the layout of Avro's and Protobuf's varints, and the usual ways to decode them without
branches by masks of whole words.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.base.errors import InvalidError
from penstock.formats.limits import BATCH_BYTES_MAX

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

MARGIN: Final = 32
"""Zeros before and after the bytes, so that a word can be read at any position."""
ENDS_EARLY: Final = "ends too early"
ABSENT: Final = 1
"""The problem of a cursor without a value: nothing is wrong, and nothing is there."""
_HIGH: Final = np.uint64(0x8080808080808080)
_SEVENS: Final = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE: Final = np.uint64(1)
_WORD_BYTES: Final = 8
_VARINT_BYTES_MAX: Final = 10


class Problems:
    """The messages that the numbers of problems stand for."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0, "absent": ABSENT}

    def number(self, words: str) -> int:
        return self._numbers.setdefault(words, len(self._numbers))

    def texts(self, numbers: npt.NDArray[np.int32]) -> pa.Array:
        """The messages of cursors; null for those that are fine or absent."""
        table = pa.array([None, None, *list(self._numbers)[2:]], pa.string())
        return table.take(pa.array(numbers))


class Octets:
    """The bytes of a batch, with zeros around them."""

    def __init__(self, content: npt.NDArray[np.uint8]) -> None:
        if content.size > BATCH_BYTES_MAX:
            raise InvalidError(
                f"a batch of {content.size} bytes of values is more than {BATCH_BYTES_MAX}: "
                "lower spark.sql.execution.arrow.maxRecordsPerBatch"
            )
        whole = (content.size + 2 * MARGIN + _WORD_BYTES - 1) // _WORD_BYTES * _WORD_BYTES
        self.data: npt.NDArray[np.uint8] = np.zeros(whole, np.uint8)
        self.data[MARGIN : MARGIN + content.size] = content
        self.sink = MARGIN + content.size
        self._words: Words = self.data.view("<u8")

    def word(self, at: Longs) -> Words:
        """The eight bytes at each position, little endian."""
        quotient = at >> 3
        shift = ((at & 7) << 3).view(np.uint64)
        low = self._words[quotient] >> shift
        high = (self._words[quotient + 1] << _ONE) << (np.uint64(63) - shift)
        made: Words = low | high
        return made

    @cached_property
    def varint_ends(self) -> Longs:
        """The positions of all bytes that end a varint."""
        return np.flatnonzero(self.data < 0x80)


class Cursors:
    """Cursors into one buffer. Cursors are in the order of their positions."""

    __slots__ = ("end", "octets", "position", "problem", "problems")

    def __init__(
        self, octets: Octets, problems: Problems, position: Longs, end: Longs, problem: Any = None
    ) -> None:
        self.octets = octets
        self.problems = problems
        self.position = position
        self.end = end
        self.problem: npt.NDArray[np.int32] = (
            np.zeros(position.size, np.int32) if problem is None else problem
        )

    @classmethod
    def of(cls, values: pa.BinaryArray) -> Self:
        """A cursor for each value of an array of type binary; null ones are absent."""
        offsets = np.frombuffer(values.buffers()[1], np.int32)[
            values.offset : values.offset + len(values) + 1
        ].astype(np.int64)
        if not len(values):
            offsets = np.zeros(1, np.int64)
        held = values.buffers()[2]
        content = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
        octets = Octets(content[offsets[0] : offsets[-1]])
        offsets += MARGIN - offsets[0]
        cursors = cls(octets, Problems(), offsets[:-1].copy(), offsets[1:].copy())
        if values.null_count:
            cursors._stop(values.is_null().to_numpy(zero_copy_only=False), ABSENT)
        return cursors

    def __len__(self) -> int:
        return self.position.size

    @property
    def good(self) -> Flags:
        good: Flags = self.problem == 0
        return good

    def at(self, rows: Longs) -> Cursors:
        """Some of the cursors, as cursors of their own."""
        return Cursors(
            self.octets, self.problems, self.position[rows], self.end[rows], self.problem[rows]
        )

    def put(self, rows: Longs, cursors: Cursors) -> None:
        """Take back what `at` gave."""
        self.position = _replaced(self.position, rows, cursors.position)
        self.end = _replaced(self.end, rows, cursors.end)
        self.problem = _replaced(self.problem, rows, cursors.problem)

    def within(self, start: Longs, end: Longs) -> Cursors:
        """New cursors of the same buffer."""
        return Cursors(self.octets, self.problems, start, end)

    def fail(self, wrong: Flags, words: str) -> None:
        """Give the cursors that are wrong a problem, unless they have one."""
        if wrong.any():
            self._stop(wrong, self.problems.number(words))

    def fail_at(self, rows: Longs, words: str) -> None:
        """Give the cursors of these rows a problem, unless they have one."""
        wrong = np.zeros(len(self), np.bool_)
        wrong[rows] = True
        self.fail(wrong, words)

    def _stop(self, wrong: Flags, number: int) -> None:
        # Made anew: the arrays may be somebody else's too.
        self.problem = np.where(wrong & (self.problem == 0), np.int32(number), self.problem)
        self.position = np.where(wrong, self.octets.sink, self.position)
        self.end = np.where(wrong, self.octets.sink, self.end)

    def inherit(self, owner: Longs, cursors: Cursors) -> None:
        """Give each owner the first problem among its parts."""
        wrong = np.flatnonzero(cursors.problem)[::-1]
        if wrong.size:
            found = np.zeros(len(self), np.int32)
            found[owner[wrong]] = cursors.problem[wrong]
            for number in np.unique(found[found != 0]):
                self._stop(found == number, int(number))

    def advance(self, size: Longs | int, where: str) -> Longs:
        """Move by a number of bytes; the positions before. Cursors without that many bytes fail."""
        before = self.position
        wrong = (size > self.end - before) | (np.asarray(size) < 0)
        self.position = before + size
        if wrong.any():
            self.fail(wrong, f"{where}{ENDS_EARLY}")
            before = np.where(wrong, self.octets.sink, before)
        return before

    def varint(self, where: str) -> Words:
        """A number of up to 64 bits in groups of seven, least significant first."""
        first = self.octets.data[self.position]
        if not (first & 0x80).any():
            self.advance(1, where)
            value = first.astype(np.uint64)
            # A cursor at its end has read the first byte of the next one.
            value[self.problem != 0] = 0
            return value
        value, size = _varints(self.octets, self.position)
        # Where the cursor ends before, the bytes looked at are another's and tell nothing.
        whole = self.end - self.position >= _VARINT_BYTES_MAX
        self.fail((size > _VARINT_BYTES_MAX) & whole, f"{where}a number of more than 64 bits")
        size[~self.good] = 1
        self.advance(size, where)
        value[self.problem != 0] = 0
        return value

    def zigzag(self, where: str) -> Longs:
        """A signed number as a varint with the sign in its lowest bit."""
        return unzigzag(self.varint(where))

    def index(self, count: int, where: str, words: str) -> Longs:
        """Read a signed number that must be below `count`; 0 where it is not."""
        index = self.zigzag(where)
        self.fail((index < 0) | (index >= count), f"{where}{words}")
        return np.where(self.good, index, 0)

    def sized(self, where: str) -> tuple[Longs, Longs]:
        """Read a length as a signed number and move behind the bytes it counts; start and size."""
        size = self.zigzag(where)
        self.fail(size < 0, f"{where}a length below zero")
        size = np.where(self.good, size, 0)
        start = self.advance(size, where)
        return start, np.where(self.good, size, 0)


def _replaced(values: Any, rows: Longs, new: Any) -> Any:
    made = values.copy()
    made[rows] = new
    return made


def numbered(counts: Longs) -> tuple[Longs, Longs]:
    """The owner of each of `counts` items, and its number among the owner's items."""
    owner = np.repeat(np.arange(counts.size), counts)
    return owner, np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)


def unzigzag(value: Words) -> Longs:
    return (value >> _ONE).view(np.int64) ^ -((value & _ONE).view(np.int64))


def _varints(octets: Octets, at: Longs) -> tuple[Words, Longs]:
    """Values and sizes of varints; a size above ten is a number that does not end in time."""
    word = octets.word(at)
    ends = ~word & _HIGH
    lowest = ends & (~ends + _ONE)
    mask = lowest ^ (lowest - _ONE)
    size = (np.bitwise_count(mask) >> 3).astype(np.int64)
    value = word & mask & _SEVENS
    for shift, low in ((1, 0x007F007F007F007F), (2, 0x00003FFF00003FFF), (4, 0x000000000FFFFFFF)):
        keep = np.uint64(low)
        value = (value & keep) | ((value & ~keep) >> np.uint64(shift))
    long = np.flatnonzero(ends == 0)
    if long.size:
        ninth = octets.data[at[long] + 8].astype(np.uint64)
        tenth = octets.data[at[long] + 9].astype(np.uint64)
        two = ninth >= 0x80
        value[long] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
        value[long] |= np.where(two, (tenth & _ONE) << np.uint64(63), np.uint64(0))
        size[long] = np.where(two, np.where(tenth > 1, 11, 10), 9)
    return value, size
