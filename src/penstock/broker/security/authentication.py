"""How far one connection is with saying who it is: which requests it may make, and what then.

    BEGIN     nothing was said: ApiVersions, SaslHandshake
    EXCHANGE  a mechanism was agreed on: SaslAuthenticate
    DONE      all requests; SaslHandshake begins anew (KIP-368), while the principal stays
    FAILED    nothing more

Who has authenticated until some moment may, after it, only authenticate anew; it has to be the same
principal, by the same mechanism.

Source: Kafka's `SaslServerAuthenticator`; KIP-152, KIP-368.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.security import Principal
from penstock.security.authoriser import PEER
from penstock.security.credentials import HASHES
from penstock.security.peers import USER
from penstock.security.sasl import (
    Accepted,
    AuthenticationFailed,
    Later,
    Outcome,
    ServerExchange,
)
from penstock.wire.kafka.apis import API_VERSIONS, BY_NAME
from penstock.wire.kafka.errors import MalformedRequest

HANDSHAKE: Final = BY_NAME["SaslHandshake"].key
AUTHENTICATE: Final = BY_NAME["SaslAuthenticate"].key
VERSIONS_MAX: Final = 4
"""ApiVersions that are answered before authentication; clients ask once, or in two versions."""
AGAIN_SECONDS: Final = 1.0
"""Who authenticates more often than this does not need it (as in Kafka)."""


class NotAuthenticated(MalformedRequest):
    """A request that its connection may not make yet, or not any more."""


class UnsupportedMechanism(InvalidError):
    """The listener does not have the mechanism."""

    code: ClassVar[str] = "unsupported_sasl_mechanism"


class IllegalState(InvalidError):
    """A message of authentication that does not belong here."""

    code: ClassVar[str] = "illegal_sasl_state"


class Step(Enum):
    """See the module's text."""

    BEGIN = auto()
    EXCHANGE = auto()
    DONE = auto()
    FAILED = auto()


class Authentication:
    """One connection's; `now` is monotonic seconds."""

    def __init__(
        self,
        mechanisms: Sequence[str],
        begin: Callable[[str], ServerExchange],
        now: float,
        *,
        brokers_only: bool = False,
    ) -> None:
        """`brokers_only`: nobody but other brokers authenticates here."""
        self.mechanisms = mechanisms
        self._brokers_only = brokers_only
        self.mechanism = ""
        self.principal: Principal | None = None
        self.expires = float("inf")
        """Until when the connection is authenticated."""
        self._begin = begin
        self._step = Step.BEGIN
        self._exchange: ServerExchange | None = None
        self._versions = 0
        self._since = now

    def check(self, key: int, now: float) -> None:
        """Raise NotAuthenticated unless a request may be made, by the key of its API."""
        if self._step is Step.DONE:
            if now < self.expires or key in (HANDSHAKE, AUTHENTICATE):
                return
            raise NotAuthenticated("a request after the session has ended")
        if self._step is Step.EXCHANGE:
            allowed = key == AUTHENTICATE
        elif key == API_VERSIONS:
            self._versions += 1
            allowed = self._step is Step.BEGIN and self._versions <= VERSIONS_MAX
        else:
            allowed = self._step is Step.BEGIN and key in (HANDSHAKE, AUTHENTICATE)
        if not allowed:
            raise NotAuthenticated(f"a request with API key {key} before authentication")

    def handshake(self, mechanism: str, now: float) -> None:
        """The client names a mechanism.

        Raises:
            UnsupportedMechanism: there is no such; the connection is of no more use.
            IllegalState: there is nothing to authenticate now.
        """
        again = self._step is Step.DONE
        if self._step not in (Step.BEGIN, Step.DONE) or (
            again and now - self._since < AGAIN_SECONDS
        ):
            raise IllegalState("SaslHandshake is not expected now")
        if again and mechanism != self.mechanism:
            self._step = Step.FAILED
            raise UnsupportedMechanism(
                f"{self.principal} has authenticated by {self.mechanism}, and has to again"
            )
        if mechanism not in self.mechanisms:
            self._step = Step.FAILED
            raise UnsupportedMechanism(
                f"mechanism {mechanism!r:.60} is none of {', '.join(self.mechanisms)}"
            )
        self.mechanism = mechanism
        self._exchange = self._begin(mechanism)
        self._step = Step.EXCHANGE

    def step(self, message: bytes) -> Outcome | Later:
        """The client's next message.

        Raises:
            AuthenticationFailed: the connection is of no more use.
            IllegalState: no mechanism was agreed on.
        """
        if self._exchange is None or self._step is not Step.EXCHANGE:
            raise IllegalState("SaslAuthenticate comes after SaslHandshake")
        return self._exchange.step(message)

    def accept(
        self, accepted: Accepted, now: float, now_ms: int, longest_ms: int
    ) -> tuple[int, Principal]:
        """The client is who it says; returns for how long, in ms, 0 for good, and who that is.

        `longest_ms` bounds it, unless it is 0; other brokers are not bound.

        Raises:
            AuthenticationFailed: the client was somebody else before, or had to be a broker.
        """
        principal = accepted.principal
        if self.mechanism in HASHES and principal.name == USER:  # who has no other credential
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
        self._exchange = None
        self._step = Step.DONE
        self._since = now
        lifetime_ms = min(bounds, default=0)
        self.expires = now + lifetime_ms / 1000 if bounds else float("inf")
        return lifetime_ms, principal

    def fail(self) -> None:
        """Nothing more is taken."""
        self._step = Step.FAILED
        self._exchange = None
