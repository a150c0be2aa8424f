"""Words that formulas and sources of a receive path share."""

from __future__ import annotations

from typing import Final

from penstock.planner.quantities import format_quantity

CONFIGURATION: Final = "Aeron: Configuration.java"
ENA: Final = "ENA Linux driver best practices"
ARTICLE: Final = "The Four Receive-Path Buffers"


def say(value: float, unit: str) -> str:
    """A number in a formula."""
    return format_quantity(value, unit)


def count(number: int, noun: str) -> str:
    """`1 flow`, `2 flows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes, as people read them."""
    return say(number, "bytes")


def bits_of(number: float) -> str:
    """Bits per second, as people read them."""
    return say(number, "bit/s")


def micros(number: float) -> str:
    """Microseconds, as people read them."""
    return say(number, "us")
