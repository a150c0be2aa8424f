"""Java's `SimpleDateFormat` by columns, in UTC: texts of timestamps, and timestamps of texts.

A pattern has the letters y M L d D H k h K m s S a E u z Z X and texts in single quotes. Parsing is
lenient as in Java: month 13 is January of the next year, and text after the last field is ignored.
`S` is a number of milliseconds, so `.5` with the pattern `.S` is 5 ms.

The calendar is ISO 8601's in all years; Java's is the Julian one before 15 October 1582.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.system import SYSTEM_CLOCK
from penstock.connect.transforms.transform import content, reject
from penstock.kernels import texts as kernels

_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HALVES: Final = ("AM", "PM")
_NUMBERS: Final = "yMLdDHkhKmsSu"
_LETTERS: Final = _NUMBERS + "aEzZX"
_TOKEN: Final = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|[^A-Za-z']+")
_ZONES: Final = {"z": ("UTC", "UTC", "UTC"), "Z": ("+0000",) * 3, "X": ("Z", "Z", "Z")}
_ZONE_TEXT: Final = r"(?:UTC|GMT|Z)?(?:[+-][0-9]{1,2}(?::?[0-9]{2})?)?"
_ZONE: Final = r"^(?:UTC|GMT|Z)?(?P<sign>[+-]?)(?P<hours>[0-9]{0,2}):?(?P<minutes>[0-9]{0,2})$"
_DAY_MS: Final = 86_400_000
_YEAR_MS: Final = 31_556_952_000
_UNIT_MS: Final = {"H": 3_600_000, "m": 60_000, "s": 1_000, "S": 1}
_PLACES: Final = {
    "y": (kernels.YEAR_AT, 4), "M": (kernels.YEAR_AT + 4, 2), "d": (kernels.YEAR_AT + 6, 2),
    "H": (kernels.HOUR_AT, 2), "m": (kernels.HOUR_AT + 2, 2), "s": (kernels.HOUR_AT + 4, 2),
    "S": (kernels.MILLISECOND_AT, 3), "D": (kernels.YEAR_DAY_AT, 3), "u": (kernels.WEEKDAY_AT, 1),
    "k": (kernels.HOUR_24_AT, 2), "K": (kernels.HALF_AT, 2), "h": (kernels.HALF_12_AT, 2),
}  # fmt: skip
"""Place and number of the digits of each field in the kernels' line."""
_DIGITS_MAX: Final = 18
"""Most digits of a number in a text that is parsed."""
_WIDE_MS: Final = np.array(["0001", "10000"], "M8[ms]").astype(np.int64)
"""First moment whose year has at most four digits, and the moment after the last one."""
_PIVOT_YEARS: Final = 80
"""A year of two digits is in the century that began this many years ago, as in Java."""


@dataclass(frozen=True, slots=True)
class _Token:
    """Part of a pattern: a letter and the number of times that it occurs, or a text."""

    letter: str
    count: int
    text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that a field of text can have; empty for numbers."""
        short = slice(None) if self.count > 3 else slice(3)
        if self.letter in "ML" and self.count > 2:
            return tuple(name[short] for name in _MONTHS)
        if self.letter == "E":
            return tuple(name[short] for name in _DAYS)
        return _HALVES if self.letter == "a" else ()

    @property
    def is_number(self) -> bool:
        return bool(self.letter) and self.letter in _NUMBERS and not self.names


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Form of texts of one width, as `kernels.texts` describes it (NumPy arrays)."""

    places: Any
    line: Any
    named: Any
    names: Any


@dataclass(frozen=True)
class DateFormat:
    """Pattern of dates; `parse_format` makes it.

    Attributes:
        first_year: first year that a text of two digits can mean.
    """

    pattern: str
    tokens: tuple[_Token, ...]
    first_year: int

    # Formatting

    def format(self, moments: Any) -> Any:
        """Return texts of moments, a column timestamp[ms] or int64; nulls stay null."""
        if self._unit_ms > 1_000:
            names = self.encoded(moments)
            return names.dictionary.take(names.indices)
        counts = moments.cast(pa.int64()).fill_null(0).to_numpy()
        texts = self._texts(counts)
        return pc.if_else(moments.is_valid(), texts, None) if moments.null_count else texts

    def encoded(self, moments: Any) -> Any:
        """Return texts of moments as a dictionary column, in which each text occurs once."""
        counts = moments.cast(pa.int64()).fill_null(0).to_numpy() // self._unit_ms
        changed = np.ones(len(counts), np.bool_)
        changed[1:] = counts[1:] != counts[:-1]
        starts = np.flatnonzero(changed)  # of runs of equal moments
        units = pa.array(counts[starts]).dictionary_encode()
        names = self._texts(units.dictionary.to_numpy() * self._unit_ms).dictionary_encode()
        numbers = names.indices.take(units.indices).to_numpy()
        indices = np.repeat(numbers, np.diff(starts, append=len(counts)))
        nulls = moments.is_null().to_numpy(False) if moments.null_count else None
        return pa.DictionaryArray.from_arrays(pa.array(indices, mask=nulls), names.dictionary)

    @cached_property
    def _unit_ms(self) -> int:
        """Largest unit within which all moments have the same text."""
        letters = {"H" if token.letter in "hHkKa" else token.letter for token in self.tokens}
        return min(
            (unit for letter, unit in _UNIT_MS.items() if letter in letters), default=_DAY_MS
        )

    def _texts(self, counts: Any) -> Any:
        """Return texts of milliseconds since 1970 (NumPy)."""
        inside = not counts.size or (counts.min() >= _WIDE_MS[0] and counts.max() < _WIDE_MS[1])
        form = self._form if inside else None
        if form is None:
            return self._joined(_Fields(counts))
        width, count = form.places.size, len(counts)
        target, numbers = np.empty(width * count, np.uint8), np.empty(len(kernels.NAMED), np.int64)
        line = form.line.copy()
        kernels.write_moments(counts, form.places, form.named, form.names, line, numbers, target)
        offsets = pa.py_buffer(np.arange(count + 1) * width)
        made = pa.LargeStringArray.from_buffers(count, offsets, pa.py_buffer(target))
        return made.cast(pa.string())

    @cached_property
    def _form(self) -> _Form | None:
        """Form of the texts for kernels; None if their width depends on the value."""
        places: list[int] = []
        named: list[tuple[int, int, int, int]] = []
        fixed = names = b""
        for token in self.tokens:
            if token.is_number:
                at, size = _PLACES[token.letter]
                if token.count != size and (token.letter, token.count) != ("y", 2):
                    return None
                places += range(at + size - token.count, at + size)
                continue
            texts = [text.encode() for text in token.names or (_fixed(token),)]
            width = len(texts[0])
            if any(len(text) != width for text in texts):
                return None
            at = kernels.LINE_BYTES + len(fixed)
            if token.names:
                named.append((kernels.NAMED.index(token.letter), width, len(names), at))
                names += b"".join(texts)
            places += range(at, at + width)
            fixed += texts[0]
        if kernels.LINE_BYTES + len(fixed) > 256:  # a place is one byte
            return None
        return _Form(
            places=np.array(places, np.uint8), named=np.array(named, np.int64).reshape(-1, 4),
            line=_bytes(b"19700101".ljust(kernels.LINE_BYTES, b"0") + fixed), names=_bytes(names),
        )  # fmt: skip

    def _joined(self, fields: _Fields) -> Any:
        """Return texts of any width, joined from the texts of the tokens."""
        parts: list[Any] = []
        for token in self.tokens:
            if token.is_number:
                number = pa.array(fields.number(token)).cast(pa.string())
                parts.append(pc.utf8_lpad(number, token.count, "0"))
            elif token.names:
                parts.append(pa.array(token.names).take(pa.array(fields.index(token))))
            else:
                parts.append(pa.repeat(_fixed(token), fields.count))
        return pc.binary_join_element_wise(*parts, "")

    # Parsing

    def parse(self, texts: Any) -> Any:
        """Return a column timestamp[ms] of texts; nulls stay null.

        Raises:
            RowsRejected: texts do not have the form of the pattern.
        """
        found, strict = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
        if all(token.is_number or not token.letter for token in self.tokens) and self._form:
            counts = {token.letter: token.count for token in self.tokens}  # of the last occurrences
            hour = next((letter for letter in "KhkH" if letter in counts), "H")
            size = kernels.LINE_BYTES
            kernels.read_moments(
                *content(texts), self._form.places, self._form.line[size:],
                self._form.line[:size] - ord("0"), _PLACES[hour][0], "D" in counts,
                self.first_year if counts.get("y") == 2 else -1, found, strict,
            )  # fmt: skip
        if not strict.all():
            slow = ~strict & texts.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero(slow)
            few = texts.take(pa.array(rows))
            parts = pc.extract_regex(few, self._expression)
            bad = np.zeros(len(texts), np.bool_)
            bad[rows] = parts.is_null().to_numpy(zero_copy_only=False)
            reject(bad, f"{{}} does not match the date format {self.pattern!r}", texts)
            found[rows] = _moments(self._read(parts), len(few))
        buffers = [None, pa.py_buffer(found)]
        column = pa.Array.from_buffers(pa.timestamp("ms"), len(texts), buffers)
        return pc.if_else(texts.is_valid(), column, None) if texts.null_count else column

    @cached_property
    def _expression(self) -> str:
        """Regular expression whose groups are the fields: `f0`, `f1` …"""
        parts = ["^"]
        for number, token in enumerate(self.tokens):
            following = self.tokens[number + 1] if number + 1 < len(self.tokens) else None
            if token.is_number:
                fixed = following is not None and following.is_number
                size = f"{{{token.count}}}" if fixed else f"{{1,{_DIGITS_MAX}}}"
                sign = "-?" if not fixed else ""
                parts.append(rf"[ \t]*(?P<f{number}>{sign}[0-9]{size})")
            elif token.names:
                long = _Token(token.letter, 4).names
                names = "|".join(name for pair in zip(long, token.names, strict=True)
                                 for name in (pair[0], pair[0][:3]))  # fmt: skip
                parts.append(rf"[ \t]*(?P<f{number}>(?i:{names}))")
            elif token.letter:
                parts.append(rf"[ \t]*(?P<f{number}>{_ZONE_TEXT})")
            else:
                parts.append(re.escape(token.text))
        return "".join(parts)

    def _read(self, parts: Any) -> dict[str, Any]:
        """Return numbers by letter from the groups of the expression."""
        numbers: dict[str, Any] = {}
        for number, token in enumerate(self.tokens):
            if not token.letter:
                continue
            text = pc.struct_field(parts, f"f{number}")
            if token.is_number:
                numbers[token.letter] = text.cast(pa.int64()).to_numpy()
                if _is_short(token):
                    two = pc.match_substring_regex(text, "^[0-9]{2}$").to_numpy(False)
                    value = numbers[token.letter]
                    numbers[token.letter] = np.where(two, _full_year(value, self.first_year), value)
            elif token.names:
                width = min(len(name) for name in token.names)
                names = pa.array([name[: min(width, 3)].lower() for name in token.names])
                start = pc.utf8_lower(pc.utf8_slice_codeunits(text, 0, min(width, 3)))
                index = pc.index_in(start, names).to_numpy()
                numbers[token.letter] = index + (token.letter in "ML")
            else:
                numbers["zone"] = _zone_ms(text)
        return numbers


def parse_format(value: object) -> DateFormat:
    """Return the format of a pattern.

    Raises:
        ValueError: the pattern is empty, or has an unknown letter.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a date format such as yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    tokens, at = [], 0
    while at < len(value):
        match = _TOKEN.match(value, at)
        if match is None:
            raise ValueError(f"quote {at + 1} of {value!r} has no second one")
        text, letter, quoted = match.group(), match.group(1), match.group(2)
        if letter and letter not in _LETTERS:
            raise ValueError(f"letter {letter} is not supported; use {', '.join(_LETTERS)}")
        if letter:
            tokens.append(_Token("M" if letter == "L" else letter, len(text)))
        else:
            plain = text if quoted is None else quoted.replace("''", "'") or "'"
            tokens.append(_Token("", 0, plain))
        at = match.end()
    year = SYSTEM_CLOCK.now_ms() // _YEAR_MS + 1970
    return DateFormat(value, tuple(tokens), year - _PIVOT_YEARS)


class _Fields:
    """Fields of moments, given as milliseconds since 1970."""

    def __init__(self, counts: Any) -> None:
        self.count = len(counts)
        days = counts // _DAY_MS
        self._ms = (counts - days * _DAY_MS).astype(np.int32)
        # Fields of days are calculated once for each day if the days are close to each other.
        first = days.min() if days.size else 0
        span = int(days.max() - first) + 1 if days.size else 0
        near = span <= self.count
        self._days = np.arange(first, first + span) if near else days
        self._months = self._days.astype("M8[D]").astype("M8[M]").astype(np.int64)
        self._index = days - first if near else slice(None)

    def number(self, token: _Token) -> Any:
        """Return the numbers of a field."""
        letter = token.letter
        if letter in "yMdDu":
            return self._of_days(token).astype(np.int32)[self._index]
        if letter in "msS":
            part = {"m": 60, "s": 60, "S": 1000}[letter]
            return (self._ms // _UNIT_MS[letter]) % part
        hour = self._ms // _UNIT_MS["H"]
        if letter in "hK":
            hour = hour % 12
        return np.where(hour == 0, 12 if letter == "h" else 24, hour) if letter in "hk" else hour

    def _of_days(self, token: _Token) -> Any:
        days, months, letter = self._days, self._months, token.letter
        if letter == "M":
            return months % 12 + 1
        if letter in "dD":
            first = months if letter == "d" else months - months % 12
            return days - first.astype("M8[M]").astype("M8[D]").astype(np.int64) + 1
        if letter in "uE":
            return (days + 3) % 7 + 1
        year = months // 12 + 1970
        year = np.where(year > 0, year, 1 - year)  # 0 is the year 1 before Christ
        return year % 100 if token.count == 2 else year

    def index(self, token: _Token) -> Any:
        """Return indexes into the names of a field of text."""
        if token.letter == "a":
            return self._ms // (12 * _UNIT_MS["H"])
        return self._of_days(token)[self._index] - 1


def _fixed(token: _Token) -> str:
    """Return the text of a token that is the same in all moments."""
    return _ZONES[token.letter][min(token.count, 3) - 1] if token.letter else token.text


def _bytes(text: bytes) -> Any:
    return np.frombuffer(text, np.uint8)


def _is_short(token: _Token) -> bool:
    return token.letter == "y" and token.count <= 2


def _full_year(years: Any, first: int) -> Any:
    """Return years of two digits with their century."""
    year = first - first % 100 + years
    return np.where(year < first, year + 100, year)


def _zone_ms(text: Any) -> Any:
    parts = pc.extract_regex(text, _ZONE)
    hours, minutes = (
        pc.if_else(pc.equal(pc.struct_field(parts, name), ""), "0", pc.struct_field(parts, name))
        .cast(pa.int64())
        .to_numpy()
        for name in ("hours", "minutes")
    )
    negative = pc.equal(pc.struct_field(parts, "sign"), "-").to_numpy(False)
    return np.where(negative, -1, 1) * (hours * _UNIT_MS["H"] + minutes * _UNIT_MS["m"])


def _moments(numbers: Mapping[str, Any], count: int) -> Any:
    """Return milliseconds since 1970 from numbers by letter, which may exceed their ranges."""
    zero = np.zeros(count, np.int64)
    year = numbers.get("y", zero + 1970)
    if "D" in numbers:
        months, day = (year - 1970) * 12, numbers["D"]
    else:
        months, day = (
            (year - 1970) * 12 + numbers.get("M", zero + 1) - 1,
            numbers.get("d", zero + 1),
        )
    days = months.astype("M8[M]").astype("M8[D]").astype(np.int64) + day - 1
    hour = numbers.get("H", zero)
    if "k" in numbers:
        hour = np.where(numbers["k"] == 24, 0, numbers["k"])
    for letter in "hK":
        if letter in numbers:
            half = numbers[letter]
            half = np.where(half == 12, 0, half) if letter == "h" else half
            hour = half + 12 * numbers.get("a", zero)
    found = days * _DAY_MS + hour * _UNIT_MS["H"] - numbers.get("zone", zero)
    for letter in "msS":
        found = found + numbers.get(letter, zero) * _UNIT_MS[letter]
    return found
