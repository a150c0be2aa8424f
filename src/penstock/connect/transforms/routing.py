"""Transforms of topics, the transform that drops rows, and the predicates that select rows."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import InvalidSetting
from penstock.base.settings import Kind, setting
from penstock.connect.paths import column_of
from penstock.connect.plugins import TIMESTAMP, VALUE, Records
from penstock.connect.steps import Predicate, Transform
from penstock.connect.transforms.dates import DateFormat, parse_format
from penstock.connect.transforms.transform import reject

_REFERENCE: Final = re.compile(r"\\(.)|\$\{(\w+)\}|\$(\d+)|([^\\$]+)|(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class JavaPattern:
    """Regular expression in Java's syntax, as far as Python's `re` has it."""

    text: str
    compiled: re.Pattern[str]


def _pattern(value: object) -> JavaPattern:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a regular expression")
    try:
        return JavaPattern(value, re.compile(value.replace("(?<", "(?P<").replace("(?P<=", "(?<=")
                                             .replace("(?P<!", "(?<!"), re.ASCII))  # fmt: skip
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from error


PATTERN: Final = Kind("regular expression", _pattern)


class RegexRouter(Transform):
    """Rename topics that match a regular expression; others keep their name."""

    regex: JavaPattern = setting(MISSING, "Required: expression for the whole name.", kind=PATTERN)
    replacement: str = setting(MISSING, "Required: new name, in which `$1` is the first group.")

    def __post_init__(self) -> None:
        _template(self.replacement, self.regex.compiled)

    def apply(self, records: Records) -> list[Records]:
        compiled = self.regex.compiled
        if compiled.fullmatch(records.topic) is None:
            return [records]
        parts = _template(self.replacement, compiled)
        topic = compiled.sub(
            lambda found: "".join(
                part if isinstance(part, str) else found.group(part[0]) or "" for part in parts
            ),
            records.topic,
            count=1,
        )
        return [Records(topic, records.rows)]


class TimestampRouter(Transform):
    """Rename topics by the timestamps of rows. Rows without a timestamp are rejected."""

    topic_format: str = setting(
        "${topic}-${timestamp}", "New name, with `${topic}` and `${timestamp}` in it."
    )
    timestamp_format: DateFormat = setting(
        parse_format("yyyyMMdd"), "Pattern of Java's `SimpleDateFormat`, in UTC.",
        kind=Kind("date format", parse_format), shown="`yyyyMMdd`",
    )  # fmt: skip

    def apply(self, records: Records) -> list[Records]:
        moments = column_of(records.rows, TIMESTAMP)
        reject(moments.is_null(), "the row has no timestamp")
        plain = moments.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))
        names = self.timestamp_format.encoded(plain)
        numbers, rows = names.indices.to_numpy(), records.rows
        if (np.diff(numbers) < 0).any():  # the rows are not in the order of their names
            order = np.argsort(numbers, kind="stable")
            numbers, rows = numbers[order], rows.take(pa.array(order))
        ends = np.searchsorted(numbers, np.arange(len(names.dictionary)), "right").tolist()
        return [
            Records(self._topic(records.topic, name), rows.slice(start, end - start))
            for name, start, end in zip(names.dictionary, [0, *ends], ends, strict=False)
        ]

    def _topic(self, topic: str, moment: Any) -> str:
        text = self.topic_format.replace("${topic}", topic)
        return text.replace("${timestamp}", moment.as_py())


class Filter(Transform):
    """Drop the rows that the step's predicate selects."""

    def apply(self, records: Records) -> list[Records]:
        return []


class TopicNameMatches(Predicate):
    """Rows whose topic matches a regular expression."""

    pattern: JavaPattern = setting(
        MISSING, "Required: expression for the whole name.", kind=PATTERN
    )

    def matches(self, records: Records) -> bool:
        return self.pattern.compiled.fullmatch(records.topic) is not None


class RecordIsTombstone(Predicate):
    """Rows with a null value."""

    def matches(self, records: Records) -> Any:
        return column_of(records.rows, VALUE).is_null().to_numpy(zero_copy_only=False)


def _template(text: str, pattern: re.Pattern[str]) -> list[str | tuple[int | str]]:
    """Return the parts of a replacement in Java's syntax: texts, and groups in tuples.

    Raises:
        InvalidSetting: the expression has no such group.
    """
    parts: list[str | tuple[int | str]] = []
    for found in _REFERENCE.finditer(text):
        escaped, name, digits, plain, other = found.groups()
        if name is not None and name in pattern.groupindex:
            parts.append((name,))
        elif digits is not None and int(digits[0]) <= pattern.groups:
            size = 1  # Java takes as many digits as there are groups
            while size < len(digits) and int(digits[: size + 1]) <= pattern.groups:
                size += 1
            parts += [(int(digits[:size]),), digits[size:]]
        elif name is not None or digits is not None or other is not None:
            raise InvalidSetting("replacement", text, f"{found.group()!r} is no group of the regex")
        else:
            parts.append(plain if escaped is None else escaped)
    return parts
