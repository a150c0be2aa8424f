"""SASL state of one connection, which determines the requests that it may send.

    BEGIN     before a handshake: ApiVersions, SaslHandshake
    EXCHANGE  a mechanism was agreed on: SaslAuthenticate, or raw tokens
    DONE      all requests; SaslHandshake starts reauthentication (KIP-368)
    FAILED    no requests

After SaslHandshake version 0 the client sends raw tokens: frames without a header. Responses to
them have no error code, so the broker rejects a token by closing the connection. aiokafka up to
version 0.12 authenticates in this way. After its session has ended, a connection may only
reauthenticate, as the same principal by the same mechanism.

Source: Kafka's `SaslServerAuthenticator`; KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.security import Principal
from penstock.security.authoriser import PEER
from penstock.security.credentials import HASHES
from penstock.security.sasl import (
    Accepted,
    AuthenticationFailed,
    Later,
    Outcome,
    ServerExchange,
)
from penstock.security.sasl.peers import USER
from penstock.wire.kafka.apis import API_VERSIONS, BY_NAME
from penstock.wire.kafka.framing import MalformedRequest

HANDSHAKE: Final = BY_NAME["SaslHandshake"].key
AUTHENTICATE: Final = BY_NAME["SaslAuthenticate"].key
VERSIONS_MAX: Final = 4
"""ApiVersions requests before authentication; clients send one, or two in different versions."""
AGAIN_SECONDS: Final = 1.0
"""Minimum time between authentications of a connection (as in Kafka)."""


class NotAuthenticated(MalformedRequest):
    """Request that the connection may not send in its current state."""


class UnsupportedMechanism(InvalidError):
    code: ClassVar[str] = "unsupported_sasl_mechanism"


class IllegalState(InvalidError):
    """SASL request that is not expected in the current state of the connection."""

    code: ClassVar[str] = "illegal_sasl_state"


class Step(Enum):
    BEGIN = auto()
    EXCHANGE = auto()
    DONE = auto()
    FAILED = auto()


class Authentication:
    """SASL state of one connection. All parameters `now` are monotonic seconds."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        begin: Callable[[str], ServerExchange],
        now: float,
        *,
        brokers_only: bool = False,
    ) -> None:
        """`begin` starts an exchange. With `brokers_only`, only other brokers may authenticate."""
        self.mechanisms = mechanisms
        self._brokers_only = brokers_only
        self.mechanism = ""
        self.principal: Principal | None = None
        self.raw = False
        """Whether the client sends raw tokens until it has authenticated."""
        self.by_token = False
        """Whether the client authenticated with a delegation token."""
        self.expires = float("inf")
        """End of the authenticated session, in monotonic seconds."""
        self._begin = begin
        self._step = Step.BEGIN
        self._exchange: ServerExchange | None = None
        self._versions = 0
        self._since = now

    def check(self, key: int, now: float) -> None:
        """Raise NotAuthenticated unless the connection may send a request of this API key."""
        if self._step is Step.DONE:
            if now < self.expires or key in (HANDSHAKE, AUTHENTICATE):
                return
            raise NotAuthenticated("a request after the end of the authenticated session")
        if self._step is Step.EXCHANGE:
            allowed = key == AUTHENTICATE
        elif key == API_VERSIONS:
            self._versions += 1
            allowed = self._step is Step.BEGIN and self._versions <= VERSIONS_MAX
        else:
            allowed = self._step is Step.BEGIN and key in (HANDSHAKE, AUTHENTICATE)
        if not allowed:
            raise NotAuthenticated(f"a request with API key {key} before authentication")

    def handshake(self, mechanism: str, now: float, *, raw: bool = False) -> None:
        """Begin an exchange by a mechanism; raises UnsupportedMechanism, IllegalState."""
        again = self._step is Step.DONE
        if again and raw:
            raise IllegalState("SaslHandshake version 0 cannot begin a reauthentication")
        if self._step not in (Step.BEGIN, Step.DONE) or (
            again and now - self._since < AGAIN_SECONDS
        ):
            raise IllegalState(
                "SaslHandshake is not allowed during an authentication, or within"
                f" {AGAIN_SECONDS:g} s after one"
            )
        if again and mechanism != self.mechanism:
            self._step = Step.FAILED
            raise UnsupportedMechanism(f"{self.principal} must reauthenticate by {self.mechanism}")
        if mechanism not in self.mechanisms:
            self._step = Step.FAILED
            raise UnsupportedMechanism(
                f"mechanism {mechanism!r:.60} is not supported, only {', '.join(self.mechanisms)}"
            )
        self.mechanism = mechanism
        self._exchange = self._begin(mechanism)
        self._step = Step.EXCHANGE
        self.raw = raw

    def step(self, message: bytes) -> Outcome | Later:
        """Handle the client's next message; raises AuthenticationFailed, IllegalState."""
        if self._exchange is None or self._step is not Step.EXCHANGE:
            raise IllegalState("SaslAuthenticate requires a SaslHandshake first")
        return self._exchange.step(message)

    def accept(
        self, accepted: Accepted, now: float, now_ms: int, longest_ms: int
    ) -> tuple[int, Principal]:
        """Complete an authentication; return the session's length in ms and the principal.

        A length of 0 means unlimited.

        Raises:
            AuthenticationFailed: the principal differs from that of the last authentication, or is
                no broker although only brokers may authenticate.
        """
        principal = accepted.principal
        is_user = self.mechanism in HASHES and not accepted.by_token
        if is_user and principal.name == USER:  # only brokers have this user
            principal = PEER
        if self._brokers_only and principal != PEER:
            raise AuthenticationFailed("the listener has no SASL", user=principal.name)
        if self.principal is not None and self.principal != principal:
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from {self.principal}"
                f" to {principal}",
                user=principal.name,
            )
        bounds = [longest_ms] if longest_ms and principal != PEER else []
        if accepted.expires_ms is not None:
            bounds.append(max(0, accepted.expires_ms - now_ms))
        self.principal = principal
        self.by_token = accepted.by_token
        self._exchange = None
        self.raw = False
        self._step = Step.DONE
        self._since = now
        lifetime_ms = min(bounds, default=0)
        self.expires = now + lifetime_ms / 1000 if bounds else float("inf")
        return lifetime_ms, principal

    def fail(self) -> None:
        self._step = Step.FAILED
        self._exchange = None
