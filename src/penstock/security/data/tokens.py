"""Tokens that replace values: equal values give equal tokens, so tables can still be joined.

No token can be reversed. A token is the HMAC-SHA-256 of the value with the key of a *field*,
shortened to a length in an alphabet. Different values can get the same token: with n values and
tokens of b bits, about n² / 2^(b+1) pairs collide. With the default of 32 hexadecimal digits (128
bits) there are practically none; with 10 decimal digits, half a pair for 100,000 values.

Source: RFC 2104 (HMAC); the birthday bound.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.security.data.key_ring import KeyRing

LENGTH_MIN: Final = 8
DEFAULT_LENGTH: Final = 32
LENGTHS_MAX: Final[Mapping[str, int]] = {"hex": 64, "base64": 43, "digits": 64}
_PURPOSE: Final = "token:"


class InvalidTokenForm(InvalidError):
    """Form or length that tokens cannot have."""

    code: ClassVar[str] = "invalid_config"


class TokenForm(Struct, frozen=True, kw_only=True):
    """Form of tokens.

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
    """Return the token of one value of a field."""
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
