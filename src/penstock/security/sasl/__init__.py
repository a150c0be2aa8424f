"""SASL: one state machine for each mechanism and side, bytes in and bytes out."""

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
