"""OAUTHBEARER's messages; what tokens are worth is tested beside `tokens`."""

from __future__ import annotations

import pytest

from penstock.security import Principal
from penstock.security.sasl import AuthenticationFailed, Later, ServerUntrusted
from penstock.security.sasl.oauthbearer import (
    REFUSAL,
    OAuthBearerClient,
    OAuthBearerServer,
)
from penstock.security.tokens import InvalidToken, TokenOwner, UnknownKey
from tests.security.exchanges import accepted, challenge


class Tokens:
    """Knows one token, and one more after a look for new keys."""

    def verify(self, token: str) -> TokenOwner:
        if token == "new":
            raise UnknownKey("unknown key")
        if token != "good":
            raise InvalidToken("it has ended", owner="alice")
        return TokenOwner(name="alice", expires_ms=5)

    def verify_with_new_keys(self, token: str) -> TokenOwner:
        return TokenOwner(name="bob", expires_ms=6)


def server() -> OAuthBearerServer:
    return OAuthBearerServer(Tokens())


def test_a_good_token() -> None:
    here = OAuthBearerClient(lambda: "good")
    end = accepted(server(), here.respond(b""))
    assert (end.principal, end.expires_ms) == (Principal("User", "alice"), 5)
    assert here.respond(end.data) == b""
    assert here.done


@pytest.mark.parametrize(
    "message",
    [
        b"n,a=alice,\1auth=Bearer good\1\1",
        b"n,,\1AUTH=bearer  good\1\1",
        b"n,,\1traceId=7\1auth=Bearer good\1logicalCluster=a b\1\1",
    ],
)
def test_first_messages_as_clients_write_them(message: bytes) -> None:
    assert accepted(server(), message).principal.name == "alice"


def test_an_unknown_key_is_looked_for_later() -> None:
    found = server().step(b"n,,\1auth=Bearer new\1\1")
    assert isinstance(found, Later)
    end = found.find()
    assert end.data == b""


def test_a_refused_token_is_reported_in_two_steps() -> None:
    one, here = server(), OAuthBearerClient(lambda: "old")
    refusal = challenge(one, here.respond(b""))
    assert refusal == REFUSAL
    answer = here.respond(refusal)
    assert answer == b"\1"
    with pytest.raises(AuthenticationFailed, match="invalid_token") as refused:
        one.step(answer)
    assert refused.value.reason == "it has ended"
    with pytest.raises(AuthenticationFailed):
        one.step(b"n,,\1auth=Bearer good\1\1")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\1",
        b"good",
        b"n,,\1\1",
        b"n,,\1auth=Bearer good\1",
        b"n,,auth=Bearer good\1\1",
        b"y,,\1auth=Bearer good\1\1",
        b"p=x,,\1auth=Bearer good\1\1",
        b"n,,\1auth=Basic good\1\1",
        b"n,,\1auth=Bearer\1\1",
        b"n,,\1auth=Bearer good bad\1\1",
        b"n,,\1auth=Bearer good\1auth=Bearer good\1\1",
        b"n,,\1auth=Bearer good\1\1more",
        b"n,,\1auth=Bearer g\xff\1\1",
        b"n,,\1" + b"a=b\1" * 10_000,
    ],
)
def test_messages_that_are_refused_at_once(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().step(message)


def test_the_authorisation_id_of_another_is_refused() -> None:
    assert challenge(server(), b"n,a=bob,\1auth=Bearer good\1\1") == REFUSAL


def test_a_client_shows_no_token_that_would_be_two_fields() -> None:
    with pytest.raises(ServerUntrusted):
        OAuthBearerClient(lambda: "good\1auth=Bearer other").respond(b"")
