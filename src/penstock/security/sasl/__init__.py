"""SASL: a state machine for each mechanism and side, which maps received to sent bytes."""

from penstock.security.sasl.exchange import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    ClientExchange,
    Later,
    NobodysName,
    Outcome,
    ServerExchange,
    ServerUntrusted,
    new_nonce,
)

__all__ = [
    "Accepted",
    "AuthenticationFailed",
    "Challenge",
    "ClientExchange",
    "Later",
    "NobodysName",
    "Outcome",
    "ServerExchange",
    "ServerUntrusted",
    "new_nonce",
]
