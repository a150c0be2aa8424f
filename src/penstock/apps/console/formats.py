"""Texts of numbers, sizes and times in the console's pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from penstock.base.settings import LONG_MAX, whole_number

UNKNOWN: Final = "–"
"""Text of a value that this broker does not know."""
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIMES_MS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
_SMALL: Final = 10
_KIBI: Final = 1024


def number(value: float | None) -> str:
    """Return a number with thousands separated; fractions have one digit."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def size(value: float | None) -> str:
    """Return a size in bytes as text with a binary unit, such as `1.5 MiB`."""
    if value is None:
        return UNKNOWN
    amount, unit = float(value), 0
    while abs(amount) >= _KIBI and unit < len(_SIZES) - 1:
        amount, unit = amount / _KIBI, unit + 1
    digits = 1 if unit and amount < _SMALL * _SMALL else 0
    return f"{amount:,.{digits}f} {_SIZES[unit]}"


def duration(value_ms: float | None) -> str:
    """Return a duration in milliseconds as text in its largest unit, such as `7 d`."""
    if value_ms is None:
        return UNKNOWN
    for factor, unit in _TIMES_MS:
        if value_ms >= factor:
            amount = value_ms / factor
            return f"{amount:,.0f} {unit}" if amount.is_integer() else f"{amount:,.1f} {unit}"
    return f"{value_ms:,.0f} ms" if value_ms >= _SMALL or not value_ms else f"{value_ms:.2f} ms"


def readable(name: str, value: str | None) -> str:
    """Return the value of a setting with a unit, such as `7 d`; empty if it needs none.

    The end of the setting's name is the unit.
    """
    amount = whole_number(value or "", LONG_MAX)
    if amount is None or amount < _KIBI or amount == LONG_MAX:
        return ""
    if name.endswith(".ms"):
        return duration(amount)
    return size(amount) if name.endswith(".bytes") else ""


def moment(value_ms: int | None) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    if value_ms is None or value_ms < 0:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return str(value_ms)


def sentence(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, such as `3 topics`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def path(*parts: object) -> str:
    """Return the path of a page below `/console`; each part is one element of the path."""
    return "/".join(["/console", *(quote(str(part), safe="") for part in parts)])


def query(values: Mapping[str, object]) -> str:
    """Return a query string of the values that are not empty, with its question mark."""
    kept = {name: value for name, value in values.items() if value not in ("", None)}
    return f"?{urlencode(kept)}" if kept else ""
