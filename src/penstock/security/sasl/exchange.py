"""Exchange of SASL messages, independent of the mechanism.

A server's exchange handles a client's messages one by one. Each has an outcome: a challenge to the
client, or an accepted principal. `Later` is an outcome that takes milliseconds to compute, off the
event loop. Every other case raises `AuthenticationFailed`, which ends the exchange. Its text goes
to the client and does not depend on the cause; `reason` is for the log. Neither contains a secret.

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
    """The client's identity is not proven, or its message is malformed."""

    code: ClassVar[str] = "sasl_authentication_failed"

    def __init__(self, message: str, *, reason: str = "", user: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message
        self.user = user
        """Who the client said that it is, if it did."""


class NobodysName(InvalidError):
    """The name in a certificate maps to no principal."""

    code: ClassVar[str] = "sasl_authentication_failed"


class ServerUntrusted(InvalidError):
    """The server did not prove knowledge of the password, or its message is malformed."""

    code: ClassVar[str] = "sasl_authentication_failed"


def new_nonce(randomness: Randomness) -> str:
    """Return a nonce for one exchange, in hexadecimal."""
    return f"{randomness.bits(_NONCE_BITS):048x}"


class Challenge(Struct, frozen=True, kw_only=True):
    """Next message to the client."""

    data: bytes


class Accepted(Struct, frozen=True, kw_only=True):
    """End of an exchange: the principal, and its expiry in ms since the epoch (None: never)."""

    data: bytes
    principal: Principal
    expires_ms: int | None = None


Outcome = Challenge | Accepted


class Later(Struct, frozen=True, kw_only=True):
    """Slow outcome; `find` raises AuthenticationFailed."""

    find: Callable[[], Outcome]


class ServerExchange(Protocol):
    """Authentication of one client."""

    def step(self, message: bytes) -> Outcome | Later:
        """Process the client's next message.

        Raises:
            AuthenticationFailed: the exchange has ended.
        """
        ...


class ClientExchange(Protocol):
    """Authentication at a server."""

    done: bool
    """Whether the mechanism is content with what the server said."""

    def respond(self, challenge: bytes) -> bytes:
        """Return the next message; `challenge` is empty for the first one. May be slow.

        Raises:
            ServerUntrusted: the server's message is invalid.
        """
        ...
