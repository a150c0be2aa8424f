"""Exchange of SASL messages, independent of the mechanism.

A server's exchange processes a client's messages one by one. The outcome of a message is a
challenge to the client, or an accepted principal. `Later` is an outcome that takes milliseconds to
compute, so it must be computed off the event loop. In every other case `AuthenticationFailed` is
raised, which ends the exchange. Its text is sent to the client and does not depend on the cause;
`reason` is only for the log. Neither contains a secret.

Source: RFC 4422; KIP-152 (errors are answered).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final, Protocol

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.base.system import Randomness
from penstock.security.authoriser import Principal

_NONCE_BITS: Final = 192


class AuthenticationFailed(InvalidError):
    """Failed authentication of a client, or a malformed message.

    The message is sent to the client; `reason` is for the log.
    """

    code: ClassVar[str] = "sasl_authentication_failed"

    def __init__(self, message: str, *, reason: str = "", user: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.user = user
        """User name that the client sent; None if it sent none."""


class NobodysName(InvalidError):
    """Name in a certificate that maps to no principal."""

    code: ClassVar[str] = "sasl_authentication_failed"


class ServerUntrusted(InvalidError):
    """Server that did not prove that it knows the password, or that sent a malformed message."""

    code: ClassVar[str] = "sasl_authentication_failed"


def new_nonce(randomness: Randomness) -> str:
    """Return a random nonce for one exchange, in hexadecimal."""
    return f"{randomness.bits(_NONCE_BITS):048x}"


class Challenge(Struct, frozen=True, kw_only=True):
    """Outcome that continues the exchange: the next message to the client."""

    data: bytes


class Accepted(Struct, frozen=True, kw_only=True):
    """Outcome that ends the exchange successfully: the last message, and the principal.

    `expires_ms` is when the authentication expires, in milliseconds since 1970; None means never.
    """

    data: bytes
    principal: Principal
    expires_ms: int | None = None
    by_token: bool = False
    """Whether the client authenticated with a delegation token."""


Outcome = Challenge | Accepted


class Later(Struct, frozen=True, kw_only=True):
    """Outcome that is slow to compute; `find` computes it, or raises AuthenticationFailed."""

    find: Callable[[], Outcome]


class ServerExchange(Protocol):
    """Server's side of the authentication of one client."""

    def step(self, message: bytes) -> Outcome | Later:
        """Process the client's next message, and return the outcome.

        Raises:
            AuthenticationFailed: the authentication failed; the exchange has ended.
        """
        ...


class ClientExchange(Protocol):
    """Client's side of an authentication at a server."""

    done: bool
    """Whether the exchange has ended successfully for the client."""

    def respond(self, challenge: bytes) -> bytes:
        """Return the client's next message; this may be slow.

        `challenge` is the server's last message, empty before the first message.

        Raises:
            ServerUntrusted: the server's message is invalid.
        """
        ...
