"""Tokens for values: equal values give equal tokens, so tables still join; no token can be
reversed.

A token is HMAC-SHA-256 of the value under the key of a *field*, cut to a length in an alphabet. Of
n values in a form of b bits, n² / 2^(b+1) pairs collide: none in practice with 32 hexadecimal
digits (the default, 128 bits); half a pair for 100,000 values with 10 decimal digits.

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
    """Invalid token form or length."""

    code: ClassVar[str] = "invalid_config"


class TokenForm(Struct, frozen=True, kw_only=True):
    """Form of a token.

    Attributes:
        form: `hex`, `base64` (A–Z a–z 0–9 - _) or `digits`.
        length: characters.

    Raises:
        InvalidTokenForm: no such form, or a length outside its bounds.
    """

    form: str = "hex"
    length: int = DEFAULT_LENGTH

    def __post_init__(self) -> None:
        most = LENGTHS_MAX.get(self.form)
        if most is None:
            raise InvalidTokenForm(f"token form {self.form!r} is none of {', '.join(LENGTHS_MAX)}")
        if not LENGTH_MIN <= self.length <= most:
            raise InvalidTokenForm(
                f"tokens of form {self.form} have from {LENGTH_MIN} to {most} characters, "
                f"not {self.length}"
            )


DEFAULT_FORM: Final = TokenForm()


def token(ring: KeyRing, field: str, value: bytes, form: TokenForm = DEFAULT_FORM) -> str:
    """Return the token of a value of a field."""
    return tokens(ring, field, [value], form)[0]


def tokens(ring: KeyRing, field: str, values: Sequence[bytes], form: TokenForm) -> list[str]:
    """Return the tokens of a field's values, in order."""
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
