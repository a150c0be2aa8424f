"""Whether bytes are UTF-8, for all values of an array at once.

Every byte must be what the bytes before it call for, within the same value: a lead byte calls for
one to three continuation bytes, and some lead bytes allow only part of them as the second byte.

Source: RFC 3629, section 4.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def _needs() -> npt.NDArray[np.int8]:
    """How many bytes must follow a lead byte; -1 for continuation bytes, -2 for no such byte."""
    needs = np.full(256, -2, np.int8)
    needs[0x00:0x80] = 0
    needs[0x80:0xC0] = -1
    needs[0xC2:0xE0] = 1
    needs[0xE0:0xF0] = 2
    needs[0xF0:0xF5] = 3
    return needs


_NEEDS: Final = _needs()
# Lead byte, smallest and largest second byte.
_SECOND: Final = ((0xE0, 0xA0, 0xBF), (0xED, 0x80, 0x9F), (0xF0, 0x90, 0xBF), (0xF4, 0x80, 0x8F))


def invalid_texts(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Which values of an array of type binary without nulls are not UTF-8; None for none.

    Shapes: one flag per value.
    """
    count = len(values)
    held = values.buffers()[2] if count else None
    if held is None:
        return None
    offsets = np.frombuffer(values.buffers()[1], np.int32)[
        values.offset : values.offset + count + 1
    ]
    first = int(offsets[0])
    content = np.frombuffer(held, np.uint8)[first : offsets[-1]]
    if not content.size or content.max() < 0x80:
        return None
    wrong = _wrong_bytes(content, offsets.astype(np.int64) - first)
    if not wrong.any():
        return None
    flags = np.zeros(count, np.bool_)
    flags[np.searchsorted(offsets[1:] - first, np.flatnonzero(wrong), "right")] = True
    return flags


def _wrong_bytes(
    content: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """The bytes at fault. A value that ends within a character is at fault at its lead byte."""
    needs = _NEEDS[content]
    expected = np.zeros(content.size, np.bool_)
    wrong: npt.NDArray[np.bool_] = needs == -2
    lead = np.flatnonzero(needs > 0)
    end = offsets[1:][np.searchsorted(offsets[1:], lead, "right")]
    short = lead + needs[lead] >= end
    wrong[lead[short]] = True
    lead = lead[~short]
    for step in (1, 2, 3):
        expected[lead[needs[lead] >= step] + step] = True
    wrong |= expected != (needs == -1)
    for byte, smallest, largest in _SECOND:
        at = lead[content[lead] == byte]
        wrong[at] |= (content[at + 1] < smallest) | (content[at + 1] > largest)
    # A continuation that a short character left unexpected lies in that same value.
    return wrong
