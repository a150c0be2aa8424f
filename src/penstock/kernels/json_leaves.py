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
from penstock.kernels.types import READ, int64

# Scanner of JSON tokens: blanks, texts and numbers. It accepts only certainly valid ones.
#
# Source: RFC 8259.


def _classes() -> Any:
    """Return a table by byte: 1 for quotation marks, backslashes and controls; else 0."""
    made = np.zeros(256, np.uint8)
    made[:32] = 1
    made[[34, 92]] = 1
    return made


def _digits() -> Any:
    """Return a table by byte: the value of a hexadecimal digit; 255 for other bytes."""
    made = np.full(256, 255, np.uint8)
    made[48:58] = np.arange(10)
    made[65:71] = made[97:103] = np.arange(10, 16)
    return made


def _escapes() -> Any:
    """Return a table by byte: the character that it means after a backslash; 0 if not allowed."""
    made = np.zeros(256, np.uint8)
    for escape, meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
        made[escape] = meaning
    return made


_STOPS = _classes()
_HEX = _digits()
_ESCAPES = _escapes()


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def byte_at(data: Any, at: int, end: int) -> Any:
    return int64(data[at]) if at < end else 0


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def skip_blanks(data: Any, at: int, end: int) -> Any:
    """Return the position of the next byte that is not a blank."""
    while at < end:
        byte = data[at]
        if byte > 32 or (byte != 32 and byte != 10 and byte != 13 and byte != 9):
            break
        at += 1
    return at


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def plain_end(data: Any, at: int, end: int) -> Any:
    """Return the position of the next byte that ends plain text."""
    while at < end and _STOPS[data[at]] == 0:
        at += 1
    return at


@kernel(f"int64({READ}, int64, int64)")
def hex_unit(data: Any, at: int, end: int) -> Any:
    """Return the number of four hexadecimal digits; or LOOK."""
    if at + 4 > end:
        return LOOK
    unit = 0
    for step in range(4):
        digit = int64(_HEX[data[at + step]])
        if digit > 15:
            return LOOK
        unit = unit << 4 | digit
    return unit


@kernel(f"Tuple((int64, int64))({READ}, int64, int64)")
def code_point(data: Any, at: int, end: int) -> Any:
    """Return the character of a `u` escape and the position after it; LOOK for half a pair."""
    unit = hex_unit(data, at, end)
    if unit < 0xD800 or unit > 0xDFFF:
        return unit, at + 4
    if unit > 0xDBFF or byte_at(data, at + 4, end) != 92 or byte_at(data, at + 5, end) != 117:
        return LOOK, at
    low = hex_unit(data, at + 6, end)
    if low < 0xDC00 or low > 0xDFFF:
        return LOOK, at
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), at + 10


@kernel("int64(uint8[::1], int64, int64)")
def put_utf8(target: Any, at: int, point: int) -> Any:
    if point < 0x80:
        target[at] = point
        return at + 1
    if point < 0x800:
        target[at] = 0xC0 | point >> 6
    elif point < 0x10000:
        target[at] = 0xE0 | point >> 12
    else:
        target[at] = 0xF0 | point >> 18
        at += 1
        target[at] = 0x80 | (point >> 12 & 0x3F)
    if point >= 0x800:
        at += 1
        target[at] = 0x80 | (point >> 6 & 0x3F)
    target[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@kernel(f"Tuple((int64, int64))({READ}, int64, int64, uint8[::1], int64)")
def unescape(data: Any, at: int, end: int, heap: Any, size: int) -> Any:
    """Copy a text, from after its quotation mark, to `heap[size:]`, with its escapes replaced.

    Return the position after its closing quotation mark, and the end of the text in the heap. The
    position is LOOK if the text does not end or has a wrong escape. The heap must have room for all
    bytes of the text.
    """
    while at < end:
        byte = int64(data[at])
        if byte == 34:
            return at + 1, size
        if byte < 32:
            return LOOK, size
        if byte != 92:
            heap[size] = byte
            size += 1
            at += 1
            continue
        kind = byte_at(data, at + 1, end)
        point = int64(_ESCAPES[kind])
        at += 2
        if kind == 117:
            point, at = code_point(data, at, end)
        elif point == 0:
            return LOOK, size
        if point < 0:
            return LOOK, size
        size = put_utf8(heap, size, point)
    return LOOK, size


@kernel(f"Tuple((int64, int64))({READ}, int64, int64)", inlined=True)
def digit_run(data: Any, at: int, end: int) -> Any:
    """Return the number that the digits at `at` form, and the position after them.

    The number is right for up to 18 digits.
    """
    value = int64(0)
    while at < end:
        digit = int64(data[at]) - 48
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        at += 1
    return value, at


@kernel(f"int64({READ}, int64, int64)")
def exponent_end(data: Any, at: int, end: int) -> Any:
    """Return the position after an optional exponent; `end` + 1 if it has no digits."""
    if byte_at(data, at, end) | 32 != 101:
        return at
    at += 1
    sign = byte_at(data, at, end)
    if sign == 43 or sign == 45:
        at += 1
    start = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at if at > start else end + 1


@kernel(f"Tuple((int64, int64, int64))({READ}, int64, int64)", inlined=True)
def scan_number(data: Any, at: int, end: int) -> Any:
    """Return three ends: of the digits before the point, of those after it, and of the number.

    `at` is the position after the sign. The first end is LOOK if there is no valid number.
    """
    start = at
    while at < end and 48 <= data[at] <= 57:
        at += 1
    if at == start or (at > start + 1 and data[start] == 48):
        return LOOK, at, at
    whole = at
    if byte_at(data, at, end) == 46:
        at += 1
        while at < end and 48 <= data[at] <= 57:
            at += 1
        if at == whole + 1:
            return LOOK, at, at
    return whole, at, exponent_end(data, at, end)


# Reader of dates and times in the usual form of ISO 8601; the slow reader reads other forms.
#
# Source: RFC 3339; days from a civil date by Howard Hinnant's `days_from_civil`.


_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_TENS = np.array([10**power for power in range(19)], np.int64)


@kernel(f"int64({READ}, int64)", inlined=True)
def two_digits(data: Any, at: int) -> Any:
    """Return the number of two digits; a negative number if they are not digits."""
    tens, ones = int64(data[at]) - 48, int64(data[at + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -10_000
    return tens * 10 + ones


@kernel("int64(int64, int64, int64)", inlined=True)
def civil_days(year: int, month: int, day: int) -> Any:
    """Return the days since 1970 of a date, whose day may be after the end of its month."""
    year -= month <= 2
    month = month - 3 if month > 2 else month + 9
    of_era = year % 400
    return (
        year // 400 * 146_097
        + of_era * 365
        + of_era // 4
        - of_era // 100
        + (153 * month + 2) // 5
        + day
        - 719_469
    )


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def read_days(data: Any, at: int, end: int) -> Any:
    """Return the days since 1970 of `YYYY-MM-DD`; -10⁹ if the text is not a date."""
    wrong = -1_000_000_000
    if at + 10 > end or data[at + 4] != 45 or data[at + 7] != 45:
        return wrong
    year = two_digits(data, at) * 100 + two_digits(data, at + 2)
    month, day = two_digits(data, at + 5), two_digits(data, at + 8)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return wrong
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _DAYS[month - 1] + leap:
        return wrong
    return civil_days(year, month, day)


@kernel(f"int64({READ}, int64, int64)", inlined=True)
def read_clock(data: Any, at: int, end: int) -> Any:
    """Return the seconds since midnight of `HH:MM:SS`; or LOOK."""
    if at + 8 > end or data[at + 2] != 58 or data[at + 5] != 58:
        return LOOK
    hour, minute, second = two_digits(data, at), two_digits(data, at + 3), two_digits(data, at + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return LOOK
    return hour * 3600 + minute * 60 + second


@kernel(f"Tuple((int64, int64))({READ}, int64, int64, boolean)", inlined=True)
def read_fraction(data: Any, at: int, end: int, exact: bool) -> Any:
    """Return the microseconds of the digits after a point, and the position after them.

    The microseconds are LOOK if there is no digit, or if `exact` and a digit after the sixth is not
    0.
    """
    start, value = at, int64(0)
    while at < end and 48 <= data[at] <= 57:
        if at - start < 6:
            value = value * 10 + int64(data[at]) - 48
        elif exact and data[at] != 48:
            return LOOK, at
        at += 1
    if at == start:
        return LOOK, at
    return value * _TENS[max(0, 6 - (at - start))], at


@kernel(f"Tuple((int64, int64))({READ}, int64, int64)", inlined=True)
def read_zone(data: Any, at: int, end: int) -> Any:
    """Return the seconds east of UTC of `Z` or `+HH:MM`, and the position after it.

    The position is `at` if there is no zone.
    """
    if at < end and data[at] == 90:
        return 0, at + 1
    if at + 6 > end or (data[at] != 43 and data[at] != 45) or data[at + 3] != 58:
        return 0, at
    hour, minute = two_digits(data, at + 1), two_digits(data, at + 4)
    if hour < 0 or hour > 17 or minute < 0 or minute > 59:
        return 0, at
    east = hour * 3600 + minute * 60
    return (east if data[at] == 43 else -east), at + 6


@kernel(f"Tuple((int64, int64, int64))({READ}, int64, int64, boolean)", inlined=True)
def read_time(data: Any, at: int, end: int, exact: bool) -> Any:
    """Read a date with or without a time, from after its quotation mark to the next one.

    Return the position after the closing quotation mark (or LOOK), the local time in microseconds
    since 1970, and the zone in seconds east of UTC. The zone is 10⁶ if the text has none.
    """
    days = read_days(data, at, end)
    if days < -1_000_000:
        return LOOK, 0, 0
    at += 10
    seconds, micros, east = 0, 0, 1_000_000
    if at < end and (data[at] == 84 or data[at] == 32):
        seconds = read_clock(data, at + 1, end)
        at += 9
        if seconds >= 0 and at < end and data[at] == 46:
            micros, at = read_fraction(data, at + 1, end, exact)
        zoned = at
        found, at = read_zone(data, at, end)
        if at > zoned:
            east = found
    if seconds < 0 or micros < 0 or at >= end or data[at] != 34:
        return LOOK, 0, 0
    return at + 1, (days * 86_400 + seconds) * 1_000_000 + micros, east


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
    added to the last digit: 1 to round up, else 0.
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
    """Return a number's digits, with `scale` of them after the point; and 1 to round up, else 0.

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
    """Mark a number for exact conversion by Arrow; return its end, or ROOM if `marks` is full."""
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
