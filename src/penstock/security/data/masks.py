"""Masks: reduce a value to its readable part, without a key and irreversibly.

Every mask has two forms that agree to the letter: over an Arrow column (`columns.py`), and as an
expression of Spark's SQL, which its own engine computes. Both use the same regular expressions,
which RE2 and Java read alike. What does not look as its kind should is masked as a whole: a number
in a column of addresses is not shown because it is none.

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
"""Of a kind: what its values look like, and what is shown, texts and groups."""


class InvalidMask(InvalidError):
    """Invalid mask."""

    code: ClassVar[str] = "invalid_config"


class Mask(Struct, frozen=True, kw_only=True):
    """Mask of a value.

    Attributes:
        kind: one of `KINDS`.
        first: characters that `keep` shows at the front; of a shorter value nothing is shown.
        last: the same at the end.
        text: replacement of the whole value.

    Raises:
        InvalidMask: no such kind, or a number below 0 or above `KEPT_MAX`.
    """

    kind: str = "all"
    first: int = 0
    last: int = 0
    text: str = FIXED

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidMask(f"mask {self.kind!r} is none of {', '.join(KINDS)}")
        for name, value in (("first", self.first), ("last", self.last)):
            if not 0 <= value <= KEPT_MAX:
                raise InvalidMask(f"{name} is {value}, must be from 0 to {KEPT_MAX}")

    def in_sql(self, column: str) -> str:
        """Return the mask as an expression of Spark's SQL over a quoted text column."""
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
    """Quote a text for SQL so that Spark substitutes no variables (`${…}`)."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
