"""Forms of the console: their fields, and the token that proves that a form is one of its own.

A browser sends the credentials of this address with every request, also with one that a page of
another site makes. Two checks reject such requests. The Host and Origin headers must name this
listener (`security/http_credentials.py`), and each form must have a token, which only pages of the
console contain. The token depends on the principal and on the cluster's secret, so every broker
accepts it. It is masked with random bytes, so compressed pages do not reveal it (BREACH).

Source: OWASP, "Cross-Site Request Forgery Prevention".
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import parse_qs

from penstock.base.errors import InvalidError
from penstock.base.settings import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request

    from penstock.base.system import Randomness
    from penstock.security import Principal

PROOF: Final = "proof"
"""Name of the field with the token."""
CONFIRM: Final = "confirm"
"""Name of the field with the name that confirms a destructive act."""
FIELDS_MAX: Final = 10_000
_DIGEST_BYTES: Final = 32


class ReadOnly(InvalidError):
    """Request to change something through a console that is read-only."""

    code: ClassVar[str] = "cluster_authorization_failed"


class ForeignForm(InvalidError):
    """Form without the token of the console's pages."""

    code: ClassVar[str] = "cluster_authorization_failed"


class InvalidField(InvalidError):
    """Field of a form whose value is not allowed."""

    code: ClassVar[str] = "invalid_request"


class Form:
    """Fields of a form."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def text(self, name: str, default: str = "") -> str:
        """Return the value of a field without surrounding spaces, or the default if it is empty."""
        values = self._fields.get(name)
        return (values[0].strip() if values else "") or default

    def texts(self, name: str) -> Sequence[str]:
        return self._fields.get(name, ())

    def number(self, name: str, title: str, maximum: int) -> int:
        """Return a whole number from 0 to `maximum`; raises InvalidField, which names `title`."""
        text = self.text(name)
        found = whole_number(text, maximum)
        if found is None:
            raise InvalidField(f"{title} {text!r} must be a whole number of at most {maximum:,}")
        return found

    def named(self, start: str) -> dict[str, str]:
        """Return the first values of the fields whose names begin with `start`, by the rest."""
        return {
            name.removeprefix(start): values[0]
            for name, values in self._fields.items()
            if name.startswith(start)
        }

    def check_confirmed(self, name: str) -> None:
        """Raise InvalidField unless the user has typed the name of what is about to change."""
        typed = self.text(CONFIRM)
        if typed != name.strip():
            raise InvalidField(f"type {name!r} to confirm; the field has {typed!r}")


def form_of(request: Request) -> Form:
    """Return the form of a request that has passed `Tokens.check`."""
    form: Form = request.state.form
    return form


class Tokens:
    """Issuer and verifier of the tokens in forms."""

    def __init__(self, key: bytes, randomness: Randomness) -> None:
        self._key = key
        self._randomness = randomness

    def issue(self, principal: Principal) -> str:
        mask = self._randomness.bits(8 * _DIGEST_BYTES).to_bytes(_DIGEST_BYTES, "big")
        return urlsafe_b64encode(mask + _xor(mask, self._digest(principal))).decode()

    def is_valid(self, token: str, principal: Principal) -> bool:
        try:
            raw = urlsafe_b64decode(token.encode())
        except ValueError:
            return False
        mask, rest = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        if len(rest) != _DIGEST_BYTES:
            return False
        return hmac.compare_digest(_xor(mask, rest), self._digest(principal))

    async def check(self, request: Request, principal: Principal) -> None:
        """Read the form of a request, and keep it for `form_of`.

        Raises:
            ForeignForm: the form has no valid token.
            InvalidField: the body is not a form.
        """
        try:
            fields = parse_qs(
                (await request.body()).decode(),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=FIELDS_MAX,
            )
        except ValueError:
            raise InvalidField("the request body is not a form in UTF-8") from None
        form = request.state.form = Form(fields)
        if not self.is_valid(form.text(PROOF), principal):
            raise ForeignForm(
                "the form is not from this console, or its page was loaded before you signed in as"
                " another user. Load the page again and repeat the act"
            )

    def _digest(self, principal: Principal) -> bytes:
        return hmac.digest(self._key, str(principal).encode(), "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
