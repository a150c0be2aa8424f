"""Quantities: parsing and formatting of numbers with units.

The unit comes from the field's declaration (`penstock.base.settings.setting(unit=…)`). A number
without a suffix is in that unit. Suffixes of bytes: `kB MB GB TB PB` are powers of 1000. `KiB MiB
GiB TiB PiB` and the single letters `k m g t` are powers of 1024, as operating systems and Aeron's
properties read them. Suffixes of time: `ns us µs ms s min h d`.

A rate has a suffix with its period (`700MB/s`, `60TB/day`) and is converted to the unit's period. A
rate is rejected where a size is required, and a size where a rate is required. The exception is a
unit per day: it accepts a plain size, because the name of the input states the period
(`bytes-per-day`). `Mb` is rejected, because it may mean bits or bytes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib import resources
from math import isfinite
from typing import Any, ClassVar, Final, TypeVar

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import SettingInfo, describe, load

_NUMBER: Final = re.compile(
    r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ]*)(?:/([A-Za-z]+))?"
)
_BITS_OR_BYTES: Final = re.compile(r"[KMGTP]i?b")

_BYTES: Final[Mapping[str, float]] = {
    "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50,
}  # fmt: skip
_SECONDS: Final[Mapping[str, float]] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0,
    "d": 86400.0,
}  # fmt: skip
_COUNTS: Final[Mapping[str, float]] = {"k": 1e3, "m": 1e6, "g": 1e9}
_BITS: Final[Mapping[str, float]] = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "bit": 1.0}
_PER: Final[Mapping[str, float]] = {
    "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "day": 86400.0, "month": 30 * 86400.0,
}  # fmt: skip
_OF_UNIT: Final[Mapping[str, Mapping[str, float]]] = {
    "bytes": _BYTES,
    "bit": _BITS,
    **{unit: {name: one / per for name, one in _SECONDS.items()} for unit, per in _SECONDS.items()},
}


class NoQuantity(ValueError):
    """A text is not a quantity of the unit; the message completes "<name> = <text>: …"."""


def parse_quantity(text: str, unit: str) -> float:
    """Parse a number, with or without a suffix, and return it in `unit`.

    Raises:
        NoQuantity: the text is no number, its suffix does not fit the unit, or a size is given
            for a rate, or a rate for a size.
    """
    found = _NUMBER.fullmatch(text.strip())
    base, _, per = unit.partition("/")
    suffixes = _OF_UNIT.get(base, _COUNTS)
    if found is None:
        raise NoQuantity(f"must be a number{_allowed(unit, suffixes)}")
    number, suffix, given_per = found.groups()
    value = float(number.replace("_", "")) * _rate(given_per, base, per, suffix, text.strip())
    if not suffix or (given_per and suffix.lower() == base):
        return value
    if base == "bytes" and _BITS_OR_BYTES.fullmatch(suffix):
        plain = suffix[0]
        raise NoQuantity(
            f"has the suffix {suffix}, which may mean bits or bytes; write {plain}B for bytes"
        )
    factor = suffixes.get(suffix.lower())
    if factor is None:
        raise NoQuantity(f"has the unknown suffix {suffix}{_allowed(unit, suffixes)}")
    return value * factor


def _rate(given: str | None, base: str, per: str, suffix: str, text: str) -> float:
    if given is None:
        if base == "bytes" and suffix and per == "s":
            raise NoQuantity(f"is a size, but a rate is required, such as {text}/s or {text}/day")
        return 1.0
    if not per:
        raise NoQuantity(f"is a rate, but a number of {base} is required")
    if given not in _PER:
        raise NoQuantity(f"is a number per {given}; the period must be one of {' '.join(_PER)}")
    return _PER[per] / _PER[given]


def _allowed(unit: str, suffixes: Mapping[str, float]) -> str:
    named = f" of {unit}" if unit else ""
    return f"{named}, alone or with one of {' '.join(suffixes)}"


def format_quantity(value: float | int | str | bool | None, unit: str) -> str:
    """Return a value for display: `256 KiB`, `1.02 MB/s`, `1.3 ms`, `12,500 packets/s`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return f"{value} {unit}".strip()
    if unit == "bytes":
        return _bytes(value)
    if unit in ("bytes/s", "bytes/day", "bytes/month"):
        scaled, prefix = _scaled(value)
        return f"{scaled} {prefix}B/{unit.partition('/')[2]}"
    if unit == "bit/s":
        scaled, prefix = _scaled(value)
        return f"{scaled} {prefix}bit/s"
    if unit in _SECONDS:
        return _time(value * _SECONDS[unit])
    return f"{significant(value)} {unit}".strip()


def _bytes(value: float) -> str:
    if value == int(value) and value >= 1024:
        for power, name in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
            if 1 <= value / 1024**power < 10_000 and value % 1024**power == 0:
                return f"{significant(value / 1024**power)} {name}"
    scaled, prefix = _scaled(value) if abs(value) >= 10_000 else (significant(value), "")
    return f"{scaled} {prefix}B" if prefix else f"{scaled} bytes"


def _scaled(value: float) -> tuple[str, str]:
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return significant(value / factor), prefix
    return significant(value), ""


def _time(seconds: float) -> str:
    for factor, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if abs(seconds) >= 2 * factor or (name == "s" and abs(seconds) >= 1.0):
            return f"{significant(seconds / factor)} {name}"
    for factor, name in ((1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= factor:
            return f"{significant(seconds / factor)} {name}"
    return f"{significant(seconds * 1e9)} ns"


def significant(value: float) -> str:
    """Return a number for display: whole numbers with separators, others with four digits."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


# Inputs of plans: reading of values with units, the planner's tables, and errors.
#
# An inputs class is a frozen dataclass whose fields are declared with
# `penstock.base.settings.setting`. Its names are in kebab case (`message-bytes`). A number without
# a suffix is in the unit of its field. Tables are TOML files beside the code that uses them.


class ImpossiblePlan(InvalidError):
    """Inputs that no configuration can serve: the rule, the inputs that break it, and the fix."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, rule: str, found: str, fix: str) -> None:
        super().__init__(f"{rule}: {found}; {fix}")
        self.rule = rule
        self.found = found
        self.fix = fix


class InvalidPlanFile(InvalidError):
    """A plan's file is invalid; the message names the file and the position in it."""

    code: ClassVar[str] = "invalid_config"


class NothingToPlan(InvalidError):
    code: ClassVar[str] = "invalid_request"


def table_text(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text("utf-8")


def read_table(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(table_text(package, name))


Inputs = TypeVar("Inputs")


def read_inputs(inputs_type: type[Inputs], texts: Mapping[str, object]) -> Inputs:
    """Build an inputs object from values by name; missing names keep their defaults.

    A value is a typed value or a text with a unit, such as `1KiB`.

    Raises:
        InvalidSetting: a name is unknown, a value is not a quantity of the unit, or out of bounds.
        ImpossiblePlan: the inputs contradict each other; raised by the inputs class.
    """
    known = {info.name: info for info in describe(inputs_type)}
    return load(
        inputs_type,
        {
            name: _quantity(known[name], value) if name in known else value
            for name, value in texts.items()
        },
    )


def _quantity(info: SettingInfo, value: object) -> object:
    if info.type_name not in ("int", "float"):
        return value
    number = value
    if isinstance(value, str):
        try:
            number = parse_quantity(value, info.unit)
        except NoQuantity as flaw:
            raise InvalidSetting(info.name, value, str(flaw)) from None
    if isinstance(number, float) and not isfinite(number):
        raise InvalidSetting(info.name, value, "must be finite")
    if info.type_name == "int" and isinstance(number, float):
        if not number.is_integer():
            raise InvalidSetting(info.name, value, f"must be a whole number of {info.unit}")
        return int(number)
    return number
