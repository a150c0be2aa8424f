"""Readers of JSON leaves, which check and convert a value and write it to its column.

A reader starts at the first byte of a value that is not null. It returns the position after the
value, or LOOK if the value is not certainly valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.json_layout import (
    ANY,
    BOOLEAN,
    BOUND_HIGH,
    BOUND_LOW,
    DATE,
    DECIMAL,
    DIGITS_MAX,
    DOUBLE,
    EXACT,
    FLAGS,
    FLOAT,
    HEAP,
    HEAP_BIT,
    HIGH,
    INTEGER,
    KIND,
    LACKING,
    LOOK,
    LOW,
    MARK_ROW,
    MARK_SINGLE,
    MARK_TEXT,
    MARK_WORD,
    MARKS,
    NTZ,
    NULLABLE,
    ROOM,
    SCALE,
    START_SHIFT,
    TABLE,
    TEXT,
    TEXT_TOO,
    TIMESTAMP,
    WORDS,
    ZONE,
    ZONE_UTC,
)
from penstock.kernels.json_scan import byte_at, digit_run, plain_end, scan_number, unescape
from penstock.kernels.json_times import read_days, read_time
from penstock.kernels.types import READ, int64

_TENS = np.array([10**power for power in range(19)], np.int64)
_POWERS = np.array([10.0**power for power in range(23)])
_EXACT = 1 << 53
_EXACT_SINGLE = 1 << 24
_EXACT_SINGLE_POWER = 10


@kernel(f"int64({READ}, int64, int64, int64)", inlined=True)
def literal_end(data: Any, at: int, end: int, first: int) -> Any:
    """Return the position after `true`, `false` or `null`, whose first byte is `first`; or LOOK."""
    if first == 116:
        whole = at + 4 <= end and data[at + 1] == 114 and data[at + 2] == 117
        return at + 4 if whole and data[at + 3] == 101 else LOOK
    if first == 110:
        whole = at + 4 <= end and data[at + 1] == 117 and data[at + 2] == 108
        return at + 4 if whole and data[at + 3] == 108 else LOOK
    if first != 102:
        return LOOK
    whole = at + 5 <= end and data[at + 1] == 97 and data[at + 2] == 108
    return at + 5 if whole and data[at + 3] == 115 and data[at + 4] == 101 else LOOK


@kernel(f"int64({READ}, int64, int64, uint8[::1], int64[::1])", inlined=True)
def skip_scalar(data: Any, at: int, end: int, heap: Any, state: Any) -> Any:
    """Return the position after a text, number or literal; or LOOK."""
    first = byte_at(data, at, end)
    if first == 34:
        stop = plain_end(data, at + 1, end)
        if byte_at(data, stop, end) == 34:
            return stop + 1
        return unescape(data, at + 1, end, heap, state[HEAP])[0]
    if first == 45 or 48 <= first <= 57:
        whole, _, behind = scan_number(data, at + (first == 45), end)
        right = whole > 0 and behind <= end and behind - at <= DIGITS_MAX
        return behind if right else LOOK
    return literal_end(data, at, end, first)


@kernel(f"int64({READ}, int64, int64, int64[::1], int64, uint8[::1], int64[::1])", inlined=True)
def read_text(
    data: Any, at: int, end: int, words: Any, word: int, heap: Any, state: Any
) -> Any:  # fmt: skip
    if byte_at(data, at, end) != 34:
        return LOOK
    at += 1
    stop = plain_end(data, at, end)
    if byte_at(data, stop, end) == 34:
        words[word] = at << START_SHIFT | stop - at
        return stop + 1
    start = state[HEAP]
    stop, size = unescape(data, at, end, heap, start)
    if stop > 0:
        words[word] = HEAP_BIT | start << START_SHIFT | size - start
        state[HEAP] = size
    return stop


@kernel(f"int64({READ}, int64, int64, int64[::1], int64, {TABLE}, int64)", inlined=True)
def read_integer(
    data: Any, at: int, end: int, words: Any, word: int, nodes: Any, node: int
) -> Any:  # fmt: skip
    negative = byte_at(data, at, end) == 45
    at += negative
    value, whole = digit_run(data, at, end)
    digits = whole - at
    # A number of nineteen digits that does not fit has become negative.
    if digits == 0 or digits > 19 or value < 0 or (digits > 1 and data[at] == 48):
        return LOOK
    following = byte_at(data, whole, end)
    if following == 46 or following | 32 == 101:
        return LOOK
    if negative:
        value = -value
    if value < nodes[node, LOW] or value > nodes[node, HIGH]:
        return LOOK
    words[word] = value
    return whole


@kernel("Tuple((uint64, uint64))(uint64, uint64, uint64)")
def times_ten(high: Any, low: Any, digit: Any) -> Any:
    """Return a number of 128 bits, as high and low word, times ten plus a digit."""
    ten, half, mask = np.uint64(10), np.uint64(32), np.uint64(0xFFFFFFFF)
    bottom = (low & mask) * ten + digit
    top = (low >> half) * ten + (bottom >> half)
    return high * ten + (top >> half), (top << half) | (bottom & mask)


@kernel(f"Tuple((uint64, uint64))({READ}, int64, int64, int64, int64, int64)")
def wide_digits(data: Any, at: int, whole: int, behind: int, scale: int, up: int) -> Any:
    """Return a number's digits, with `scale` of them after the point, as high and low word.

    The digits before the point are at `at` to `whole`; those after it end at `behind`. `up` is
    added.
    """
    high, low = np.uint64(0), np.uint64(0)
    for step in range(at, whole):
        high, low = times_ten(high, low, np.uint64(data[step] - 48))
    for step in range(whole + 1, whole + 1 + scale):
        digit = np.uint64(data[step] - 48) if step < behind else np.uint64(0)
        high, low = times_ten(high, low, digit)
    low += np.uint64(up)
    if low < np.uint64(up):
        high += np.uint64(1)
    return high, low


@kernel("int64(int64[::1], int64, uint64, uint64, boolean, uint64, uint64)")
def put_wide(
    words: Any, word: int, high: Any, low: Any, negative: bool, bound_high: Any, bound_low: Any
) -> Any:
    """Write a number of 128 bits and return 0; return LOOK if it is not below the bound."""
    if high > bound_high or (high == bound_high and low >= bound_low):
        return LOOK
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(low == 0)
    words[word] = int64(low)
    words[word + 1] = int64(high)
    return 0


@kernel(f"Tuple((int64, int64))({READ}, int64, int64, int64, int64)", inlined=True)
def narrow_digits(data: Any, at: int, whole: int, behind: int, scale: int) -> Any:
    """Return a number's digits, with `scale` of them after the point; and 1 if the rest rounds up.

    The digits before the point are at `at` to `whole`; those after it end at `behind`.
    """
    value, _ = digit_run(data, at, whole)
    kept = min(scale, max(0, behind - whole - 1))
    part, _ = digit_run(data, whole + 1, whole + 1 + kept)
    up = behind - whole - 1 > scale and data[whole + 1 + scale] >= 53
    return (value * _TENS[kept] + part) * _TENS[scale - kept], int64(up)


@kernel(
    f"int64({READ}, int64, int64, int64, boolean, int64[::1], int64, {TABLE}, int64)", inlined=True
)
def put_digits(
    data: Any, at: int, whole: int, behind: int, negative: bool, words: Any, word: int,
    nodes: Any, node: int,
) -> Any:  # fmt: skip
    scale = nodes[node, SCALE]
    bounds = np.uint64(nodes[node, BOUND_HIGH]), np.uint64(nodes[node, BOUND_LOW])
    if whole - at + scale <= 18:
        value, up = narrow_digits(data, at, whole, behind, scale)
        return put_wide(words, word, np.uint64(0), np.uint64(value + up), negative, *bounds)
    up = int64(behind - whole - 1 > scale and data[whole + 1 + scale] >= 53)
    high, low = wide_digits(data, at, whole, behind, scale, up)
    return put_wide(words, word, high, low, negative, *bounds)


@kernel(f"boolean({READ}, int64, int64)", inlined=True)
def only_zeros(data: Any, at: int, end: int) -> bool:
    for step in range(at, end):
        if data[step] != 48:
            return False
    return True


@kernel(f"int64({READ}, int64, int64, int64[::1], int64, {TABLE}, int64)", inlined=True)
def read_decimal(
    data: Any, at: int, end: int, words: Any, word: int, nodes: Any, node: int
) -> Any:  # fmt: skip
    quoted = int64(byte_at(data, at, end) == 34)
    if quoted > nodes[node, TEXT_TOO]:
        return LOOK
    at += quoted
    negative = byte_at(data, at, end) == 45
    at += negative
    whole, behind, last = scan_number(data, at, end)
    if whole < 0 or last != behind or behind - at > 38:
        return LOOK
    if quoted and byte_at(data, behind, end) != 34:
        return LOOK
    scale = nodes[node, SCALE]
    digits = whole - at if data[at] != 48 else 0
    if digits + scale > 38:
        return LOOK
    if nodes[node, EXACT] and not only_zeros(data, whole + 1 + scale, behind):
        return LOOK
    if put_digits(data, at, whole, behind, negative, words, word, nodes, node) < 0:
        return LOOK
    return behind + quoted


@kernel(f"int64(int64, int64, int64, int64, boolean, {TABLE}, int64[::1])")
def put_mark(
    word: int, start: int, stop: int, row: int, single: bool, marks: Any, state: Any
) -> Any:  # fmt: skip
    """Mark a number, which the caller converts exactly; return the position after it, or ROOM."""
    mark = state[MARKS]
    if mark == marks.shape[0]:
        state[LACKING] = -1
        return ROOM
    marks[mark, MARK_WORD] = word
    marks[mark, MARK_TEXT] = start << START_SHIFT | stop - start
    marks[mark, MARK_ROW] = row
    marks[mark, MARK_SINGLE] = single
    state[MARKS] = mark + 1
    return stop


@kernel(
    f"int64({READ}, int64, int64, float64[::1], int64, int64, {TABLE}, int64[::1], boolean)",
    inlined=True,
)
def read_real(
    data: Any, at: int, end: int, reals: Any, word: int, row: int, marks: Any, state: Any,
    single: bool,
) -> Any:  # fmt: skip
    """Read a number as the nearest double, or if `single` as the nearest single."""
    start = at
    negative = byte_at(data, at, end) == 45
    at += negative
    whole, behind, last = scan_number(data, at, end)
    if whole < 0 or last > end or last - at > DIGITS_MAX:
        return LOOK
    value, _ = digit_run(data, at, whole)
    places = max(0, behind - whole - 1)
    part, _ = digit_run(data, whole + 1, behind)
    short = behind - at <= 18 and last == behind
    value = value * _TENS[places] + part if short else int64(0)
    hard = value >= _EXACT
    if single:
        hard = value >= _EXACT_SINGLE or places > _EXACT_SINGLE_POWER
    if hard or not short:
        return put_mark(word, start, last, row, single, marks, state)
    made = value / _POWERS[places]
    if single:
        made = np.float64(np.float32(value) / np.float32(_POWERS[places]))
    # The integer -0 is zero, as in Spark's `from_json`.
    reals[word] = -made if negative and (value != 0 or last != whole) else made
    return last


@kernel(f"int64({READ}, int64, int64, int64[::1], int64, {TABLE}, int64)", inlined=True)
def read_moment(
    data: Any, at: int, end: int, words: Any, word: int, nodes: Any, node: int
) -> Any:  # fmt: skip
    if byte_at(data, at, end) != 34:
        return LOOK
    if nodes[node, KIND] == DATE:
        days = read_days(data, at + 1, end)
        if days < -1_000_000 or byte_at(data, at + 11, end) != 34:
            return LOOK
        words[word] = days
        return at + 12
    behind, micros, east = read_time(data, at + 1, end, nodes[node, EXACT] != 0)
    if behind < 0:
        return LOOK
    if east == 1_000_000 or nodes[node, KIND] == NTZ:
        if nodes[node, KIND] == TIMESTAMP and nodes[node, ZONE] != ZONE_UTC:
            return LOOK
        east = 0
    words[word] = micros - east * 1_000_000
    return behind


@kernel(
    f"int64({READ}, int64, int64, int64[::1], int64, {TABLE}, int64, uint8[::1], int64[::1])",
    inlined=True,
)
def read_any(
    data: Any, at: int, end: int, words: Any, word: int, nodes: Any, node: int, heap: Any,
    state: Any,
) -> Any:  # fmt: skip
    """Read a text, number or literal (also null) as its JSON text."""
    if data[at] == 110 and not nodes[node, NULLABLE]:
        return LOOK
    behind = skip_scalar(data, at, end, heap, state)
    words[word] = at << START_SHIFT | behind - at
    return behind


@kernel(
    f"int64({READ}, int64, int64, {TABLE}, int64, int64, int64, int64[::1], float64[::1],"
    f" uint8[::1], uint8[::1], {TABLE}, int64[::1])",
    inlined=True,
)
def read_leaf(
    data: Any, at: int, end: int, nodes: Any, node: int, index: int, row: int, words: Any,
    reals: Any, flags: Any, heap: Any, marks: Any, state: Any,
) -> Any:  # fmt: skip
    first = byte_at(data, at, end)
    kind = nodes[node, KIND]
    if first == 110 and kind != ANY:
        return literal_end(data, at, end, first) if nodes[node, NULLABLE] else LOOK
    word = nodes[node, WORDS] + index
    if kind == TEXT:
        behind = read_text(data, at, end, words, word, heap, state)
    elif kind == INTEGER:
        behind = read_integer(data, at, end, words, word, nodes, node)
    elif kind in (DOUBLE, FLOAT):
        behind = read_real(data, at, end, reals, word, row, marks, state, kind == FLOAT)
    elif kind == DECIMAL:
        behind = read_decimal(data, at, end, words, word + index, nodes, node)
    elif kind == BOOLEAN:
        words[word] = int64(first == 116)
        behind = LOOK if first != 116 and first != 102 else literal_end(data, at, end, first)
    elif kind == ANY:
        behind = read_any(data, at, end, words, word, nodes, node, heap, state)
    elif kind >= TIMESTAMP:
        behind = read_moment(data, at, end, words, word, nodes, node)
    else:
        behind = LOOK
    if behind >= 0:
        flags[nodes[node, FLAGS] + index] = 1
    return behind
