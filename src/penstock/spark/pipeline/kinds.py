"""Kinds of values: functions that convert the TOML value of a key to the type of the spec.

If a key does not allow a value, its function raises `Unfit` with the reason and a valid form.
Intervals become seconds, or text in the largest whole unit; sizes become bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from penstock.base.errors import InvalidError
from penstock.base.ids import validate_topic_name
from penstock.base.settings import Kind
from penstock.formats.value_format import is_schema_file
from penstock.lake.target import catalog_properties, placed, table_name
from penstock.security.data.key_ring import ENVIRONMENT

LIST_ENTRIES_MAX: Final = 1_000
RETRY_DELAYS_MAX: Final = 16
INTERVAL_MS_MAX: Final = 366 * 24 * 3_600_000
COUNT_MAX: Final = 2**31 - 1
SIZE_MAX: Final = 2**63 - 1

_UNIT_MS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_UNIT_BYTES: Final[Mapping[str, int]] = {
    "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_QUANTITY: Final = re.compile(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]+)\s*")
_READER: Final = re.compile(r"latest|\d{1,9}|id \d{1,10}")
_ADDRESS: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%]+\]):\d{1,5}")
_TYPES: Final[Mapping[type, str]] = {
    str: "text", bool: "true or false", int: "a whole number", float: "a number",
    list: "a list", dict: "a table",
}  # fmt: skip


class Unfit(ValueError):
    """Value that its key does not allow; a check turns it into a `Problem`."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix


def type_name(value: object) -> str:
    return _TYPES.get(type(value), "a date or time")


def text(value: object) -> str:
    if not isinstance(value, str):
        raise Unfit(f"must be text, but is {type_name(value)}", f'write "{_plain(value)}"')
    if not value.strip():
        raise Unfit("must not be empty", "write a value, or remove the key")
    return value


def _plain(value: object) -> str:
    return "…" if isinstance(value, (list, dict)) else _as_text(value)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list):
        raise Unfit(f"must be text or a list, but is {type_name(value)}", 'write ["…", "…"]')
    if not value:
        raise Unfit("must not be empty", "name at least one, or remove the key")
    if len(value) > LIST_ENTRIES_MAX:
        raise Unfit(f"has {len(value)} entries, the limit is {LIST_ENTRIES_MAX}", "name fewer")
    found = tuple(text(item) for item in value)
    twice = next((item for item in found if found.count(item) > 1), None)
    if twice is not None:
        raise Unfit(f"names {twice} twice", "name it once")
    return found


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        word = str(value).lower()
        fix = f"write {word}, without quotes" if word in {"true", "false"} else ""
        raise Unfit(f"must be true or false, but is {type_name(value)}", fix)
    return value


def _whole(value: object, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        digits = value.replace("_", "") if isinstance(value, str) else ""
        fix = f"write {digits}, without quotes" if digits.isdigit() else ""
        raise Unfit(f"must be a whole number, but is {type_name(value)}", fix)
    if not least <= value <= most:
        raise Unfit(f"is {value}, must be from {least} to {most}", "write a number in between")
    return value


def size(value: object) -> int:
    fix = 'write bytes as a number, or a size as "64 MiB"'
    if isinstance(value, str):
        found = _QUANTITY.fullmatch(value)
        factor = _UNIT_BYTES.get(found[2].lower()) if found is not None else None
        if found is None or factor is None:
            raise Unfit(f"{value!r} is not a size", fix)
        value = int(float(found[1]) * factor)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Unfit(f"must be a size, but is {type_name(value)}", fix)
    if not 0 < value <= SIZE_MAX:
        raise Unfit(f"is {value} bytes, must be from 1 to {SIZE_MAX}", fix)
    return value


def interval_ms(value: object) -> int:
    """Return the milliseconds of an interval such as `500 ms` or `1 minute 30 seconds`."""
    fix = 'write an interval as "2 seconds", "500 ms" or "1 minute"'
    if not isinstance(value, str):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            fix = f'add the unit: "{value} seconds"'
        raise Unfit(f"must be an interval, but is {type_name(value)}", fix)
    total, at = 0.0, 0
    while at < len(value):
        found = _QUANTITY.match(value, at)
        factor = _UNIT_MS.get(found[2].lower()) if found is not None else None
        if found is None or factor is None:
            raise Unfit(f"{value!r} is not an interval", fix)
        total += float(found[1]) * factor
        at = found.end()
    if not at or total != int(total):
        raise Unfit(f"{value!r} is not an interval of whole milliseconds", fix)
    if total > INTERVAL_MS_MAX:
        raise Unfit(f"{value!r} is longer than 366 days", fix)
    return int(total)


def positive_interval_ms(value: object) -> int:
    milliseconds = interval_ms(value)
    if not milliseconds:
        raise Unfit(f"{value!r} is zero", 'write an interval as "2 seconds"')
    return milliseconds


def interval_text(milliseconds: int) -> str:
    """Return the interval for Spark, in the largest unit that fits."""
    for name, factor in (("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000)):
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor} {name}"
    return f"{milliseconds} milliseconds"


def delay(value: object) -> str:
    return interval_text(interval_ms(value))


def seconds(value: object) -> float:
    return positive_interval_ms(value) / 1000


def growing_seconds(value: object) -> tuple[float, ...]:
    """Return a list of intervals in seconds, each longer than the one before."""
    if not isinstance(value, list):
        raise Unfit(
            f"must be a list of intervals, but is {type_name(value)}",
            'write ["10 seconds", "1 minute", "10 minutes"]',
        )
    if not 0 < len(value) <= RETRY_DELAYS_MAX:
        raise Unfit(
            f"has {len(value)} delays, must have from 1 to {RETRY_DELAYS_MAX}",
            'write ["10 seconds", "1 minute", "10 minutes"]',
        )
    found = tuple(seconds(item) for item in value)
    for index in range(1, len(found)):
        if found[index] <= found[index - 1]:
            raise Unfit(
                f"{value[index]!r} is not longer than {value[index - 1]!r}",
                "make each delay longer than the one before",
            )
    return found


def trigger(value: object) -> str:
    if value in ("now", "once"):
        return str(value)
    try:
        return interval_text(positive_interval_ms(value))
    except Unfit as unfit:
        raise Unfit(unfit.message, 'write "now", "once" or an interval as "2 seconds"') from unfit


def start(value: object) -> str:
    """Return `earliest`, `latest`, or a time with its zone as text."""
    if value in ("earliest", "latest"):
        return str(value)
    fix = 'write "earliest", "latest" or a time as "2026-01-31T08:00:00Z"'
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise Unfit(f"{value!r} is not a time in ISO 8601", fix) from error
    if not isinstance(value, datetime):
        raise Unfit(f"must be a time, but is {type_name(value)}", fix)
    if value.tzinfo is None:
        raise Unfit(f"{value.isoformat()} has no zone", f'write "{value.isoformat()}Z" for UTC')
    return value.isoformat()


def topic(value: object) -> str:
    name = text(value)
    try:
        return validate_topic_name(name)
    except InvalidError as error:
        raise Unfit(
            f"{name[:40]!r} cannot be a topic: {_reason(error)}", "write the topic's name"
        ) from error


def _reason(error: InvalidError) -> str:
    return str(getattr(error, "reason", error))


def topics(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise Unfit("must be a list, but is text", f'write ["{value}"], or topic = "{value}"')
    found = texts(value)
    return tuple(topic(name) for name in found)


def pattern(value: object) -> str:
    expression = text(value)
    try:
        re.compile(expression)
    except re.error as error:
        raise Unfit(
            f"{expression!r} is not a regular expression: {error}",
            'write one as "orders-.*"; it has to match the whole name',
        ) from error
    return expression


def servers(value: object) -> str:
    given = text(value)
    for address in given.split(","):
        if not _ADDRESS.fullmatch(address.strip()):
            raise Unfit(f"{address.strip()!r} is not host:port", 'write "127.0.0.1:9092"')
    return ",".join(address.strip() for address in given.split(","))


def lake_table(value: object) -> str:
    try:
        return table_name(value)
    except ValueError as error:
        raise Unfit(str(error), 'write "db.orders"') from error


def catalog(value: object) -> dict[str, str]:
    try:
        return catalog_properties(value)
    except ValueError as error:
        fix = 'write {type = "sql", uri = "sqlite:///lake.db", warehouse = "lake"}'
        raise Unfit(str(error), fix) from error


def url(value: object) -> str:
    given = text(value)
    if not re.fullmatch(r"https?://[^/\s]+/?", given):
        raise Unfit(f"{given!r} is not an address", 'write "http://127.0.0.1:9644"')
    return given.rstrip("/")


def urls(value: object) -> str:
    return ",".join(url(part.strip()) for part in text(value).split(","))


def rows(value: object) -> int | None:
    """Return the number of rows that a console sink shows: 20 for true, None for false."""
    if isinstance(value, bool):
        return 20 if value else None
    return _whole(value, 1, COUNT_MAX)


def function(value: object) -> tuple[str, str]:
    given = text(value)
    file, colon, name = given.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise Unfit(f"{given!r} does not name a function", 'write "steps.py:function"')
    return file, name


def one_of(*choices: str) -> Callable[[Any], str]:
    listed = ", ".join(choices[:-1]) + f" or {choices[-1]}"

    def convert(value: object) -> str:
        if not isinstance(value, str):
            raise Unfit(f"must be text, but is {type_name(value)}", f"write {listed}, in quotes")
        if value not in choices:
            raise Unfit(f"{value!r} is not known", f"write {nearest(value, choices) or listed}")
        return value

    return convert


def nearest(word: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice most similar to `word`."""
    from difflib import get_close_matches

    folded = {choice.lower(): choice for choice in choices}
    close = get_close_matches(word.lower(), list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def settings(value: object) -> dict[str, str]:
    """Return Spark's settings as text; nested tables become dotted names."""
    if not isinstance(value, dict):
        raise Unfit(f"must be a table, but is {type_name(value)}", "write [spark]")
    found: dict[str, str] = {}
    open_tables = [("", value)]
    while open_tables:
        prefix, table = open_tables.pop()
        for name, item in table.items():
            if isinstance(item, dict):
                open_tables.append((f"{prefix}{name}.", item))
            elif isinstance(item, (str, int, float)):
                full = f"{prefix}{name}"
                found[full if full.startswith("spark.") else f"spark.{full}"] = _as_text(item)
            else:
                raise Unfit(
                    f"{prefix}{name} must be text, a number, true or false, but is "
                    f"{type_name(item)}",
                    'write it as Spark does, in quotes: "…"',
                )
    return dict(sorted(found.items()))


def master_key(value: object) -> str:
    """Return the location of a master key: a file, or `env:NAME`."""
    given = text(value)
    name = given.removeprefix(ENVIRONMENT)
    if name != given and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise Unfit("does not name a variable", 'write "env:PENSTOCK_MASTER_KEY"')
    return given


def reader(value: object) -> str:
    """Return the choice of a reader's schema: `latest`, a version, `id N`, or a file."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(_whole(value, 1, COUNT_MAX))
    given = text(value).strip()
    if _READER.fullmatch(given) is None and not is_schema_file(given):
        raise Unfit(
            f"{given!r} is not a schema",
            'write "latest", a version as 3, "id 7", or a file as "order.avsc"',
        )
    return given


def ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise Unfit(f"must be a list of ids, but is {type_name(value)}", "write [1, 2]")
    if not value:
        raise Unfit("must not be empty", "write [1, 2], or remove the key")
    if len(value) > LIST_ENTRIES_MAX:
        raise Unfit(f"has {len(value)} entries, the limit is {LIST_ENTRIES_MAX}", "name fewer")
    return tuple(sorted({_whole(item, 0, COUNT_MAX) for item in value}))


def registry_url(value: object) -> str:
    given = text(value).strip()
    if not re.fullmatch(r"https?://[^\s/]+(/[^\s]*)?", given):
        raise Unfit(f"{given!r} is not an address", 'write "http://127.0.0.1:8081"')
    return given.rstrip("/")


def whole(least: int, most: int = COUNT_MAX) -> Kind:
    return Kind("whole number", lambda value: _whole(value, least, most))


def choice(*words: str) -> Kind:
    return Kind(", ".join(f"`{word}`" for word in words), one_of(*words))


@dataclass(frozen=True, slots=True)
class Located(Kind):
    """Kind of values with a path; `locate` makes the path absolute."""

    locate: Callable[[Any, Callable[[str], Path]], Any]


TEXT: Final = Kind("text", text)
PATH: Final = Located("path", text, lambda given, path: path(given))
PLACE: Final = Located(
    "path or URI", text, lambda given, path: given if "://" in given else str(path(given))
)
LAKE_TABLE: Final = Kind("`NAMESPACE.TABLE`", lake_table)
CATALOG: Final = Located("name, or table of properties", catalog, placed)
COLUMN: Final = Kind("column", text)
COLUMNS: Final = Kind("column or list of columns", texts)
VIEW: Final = Kind("view", text)
VIEWS: Final = Kind("view or list of views", texts)
SQL: Final = Kind("SQL", text)
FLAG: Final = Kind("true or false", flag)
COUNT: Final = whole(1)
COUNT_OR_NONE: Final = whole(0)
SIZE: Final = Kind("size", size)
INTERVAL: Final = Kind("interval", seconds)
DELAY: Final = Kind("interval", delay)
GROWING: Final = Kind("list of intervals", growing_seconds)
TRIGGER: Final = Kind("`now`, `once` or interval", trigger)
START: Final = Kind("`earliest`, `latest` or time", start)
TOPIC: Final = Kind("topic", topic)
ONE_TOPIC: Final = Kind("topic", lambda value: (topic(value),))
TOPICS: Final = Kind("list of topics", topics)
PATTERN: Final = Kind("regular expression", pattern)
SERVERS: Final = Kind("`host:port`, with commas between several", servers)
URL: Final = Kind("URL, with commas between several", urls)
ROWS: Final = Kind("true or number of rows", rows)
FUNCTION: Final = Located(
    "`file.py:function`", function, lambda given, path: (path(given[0]), given[1])
)
EVOLVE: Final = Kind("`none`, `add`", lambda value: one_of("none", "add")(value) == "add" or None)
REGISTRY: Final = Kind("URL", registry_url)
READER: Final = Located(
    "`latest`, version, `id N` or path", reader,
    lambda given, path: str(path(given)) if is_schema_file(given) else given,
)  # fmt: skip
IDS: Final = Kind("list of ids", ids)
SETTINGS: Final = Kind("", settings)
RULES: Final = Kind("table of rules", dict)
PROTECTIONS: Final = Kind("table of columns", dict)
MASTER_KEY: Final = Located(
    "path or `env:NAME`", master_key,
    lambda given, path: given if given.startswith(ENVIRONMENT) else str(path(given)),
)  # fmt: skip
