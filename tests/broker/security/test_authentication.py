"""The core of authentication: states, mechanisms and principals."""

from __future__ import annotations

from math import inf

import pytest

from penstock.broker.net.authentication import Authentication
from penstock.security import Principal
from penstock.security.authoriser import PEER
from penstock.security.credentials import FileCredentials
from penstock.security.sasl import Accepted, AuthenticationFailed
from penstock.security.sasl.peers import USER
from penstock.security.sasl.plain import PlainServer

ALICE = Principal("User", "alice")
BROKER = Principal("User", USER)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256")


def agreed(mechanism: str, *, brokers_only: bool = False) -> Authentication:
    """Return a state that agreed on a mechanism at second 10."""
    made = Authentication(
        MECHANISMS,
        lambda _: PlainServer(FileCredentials({}), b"secret"),
        10.0,
        brokers_only=brokers_only,
    )
    made.handshake(mechanism, 10.0)
    return made


def accepted(principal: Principal, expires_ms: int | None = None) -> Accepted:
    return Accepted(data=b"", principal=principal, expires_ms=expires_ms)


@pytest.mark.parametrize("brokers_only", [False, True])
def test_a_connection_with_the_brokers_secret_needs_no_reauthentication(brokers_only: bool) -> None:
    made = agreed("SCRAM-SHA-256", brokers_only=brokers_only)
    assert made.accept(accepted(BROKER), 11.0, 0, 60_000) == (0, PEER)
    assert (made.principal, made.expires) == (PEER, inf)


def test_by_other_mechanisms_the_brokers_name_is_a_name() -> None:
    assert agreed("PLAIN").accept(accepted(BROKER), 11.0, 0, 0) == (0, BROKER)


def test_clients_do_not_authenticate_where_only_brokers_may() -> None:
    made = agreed("SCRAM-SHA-256", brokers_only=True)
    with pytest.raises(AuthenticationFailed) as failed:
        made.accept(accepted(ALICE), 11.0, 0, 0)
    assert (failed.value.user, made.principal) == ("alice", None)


@pytest.mark.parametrize(
    ("longest_ms", "expires_ms", "lifetime_ms"),
    [(0, None, 0), (5000, None, 5000), (0, 1_002_000, 2000), (5000, 1_002_000, 2000), (5, 0, 0)],
)
def test_a_session_ends_with_what_ends_first(
    longest_ms: int, expires_ms: int | None, lifetime_ms: int
) -> None:
    made = agreed("PLAIN")
    answer = made.accept(accepted(ALICE, expires_ms), 11.0, 1_000_000, longest_ms)
    assert answer == (lifetime_ms, ALICE)
    bound = bool(longest_ms) or expires_ms is not None
    assert made.expires == (11.0 + lifetime_ms / 1000 if bound else inf)


def test_reauthentication_keeps_the_principal() -> None:
    made = agreed("PLAIN")
    made.accept(accepted(ALICE), 11.0, 0, 1000)
    made.handshake("PLAIN", 12.5)
    with pytest.raises(AuthenticationFailed, match="from User:alice to User:bob"):
        made.accept(accepted(Principal("User", "bob")), 12.6, 0, 1000)
