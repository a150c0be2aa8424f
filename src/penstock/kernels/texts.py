"""Conversions between texts and numbers or moments, and appended headers, for transforms.

Moments are milliseconds since 1970 in the ISO calendar. All texts of a format have the same width.
A *line* has the digits of all fields of a moment, at the places below, and after them the format's
other bytes. A text is a selection of the bytes of its line.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.json_leaves import civil_days
from penstock.kernels.memory import append_bytes, store_word
from penstock.kernels.record_writing import COLUMN, length_of
from penstock.kernels.types import READ, int64

YEAR_AT: Final = 0
HOUR_AT: Final = 8
MILLISECOND_AT: Final = 14
YEAR_DAY_AT: Final = 17
WEEKDAY_AT: Final = 20
HOUR_24_AT: Final = 21
HALF_AT: Final = 23
HALF_12_AT: Final = 25
LINE_BYTES: Final = 27
NAMED: Final = "MEa"
"""Fields that can be names: month, weekday, half of the day."""
INTEGER_BYTES: Final = 20
"""Most bytes of a number of 64 bits in decimal."""
ROOM_BYTES: Final = 16
"""Bytes after the end of a target that may be overwritten."""

_MONTH, _WEEKDAY, _AFTERNOON = range(3)
_DAY_MS: Final = 86_400_000
_FIRST_DAY: Final = 719_468
"""Days from 1 March of the year 0 to 1 January 1970."""
_DIGITS_MAX: Final = 15
"""Most digits of a text whose number is exact as a double; the division by a power rounds once."""
_POWERS: Final = np.array([10.0**power for power in range(_DIGITS_MAX + 1)])
_TENS: Final = np.array([10**power for power in range(20)], np.uint64)

_INTS: Final = "Array(int32, 1, 'C', readonly=True)"
_LONGS: Final = "Array(int64, 1, 'C', readonly=True)"
_PARTS: Final = "Array(int64, 2, 'C', readonly=True)"


@kernel(f"boolean({READ}, {_INTS}, float64[::1])")
def read_doubles(data: Any, bounds: Any, values: Any) -> bool:
    """Read texts of up to fifteen digits with an optional point and minus sign, such as `-12.5`.

    Return False if a text has another form.
    """
    for row in range(values.size):
        at, end = int64(bounds[row]), int64(bounds[row + 1])
        negative = at < end and data[at] == 0x2D
        at += int64(negative)
        number, fraction, digits = int64(0), int64(-1), end - at
        for place in range(at, end):
            digit = int64(data[place]) - 0x30
            if 0 <= digit <= 9:
                number = number * 10 + digit
            elif digit == -2 and fraction < 0:
                fraction = end - place - 1
                digits -= 1
            else:
                return False
        if not 0 < digits <= _DIGITS_MAX:
            return False
        value = np.float64(number)
        if fraction > 0:
            value /= _POWERS[fraction]
        values[row] = -value if negative else value
    return True


@kernel("uint64(uint64)", inlined=True)
def _eight_digits(number: Any) -> Any:
    """Return the ASCII digits of a number below 10 ** 8, with leading zeros, the first one lowest.

    Each step divides the numbers in all parts of the word at once.
    """
    top = number // np.uint64(10_000)
    word = top | (number - top * np.uint64(10_000)) << np.uint64(32)
    part = word * np.uint64(10_486) >> np.uint64(20) & np.uint64(0x7F_0000_007F)
    word = part | (word - part * np.uint64(100)) << np.uint64(16)
    part = word * np.uint64(103) >> np.uint64(10) & np.uint64(0xF_000F_000F_000F)
    word = part | (word - part * np.uint64(10)) << np.uint64(8)
    return word + np.uint64(0x3030_3030_3030_3030)


@kernel(f"int64({_LONGS}, uint8[::1], int32[::1])")
def write_integers(numbers: Any, target: Any, bounds: Any) -> Any:
    """Write numbers in decimal, and the bounds of the texts; return the number of bytes.

    `target` needs `ROOM_BYTES` more than the texts have.
    """
    at, size, half = int64(0), int64(1), np.uint64(100_000_000)
    bounds[0] = 0
    for row in range(numbers.size):
        number = numbers[row]
        rest = np.uint64(number)
        if number < 0:
            rest = np.uint64(0) - rest
            target[at] = 0x2D
            at += 1
        while size < 20 and rest >= _TENS[size]:
            size += 1
        while size > 1 and rest < _TENS[size - 1]:
            size -= 1
        end, left = at + size, size
        at = end
        if left > 16:
            top = rest // (half * half)
            store_word(target, end - left, _eight_digits(top) >> np.uint64(8 * (24 - left)))
            rest -= top * half * half
            left = 16
        if left > 8:
            top = rest // half
            store_word(target, end - left, _eight_digits(top) >> np.uint64(8 * (16 - left)))
            rest -= top * half
            left = 8
        store_word(target, end - left, _eight_digits(rest) >> np.uint64(8 * (8 - left)))
        bounds[row + 1] = at
    return at


@kernel("int64(int64, int64[::1], uint8[::1])", inlined=True)
def _put_day(days: Any, numbers: Any, line: Any) -> Any:
    """Write year, month and day of a day from the year 1 on; set the month, return the year."""
    shifted = np.uint64(days + _FIRST_DAY)
    era = shifted // np.uint64(146_097)
    inside = shifted - era * np.uint64(146_097)
    leaps = inside // np.uint64(1_460) - inside // np.uint64(36_524) + inside // np.uint64(146_096)
    year = (inside - leaps) // np.uint64(365)
    day = inside - (year * np.uint64(365) + year // np.uint64(4) - year // np.uint64(100))
    month = (day * np.uint64(5) + np.uint64(2)) // np.uint64(153)
    day -= (month * np.uint64(153) + np.uint64(2)) // np.uint64(5)
    early = month < np.uint64(10)
    month = month + np.uint64(3) if early else month - np.uint64(9)
    year += era * np.uint64(400) + np.uint64(not early)
    numbers[_MONTH] = int64(month)
    date = (year * np.uint64(100) + month) * np.uint64(100) + day + np.uint64(1)
    store_word(line, YEAR_AT, _eight_digits(date))
    return int64(year)


@kernel("void(uint8[::1], int64, int64, int64)", inlined=True)
def _put(line: Any, at: Any, number: Any, size: Any) -> None:
    word = _eight_digits(np.uint64(number)) >> np.uint64(8 * (8 - size))
    for place in range(size):
        line[at + place] = np.uint8(word >> np.uint64(8 * place) & np.uint64(0xFF))


@kernel("void(int64, int64, int64, int64[::1], uint8[::1])", inlined=True)
def _put_others(days: Any, year: Any, hour: Any, numbers: Any, line: Any) -> None:
    half = hour % 12
    numbers[_WEEKDAY], numbers[_AFTERNOON] = (days + 3) % 7 + 1, int64(hour >= 12) + 1
    _put(line, YEAR_DAY_AT, days - civil_days(year, 1, 1) + 1, 3)
    _put(line, WEEKDAY_AT, numbers[_WEEKDAY], 1)
    _put(line, HOUR_24_AT, 24 if hour == 0 else hour, 2)
    _put(line, HALF_AT, half, 2)
    _put(line, HALF_12_AT, 12 if half == 0 else half, 2)


@kernel(f"void({_LONGS}, {READ}, {_PARTS}, {READ}, uint8[::1], int64[::1], uint8[::1])")
def write_moments(
    moments: Any, places: Any, named: Any, names: Any, line: Any, numbers: Any, target: Any
) -> None:
    """Write texts of moments in the years 1 to 9999, one after the other.

    Args:
        places: place in `line` of each byte of a text.
        named: fields that are written as names; each row has the field's index in `NAMED`, the
            number of bytes, the position of the first name in `names`, and the place in `line`.
        line: room for the digits of all fields, followed by the format's other bytes.
        numbers: room for the numbers of `NAMED`.
    """
    others, at = named.shape[0] > 0, int64(0)
    for place in places:
        others |= YEAR_DAY_AT <= place < LINE_BYTES
    for row in range(moments.size):
        days = moments[row] // _DAY_MS
        left = np.uint64(moments[row] - days * _DAY_MS)
        seconds = left // np.uint64(1_000)
        minutes = seconds // np.uint64(60)
        hours = minutes // np.uint64(60)
        time = (hours * np.uint64(40) + minutes) * np.uint64(100)
        time += seconds - minutes * np.uint64(60)  # HHmmss: `minutes` has 60 for each hour
        year = _put_day(days, numbers, line)
        store_word(line, HOUR_AT, _eight_digits(time * np.uint64(100)))
        _put(line, MILLISECOND_AT, int64(left - seconds * np.uint64(1_000)), 3)
        if others:
            _put_others(days, year, int64(hours), numbers, line)
        for part in range(named.shape[0]):
            source = named[part, 2] + (numbers[named[part, 0]] - 1) * named[part, 1]
            for place in range(named[part, 1]):
                line[named[part, 3] + place] = names[source + place]
        for place in range(places.size):
            target[at + place] = line[places[place]]
        at += places.size


@kernel("int64(uint8[::1], int64, int64)", inlined=True)
def _taken(line: Any, at: Any, size: Any) -> Any:
    number = int64(0)
    for place in range(at, at + size):
        number = number * 10 + int64(line[place])
    return number


@kernel(
    f"void({READ}, {_INTS}, {READ}, {READ}, uint8[::1], int64, int64, int64, int64[::1],"
    " boolean[::1])"
)
def read_moments(
    data: Any, bounds: Any, places: Any, fixed: Any, line: Any, hour_at: Any, year_day: Any,
    first_year: Any, moments: Any, read: Any,
) -> None:  # fmt: skip
    """Read texts of one width without names of fields.

    Numbers may exceed their ranges: month 13 is the next January.

    Args:
        places: place in `line` of each byte of a text; `LINE_BYTES` and above for fixed bytes.
        fixed: the fixed bytes, from the place `LINE_BYTES` on.
        line: the numbers of all digits if a text lacks their field.
        hour_at: place of the hour.
        year_day: whether a text has the day of the year instead of month and day.
        first_year: first year that two digits can mean; -1 if years have four digits.
        read: set to whether a text has the form.
    """
    for row in range(moments.size):
        at, good = int64(bounds[row]), int64(bounds[row + 1]) - int64(bounds[row]) == places.size
        for index in range(places.size if good else 0):
            place = int64(places[index])
            if place >= LINE_BYTES:
                good &= data[at + index] == fixed[place - LINE_BYTES]
            else:
                digit = np.uint8(data[at + index] - np.uint8(0x30))
                line[place] = digit
                good &= digit < 10
        read[row] = good
        if not good:
            continue
        year = _taken(line, YEAR_AT, 4)
        if first_year >= 0:
            year = first_year - first_year % 100 + year % 100
            year += 100 * int64(year < first_year)
        month, day = _taken(line, YEAR_AT + 4, 2), _taken(line, YEAR_AT + 6, 2)
        hour = _taken(line, hour_at, 2)
        if (hour_at == HOUR_24_AT and hour == 24) or (hour_at == HALF_12_AT and hour == 12):
            hour = int64(0)
        if year_day:
            month, day = int64(1), _taken(line, YEAR_DAY_AT, 3)
        days = civil_days(year + (month - 1) // 12, (month - 1) % 12 + 1, day)
        seconds = (hour * 60 + _taken(line, HOUR_AT + 2, 2)) * 60 + _taken(line, HOUR_AT + 4, 2)
        moments[row] = days * _DAY_MS + seconds * 1_000 + _taken(line, MILLISECOND_AT, 3)


@kernel(f"int64({COLUMN}, int64, uint8[::1], int64, boolean[::1], int64)", inlined=True)
def _append_value(column: Any, row: Any, values: Any, at: Any, valid: Any, entry: Any) -> Any:
    """Append an element of a column to the values; return the position after it."""
    size = length_of(column, row)
    if valid.size:
        valid[entry] = size >= 0
    if size > 0:
        append_bytes(values, at, column[0], column[1][row], size)
        at += size
    return at


@kernel(
    f"void({_INTS}, {COLUMN}, {COLUMN}, {READ}, {COLUMN}, int32[::1], uint8[::1], int32[::1],"
    " uint8[::1], int32[::1], boolean[::1])"
)
def append_headers(
    lists: Any, names: Any, contents: Any, name: Any, added: Any, bounds: Any, keys: Any,
    key_bounds: Any, values: Any, value_bounds: Any, valid: Any,
) -> None:  # fmt: skip
    """Write the headers of each row and after them one more, called `name`.

    Args:
        lists: start of each row's headers, and their total number.
        names, contents: keys and values of the headers, as for `write_records`.
        added: value of each row's additional header.
        bounds: start of each row's headers in the result, and their total number.
        keys, values: bytes of keys and values; `ROOM_BYTES` more make copies faster.
        key_bounds, value_bounds: bounds of keys and values in them.
        valid: whether each value is not null; empty if no value is null.
    """
    entry = key_at = value_at = int64(0)
    bounds[0] = key_bounds[0] = value_bounds[0] = 0
    for row in range(lists.size - 1):
        for header in range(lists[row], lists[row + 1]):
            size = length_of(names, header)
            append_bytes(keys, key_at, names[0], names[1][header], size)
            key_at += size
            value_at = _append_value(contents, header, values, value_at, valid, entry)
            entry += 1
            key_bounds[entry], value_bounds[entry] = key_at, value_at
        append_bytes(keys, key_at, name, 0, name.size)
        key_at += name.size
        value_at = _append_value(added, row, values, value_at, valid, entry)
        entry += 1
        key_bounds[entry], value_bounds[entry] = key_at, value_at
        bounds[row + 1] = entry
