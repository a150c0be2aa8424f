"""Masks: reduce a value to a part that may be shown, irreversibly and without a key.

Every mask has two implementations with identical results: over an Arrow column (`columns.py`), and
as an expression of Spark's SQL, which Spark's engine computes. Both use the same regular
expressions, which RE2 and Java interpret alike. A value that does not have the form of its kind is
masked as a whole. For example, a telephone number in a column of email addresses is not shown.

    kind    shows                                          otherwise
    all     nothing: a fixed text
    keep    the first and last characters, and the length  `*` for each character
    email   the first character, and the domain            the fixed text
    card    the last four digits of 12 to 19               the fixed text
    phone   the last two digits of 7 to 15                 the fixed text
"""

from __future__ import annotations

from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError

FIXED: Final = "***"
KEPT_MAX: Final = 1_000
KINDS: Final = ("all", "keep", "email", "card", "phone")
STAR: Final = "*"
PATTERNS: Final = {
    "email": (r"\A([^@ \t\r\n])[^@ \t\r\n]+@([^@ \t\r\n]+)\z", (1, "***@", 2)),
    "card": (
        r"\A(?:[0-9][ -]?){8,15}([0-9])[ -]?([0-9])[ -]?([0-9])[ -]?([0-9])\z",
        ("****", 1, 2, 3, 4),
    ),
    "phone": (r"\A[+]?(?:[(]?[0-9][ )./-]{0,2}){5,13}([0-9])[ -]?([0-9])\z", ("****", 1, 2)),
}  # fmt: skip
"""Pattern of each kind's values, and the parts that are shown: texts, and numbers of groups."""


class InvalidMask(InvalidError):
    """Invalid mask."""

    code: ClassVar[str] = "invalid_config"


class Mask(Struct, frozen=True, kw_only=True):
    """Mask for the values of a column.

    Attributes:
        kind: one of `KINDS`.
        first: number of leading characters that `keep` shows; values that are not longer than
            `first` and `last` together are masked completely.
        last: number of trailing characters that `keep` shows.
        text: replacement of a whole value.

    Raises:
        InvalidMask: the kind is unknown, or a number is not from 0 to `KEPT_MAX`.
    """

    kind: str = "all"
    first: int = 0
    last: int = 0
    text: str = FIXED

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidMask(f"mask kind {self.kind!r} must be one of {', '.join(KINDS)}")
        for name, value in (("first", self.first), ("last", self.last)):
            if not 0 <= value <= KEPT_MAX:
                raise InvalidMask(f"{name} = {value} of a mask must be from 0 to {KEPT_MAX}")

    def in_sql(self, column: str) -> str:
        """Return the mask as a Spark SQL expression; `column` is a text column's quoted name."""
        if self.kind == "keep":
            hidden = f"char_length({column}) - {self.first + self.last}"
            return (
                f"case when {hidden} <= 0 then repeat('{STAR}', char_length({column})) else "
                f"concat(left({column}, {self.first}), repeat('{STAR}', {hidden}), "
                f"right({column}, {self.last})) end"
            )
        fixed = f"if({column} is null, null, {_text(self.text)})"
        if self.kind == "all":
            return fixed
        pattern, shown = PATTERNS[self.kind]
        template = "".join(f"${part}" if isinstance(part, int) else part for part in shown)
        return (
            f"case when {column} rlike {_text(pattern)} then "
            f"regexp_replace({column}, {_text(pattern)}, {_text(template)}) else {fixed} end"
        )


def _text(text: str) -> str:
    """Quote a text for Spark's SQL, so that `${…}` in it is not substituted."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
