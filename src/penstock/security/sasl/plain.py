"""PLAIN: name and password in clear text, verified against the user's SCRAM credential.

    message = [authorisation id] NUL name NUL password

Only TLS protects the password on the network. The verification takes as long for an unknown user as
for a known one: the password is hashed for a decoy credential, which matches no password.

Source: RFC 4616; Kafka's `PlainSaslServer` (its error text).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.security.authoriser import Principal
from penstock.security.credentials import (
    PLAIN,
    Credentials,
    ScramCredential,
    credential_or_decoy,
    matches,
)
from penstock.security.sasl.exchange import Accepted, AuthenticationFailed, Later

REFUSAL: Final = "Authentication failed: Invalid username or password"
NAME_BYTES_MAX: Final = 1024
_PARTS: Final = 3


class PlainServer:
    """Server's side of PLAIN, for one client; `secret` is the seed of decoy credentials."""

    def __init__(self, credentials: Credentials, secret: bytes) -> None:
        self._credentials = credentials
        self._secret = secret

    def step(self, message: bytes) -> Later:
        user, password = _parse(message)
        kept, known = credential_or_decoy(self._credentials, PLAIN, user, self._secret)
        reason = "wrong password" if known else "unknown user"
        return Later(find=partial(_verify, kept, user, password, reason))


def _verify(credential: ScramCredential, user: str, password: str, reason: str) -> Accepted:
    if not matches(credential, password):
        raise AuthenticationFailed(REFUSAL, reason=reason, user=user)
    return Accepted(data=b"", principal=Principal("User", user))


def _parse(message: bytes) -> tuple[str, str]:
    parts = message.split(b"\0")
    if len(parts) != _PARTS:
        raise AuthenticationFailed(
            REFUSAL, reason=f"the message has {len(parts)} parts instead of {_PARTS}"
        )
    try:
        authorised, user, password = [part.decode("utf-8") for part in parts]
    except UnicodeDecodeError:
        raise AuthenticationFailed(REFUSAL, reason="the message is not UTF-8") from None
    if not user or len(parts[1]) > NAME_BYTES_MAX:
        raise AuthenticationFailed(
            REFUSAL,
            reason=f"the name has {len(parts[1])} bytes; it must have 1 to {NAME_BYTES_MAX}",
        )
    if not password:
        raise AuthenticationFailed(REFUSAL, reason="no password", user=user)
    if authorised not in ("", user):
        raise AuthenticationFailed(
            REFUSAL, reason="the authorisation id is another user", user=user
        )
    return user, password


class PlainClient:
    """Client's side of PLAIN."""

    def __init__(self, user: str, password: str) -> None:
        self._message = b"\0".join([b"", user.encode(), password.encode()])
        self.done = False

    def respond(self, challenge: bytes) -> bytes:
        self.done = True
        return self._message
