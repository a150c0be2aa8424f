"""Masks and tokens, which replace values of fields irreversibly.

A mask reduces a value to the characters that may be shown, and needs no key. A token is a keyed
hash: equal values of a field have equal tokens, so tables can still be joined.

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

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.security.data.key_ring import KeyRing

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


# Tokens that replace values: equal values give equal tokens, so tables can still be joined.
#
# No token can be reversed. A token is the HMAC-SHA-256 of the value with the key of a *field*,
# shortened to a length in an alphabet. Different values can get the same token: with n values and
# tokens of b bits, about n² / 2^(b+1) pairs collide. With the default of 32 hexadecimal digits (128
# bits) there are practically none; with 10 decimal digits, half a pair for 100,000 values.
#
# Source: RFC 2104 (HMAC); the birthday bound.


LENGTH_MIN: Final = 8
DEFAULT_LENGTH: Final = 32
LENGTHS_MAX: Final[Mapping[str, int]] = {"hex": 64, "base64": 43, "digits": 64}
_PURPOSE: Final = "token:"


class InvalidTokenForm(InvalidError):
    """Form or length that tokens cannot have."""

    code: ClassVar[str] = "invalid_config"


class TokenForm(Struct, frozen=True, kw_only=True):
    """Form of tokens: their alphabet and length.

    Attributes:
        form: `hex`, `base64` (A–Z a–z 0–9 - _) or `digits`.
        length: number of characters.

    Raises:
        InvalidTokenForm: the form is unknown, or the length is out of its bounds.
    """

    form: str = "hex"
    length: int = DEFAULT_LENGTH

    def __post_init__(self) -> None:
        most = LENGTHS_MAX.get(self.form)
        if most is None:
            raise InvalidTokenForm(
                f"token form {self.form!r} must be one of {', '.join(LENGTHS_MAX)}"
            )
        if not LENGTH_MIN <= self.length <= most:
            raise InvalidTokenForm(
                f"the length of tokens of form {self.form} must be from {LENGTH_MIN} to {most}, "
                f"not {self.length}"
            )


DEFAULT_FORM: Final = TokenForm()


def token(ring: KeyRing, field: str, value: bytes, form: TokenForm = DEFAULT_FORM) -> str:
    """Return the token of a value, computed with the key of the field in the ring."""
    return tokens(ring, field, [value], form)[0]


def tokens(ring: KeyRing, field: str, values: Sequence[bytes], form: TokenForm) -> list[str]:
    """Return the tokens of values of a field, in the same order."""
    key, write = ring.secret(_PURPOSE + field), _WRITERS[form.form]
    return [write(hmac.digest(key, value, "sha256"), form.length) for value in values]


def _hex(digest: bytes, length: int) -> str:
    return digest.hex()[:length]


def _base64(digest: bytes, length: int) -> str:
    return urlsafe_b64encode(digest)[:length].decode()


def _digits(digest: bytes, length: int) -> str:
    return str(int.from_bytes(digest, "big") % 10**length).zfill(length)


_WRITERS: Final[Mapping[str, Callable[[bytes, int], str]]] = {
    "hex": _hex,
    "base64": _base64,
    "digits": _digits,
}
