"""Parser of dates and times, in all the forms that Spark's cast accepts.

A date has ten characters. A time may follow after `T` or a blank. Its minutes, seconds and fraction
are optional, and its numbers may have one digit. Then a zone may follow: `Z`, an offset, `UTC`,
`GMT` or `UT` with or without an offset, or a name of the time zone database. Only six digits of a
fraction are used; `is_finer` finds texts with more. At a change of clocks, a time that does not
exist is read with the offset before the change, and a time that exists twice is the first one.

Source: `stringToTimestamp` and `stringToDate` of Spark's SparkDateTimeUtils; java.time.ZoneId.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_BLANKS: Final = "".join(map(chr, [*range(33), 127]))
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?=[Tt \n\r\x85\u2028\u2029]|\Z)")
_DAY: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:\r\n|[\n\r])?")
_TIME: Final = re.compile(
    r"[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.][\s\S]*)?)?)?"
)
_OFFSET: Final = re.compile(
    r"([+-])(?:([0-9])|([0-9]{2})(?::?([0-9]{2}))?|([0-9]{2}):([0-9]{2}):([0-9]{2})|"
    r"([0-9]{2})([0-9]{2})([0-9]{2}))"
)
_REGION: Final = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_OFFSET_SECONDS_MAX: Final = 18 * 3600
_ZONES_KEPT: Final = 1_000
_SHORT: Final = {
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo",
    "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago",
    "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip
"""Short zone ids of Java: `ZoneId.SHORT_IDS`."""


def days_of(text: str) -> int | None:
    """Return the days since 1970 of a date, which may have a line end; None for other texts."""
    found = _DAY.fullmatch(text)
    return None if found is None else _days(*map(int, found.groups()))


def micros_of(text: str, zone: str | None) -> int | None:
    """Return the microseconds since 1970 of a date with or without a time; None for other texts.

    Args:
        zone: the zone of a text without one. None returns the local time, and ignores a zone in the
            text.
    """
    date = _DATE.match(text)
    days = None if date is None else _days(*map(int, date.groups()))
    time = _time(text[10:].rstrip(_BLANKS))
    if days is None or time is None:
        return None
    micros, said = time
    shown = days * 86_400_000_000 + micros
    try:
        offset = 0 if said is None else _offset(said.strip(_BLANKS), shown)
        if zone is None:
            return shown
        if said is None:
            offset = _offset(zone, shown)
    except (ValueError, OSError, LookupError):
        return None
    return shown - offset * 1_000_000


def is_finer(text: str) -> bool:
    """Whether a text that `micros_of` reads has a fraction finer than microseconds."""
    found = _TIME.fullmatch(text[10:].rstrip(_BLANKS))
    return found is not None and (found[4] or "")[6:].strip("0") != ""


def _days(year: int, month: int, day: int) -> int | None:
    """Return the days since 1970 of a date; None if the date does not exist.

    It is computed in another 400-year cycle of the calendar, because Python's has no year 0.
    """
    era, of_era = divmod(year, 400)
    try:
        moved = datetime(2_000 + of_era, month, day, tzinfo=UTC)
    except ValueError:
        return None
    return moved.toordinal() + (era - 5) * 146_097 - 719_163


def _time(text: str) -> tuple[int, str | None] | None:
    if not text:
        return 0, None
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second = (int(found[number] or 0) for number in (1, 2, 3))
    if hour > 23 or minute > 59 or second > 59:
        return None
    fraction = int((found[4] or "")[:6].ljust(6, "0"))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, found[5]


def _offset(zone: str, shown: int) -> int:
    """Return the offset of a zone from UTC in seconds, at the local time `shown` in microseconds.

    Raises:
        ValueError, OSError, LookupError: the zone does not exist.
    """
    found = _zone(zone)
    if isinstance(found, int):
        return found
    seconds = min(max(shown // 1_000_000, -62_135_596_800), 253_402_300_799)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    offset = at.replace(tzinfo=found).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


@lru_cache(maxsize=_ZONES_KEPT)
def _zone(name: str) -> int | ZoneInfo:
    name = re.sub(r"([+-])([0-9]):", r"\g<1>0\2:", name, count=1)
    name = re.sub(r"([+-])([0-9]{2}):([0-9])$", r"\1\2:0\3", name)
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    for prefix in ("", "UTC", "GMT", "UT"):
        if name[len(prefix) : len(prefix) + 1] in ("+", "-") and name.startswith(prefix):
            return _seconds(name[len(prefix) :])
    if _REGION.fullmatch(name) is None:
        raise ValueError(f"{name!r} is not a zone")
    return ZoneInfo(name)


def _seconds(offset: str) -> int:
    found = _OFFSET.fullmatch(offset)
    if found is None:
        raise ValueError(f"{offset!r} is not an offset")
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    total = (hours * 60 + minutes) * 60 + seconds
    if minutes > 59 or seconds > 59 or total > _OFFSET_SECONDS_MAX:
        raise ValueError(f"{offset!r} is not an offset")
    return total if found[1] == "+" else -total
