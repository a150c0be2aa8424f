"""Tokens for values: equal values give equal tokens, so tables still join; no token can be
reversed.

A token is HMAC-SHA-256 of the value, under a key that the ring's secret gives for a *field*: the
same value in two fields has two tokens unless both name the same field. It is cut to a length in
an alphabet, so two values may share one: of n values in a form of b bits, n² / 2^(b+1) pairs do.
32 hexadecimal digits (the default) are 128 bits, where that is nothing; 10 decimal digits are 33
bits, where 100,000 values have half a pair.

Source: RFC 2104 (HMAC); the birthday bound.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.security.data.key_ring import KeyRing

LENGTH_MIN: Final = 8
DEFAULT_LENGTH: Final = 32
LENGTHS_MAX: Final[Mapping[str, int]] = {"hex": 64, "base64": 43, "digits": 64}
_PURPOSE: Final = "token:"


class InvalidTokenForm(InvalidError):
    """A form or length that a token cannot have."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenForm:
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
    """The token of one value of a field."""
    return tokens(ring, field, [value], form)[0]


def tokens(ring: KeyRing, field: str, values: Sequence[bytes], form: TokenForm) -> list[str]:
    """The tokens of values of a field, in their order."""
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
