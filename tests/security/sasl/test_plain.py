"""PLAIN: one message, verified against the credential that SCRAM has."""

from __future__ import annotations

import pytest

from penstock.security import Principal
from penstock.security.sasl import AuthenticationFailed, Later
from penstock.security.sasl.plain import NAME_BYTES_MAX, REFUSAL, PlainClient, PlainServer
from tests.security.exchanges import SECRET, accepted, outcome, users


def server() -> PlainServer:
    return PlainServer(users("alice", "ünï"), SECRET)


@pytest.mark.parametrize("user", ["alice", "ünï"])
def test_the_right_password(user: str) -> None:
    here = PlainClient(user, f"secret of {user}")
    end = accepted(server(), here.respond(b""))
    assert (end.data, end.principal, end.expires_ms) == (b"", Principal("User", user), None)
    assert here.done


def test_an_authorisation_id_may_be_the_users_own() -> None:
    assert accepted(server(), b"alice\0alice\0secret of alice").principal.name == "alice"


def test_verifying_is_left_for_later() -> None:
    assert isinstance(server().step(b"\0alice\0wrong"), Later)
    assert isinstance(server().step(b"\0nobody\0wrong"), Later)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0secret of alice",
        b"\0alice\0wrong",
        b"\0mallory\0secret of alice",
        b"root\0alice\0secret of alice",
        b"\0alice\0secret of alice\0",
        b"\0alice\0secret of alice\0more",
        b"\0alice\0\xff\xfe",
        b"\0" + b"a" * (NAME_BYTES_MAX + 1) + b"\0secret",
        b"\0alice\0" + b"p" * 60_000,
    ],
)
def test_every_refusal_reads_the_same(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        outcome(server(), message)
    assert str(refused.value) == REFUSAL
    assert "secret" not in refused.value.reason
