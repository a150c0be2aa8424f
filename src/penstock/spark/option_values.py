"""Parsing of Spark options: names in any case, values as text, checked against declarations.

Unknown options are rejected. Options are declared like settings (`penstock.base.settings`), and
`docs/reference/spark-options.md` is generated from the declarations.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.settings import LONG_MAX, Kind, by_name, parse
from penstock.spark.errors import InvalidOption

T = TypeVar("T")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)?")
_ENVIRONMENT: Final = {
    "bootstrap": "PENSTOCK_BOOTSTRAP",
    "penstock.admin.url": "PENSTOCK_ADMIN_URL",
    "parallelism": "PENSTOCK_SPARK_PARALLELISM",
    "valueRegistry": "PENSTOCK_REGISTRY",
}


def named(
    kinds: Iterable[type[Any]], raw: Mapping[str, str], aliases: Mapping[str, str], unknown: str
) -> dict[str, str]:
    """Return options by their declared names, with defaults from environment variables.

    Args:
        kinds: classes that declare the options.
        raw: options as given to Spark.
        aliases: other names of options, with the declared name for each.
        unknown: beginning of the message for an unknown option; the list of options follows.

    Raises:
        InvalidOption: an option is unknown, or given twice with different values.
    """
    known = [name for kind in kinds for name in by_name(kind)]
    canonical = {name.lower(): name for name in (*known, *aliases)}
    given: dict[str, str] = {}
    for name, value in raw.items():
        written = canonical.get(name.lower())
        if written is None:
            raise InvalidOption(name, value, f"{unknown} {', '.join(known)}")
        target = aliases.get(written, written)
        if given.setdefault(target, value) != value:
            raise InvalidOption(written, value, f"{target} is already set to another value")
    for name in known:
        found = os.environ.get(_ENVIRONMENT.get(name, ""))
        if name not in given and found:
            given[name] = found
    return given


def checked(kind: type[T], given: Mapping[str, object]) -> T:
    """Return the options of one declaring class; missing options get their defaults.

    Raises:
        InvalidOption: values are invalid; the message lists all of them.
    """
    values: dict[str, Any] = {}
    wrong: list[InvalidOption] = []
    for name, info in by_name(kind).items():
        if name in given:
            try:
                values[info.attribute] = parse(info, given[name], InvalidOption)
            except InvalidOption as error:
                wrong.append(error)
    if wrong:
        first, *others = wrong
        reasons = "; ".join([first.reason, *map(str, others)])
        raise InvalidOption(first.name, first.value, reasons)
    return kind(**values)


def whole(least: int = 1, most: int = LONG_MAX) -> Kind:
    def convert(value: object) -> int:
        text = "" if isinstance(value, (bool, float)) else str(value).strip()
        if not text.isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return int(text)

    return Kind("whole number", convert)


def word_of(*words: str) -> Kind:
    def convert(value: object) -> str:
        word = str(value).strip().lower()
        if word not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return word

    return Kind(", ".join(f"`{word}`" for word in words), convert)


def _servers(value: object) -> str:
    text = str(value or "").strip()
    if not text:
        raise ValueError("must be the address of a broker as HOST:PORT")
    return text


def _topic(value: object) -> str:
    try:
        return validate_topic_name(str(value))
    except InvalidTopicName as error:
        raise ValueError(error.reason) from error


def _duration_ms(value: object) -> int:
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None:
        raise ValueError("must be a duration such as 500ms, 30s or 15m")
    return int(match.group(1)) * _UNIT_MS[match.group(2)]


def _text(value: object) -> str | None:
    return str(value) or None


def _flag(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in {"true", "false"}:
        raise ValueError("must be true or false")
    return word == "true"


def _pattern(value: object) -> str:
    try:
        re.compile(str(value))
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return str(value)


def _url(value: object) -> str | None:
    return str(value or "").strip().rstrip("/") or None


TEXT: Final = Kind("text", _text)
SERVERS: Final = Kind("`host:port`, separated by commas", _servers)
URL: Final = Kind("URL", _url)
TOPIC: Final = Kind("topic", _topic)
PATTERN: Final = Kind("regular expression", _pattern)
DURATION: Final = Kind("duration", _duration_ms)
FLAG: Final = Kind("true or false", _flag)
