"""OAUTHBEARER: the client presents a signed token.

    first message   n,[a=authorisation id],^Aauth=Bearer TOKEN^A[key=value^A…]^A
    refusal         {"status":"invalid_token"}, which the client answers with ^A

A `Verifier` verifies tokens (`security/tokens.py`). A client stays authenticated until its token
expires. The contents of a token are never sent back and never logged.

Source: RFC 7628, RFC 6750; KIP-255, KIP-768; Kafka's `OAuthBearerSaslServer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Protocol

from penstock.security.authoriser import Principal
from penstock.security.sasl.exchange import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Later,
    Outcome,
    ServerUntrusted,
)
from penstock.security.tokens import InvalidToken, TokenOwner, UnknownKey

REFUSAL: Final = b'{"status":"invalid_token"}'
FAILED: Final = '{"status":"invalid_token"}'
"""Final error message for the client, exactly as Apache Kafka sends it."""
_GOES_ON: Final = b"\1"
_NAME: Final = r"(?:[^\0=,\x01]|=2C|=3D)+"
_PAIR: Final = r"[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01"
_FIRST: Final = re.compile(rf"n,(?:a=(?P<authorised>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_BEARER: Final = re.compile(r"bearer +(?P<token>[A-Za-z0-9\-._~+/]+=*)", re.IGNORECASE)


class Verifier(Protocol):
    """Port that verifies tokens."""

    def verify(self, token: str) -> TokenOwner:
        """Verify a token and return its owner.

        Raises:
            UnknownKey: the token is signed with a key that has not been loaded.
            InvalidToken: the token is invalid.
        """
        ...

    def verify_with_new_keys(self, token: str) -> TokenOwner:
        """Load new keys, then verify a token and return its owner; this is slow.

        Raises:
            InvalidToken: the token is invalid, or its key is still unknown.
        """
        ...


class OAuthBearerServer:
    """Server's side of OAUTHBEARER, for one client."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._refused: AuthenticationFailed | None = None

    def step(self, message: bytes) -> Outcome | Later:
        if self._refused is not None:
            raise self._refused
        authorised, token = _parse(message)
        try:
            return self._outcome(lambda: self._verifier.verify(token), authorised)
        except UnknownKey:
            new_keys = self._verifier.verify_with_new_keys
            return Later(find=lambda: self._outcome(lambda: new_keys(token), authorised))

    def _outcome(self, verify: Callable[[], TokenOwner], authorised: str) -> Outcome:
        try:
            owner = verify()
            if authorised not in ("", owner.name):
                raise InvalidToken("the authorisation id is another user", owner=owner.name)
        except UnknownKey:
            raise
        except InvalidToken as error:
            self._refused = AuthenticationFailed(FAILED, reason=str(error), user=error.owner)
            return Challenge(data=REFUSAL)
        return Accepted(
            data=b"", principal=Principal("User", owner.name), expires_ms=owner.expires_ms
        )


def _parse(message: bytes) -> tuple[str, str]:
    found = _FIRST.fullmatch(message.decode("utf-8", "replace"))
    if found is None:
        raise AuthenticationFailed(FAILED, reason="malformed first message of OAUTHBEARER")
    pairs = [pair.partition("=") for pair in found["pairs"].split("\1") if pair]
    values = [value for key, _, value in pairs if key.lower() == "auth"]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        raise AuthenticationFailed(FAILED, reason="the message has no single bearer token")
    authorised = found["authorised"] or ""
    return authorised.replace("=2C", ",").replace("=3D", "="), bearer["token"]


class OAuthBearerClient:
    """Client's side of OAUTHBEARER; `token` is called when the token is needed."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token
        self._sent = False
        self.done = False

    def respond(self, challenge: bytes) -> bytes:
        if not self._sent:
            self._sent = True
            token = self._token()
            if _BEARER.fullmatch(f"bearer {token}") is None:
                raise ServerUntrusted("the token has characters that bearer tokens cannot have")
            return b"n,,\1auth=Bearer " + token.encode() + b"\1\1"
        if challenge:
            return _GOES_ON  # the server then sends the error
        self.done = True
        return b""
