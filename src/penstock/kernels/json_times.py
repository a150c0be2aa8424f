"""Reader of dates and times in the usual form of ISO 8601; the slow reader reads other forms.

Source: RFC 3339; days from a civil date by Howard Hinnant's `days_from_civil`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.json_layout import LOOK
from penstock.kernels.types import READ, int64

_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_TENS = np.array([10**power for power in range(7)], np.int64)


@kernel(f"int64({READ}, int64)", inlined=True)
def two_digits(data: Any, at: int) -> Any:
    """Return the number of two digits; a negative number if they are not digits."""
    tens, ones = int64(data[at]) - 48, int64(data[at + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -10_000
    return tens * 10 + ones


@kernel("int64(int64, int64, int64)", inlined=True)
def civil_days(year: int, month: int, day: int) -> Any:
    """Return the days since 1970 of a date in the year 1 or later."""
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
