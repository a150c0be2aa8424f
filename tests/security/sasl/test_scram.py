"""SCRAM: RFC 7677 word for word, and what clients and servers must not get away with."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest

from penstock.security import Principal
from penstock.security.credentials import (
    HASHES,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    FileCredentials,
    derive,
    salted_password,
)
from penstock.security.sasl import AuthenticationFailed, ServerUntrusted
from penstock.security.sasl.scram import MESSAGE_BYTES_MAX, ScramClient, ScramServer
from tests.security.exchanges import SECRET, accepted, challenge, outcome, users

CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
KEPT = FileCredentials(
    {
        (SCRAM_SHA_256, "user"): derive(
            SCRAM_SHA_256, "pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096
        )
    }
)


def example_server() -> ScramServer:
    return ScramServer(SCRAM_SHA_256, KEPT, nonce=SERVER_NONCE, secret=SECRET)


def server(mechanism: str = SCRAM_SHA_256, nonce: str = "server") -> ScramServer:
    return ScramServer(mechanism, users("alice", "a=b,c"), nonce=nonce, secret=SECRET)


def client(
    mechanism: str = SCRAM_SHA_256, user: str = "alice", password: str | None = None
) -> ScramClient:
    said = f"secret of {user}" if password is None else password
    return ScramClient(mechanism, user, said, nonce="client")


def test_the_rfcs_example_word_for_word() -> None:
    one = example_server()
    assert challenge(one, CLIENT_FIRST) == SERVER_FIRST
    end = accepted(one, CLIENT_FINAL)
    assert (end.data, end.principal) == (SERVER_FINAL, Principal("User", "user"))

    other = ScramClient(SCRAM_SHA_256, "user", "pencil", nonce=CLIENT_NONCE)
    assert other.respond(b"") == CLIENT_FIRST
    assert other.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not other.done
    assert other.respond(SERVER_FINAL) == b""
    assert other.done


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["alice", "a=b,c"])
def test_both_sides_agree(mechanism: str, user: str) -> None:
    here, there = client(mechanism, user), server(mechanism)
    end = accepted(there, here.respond(challenge(there, here.respond(b""))))
    here.respond(end.data)
    assert here.done
    assert end.principal == Principal("User", user)


def test_unknown_users_and_wrong_passwords_read_the_same() -> None:
    texts = []
    for user, password in (("alice", "wrong"), ("mallory", "secret of mallory")):
        here, there = client(user=user, password=password), server()
        asked = challenge(there, here.respond(b""))
        assert b",i=4096" in asked
        with pytest.raises(AuthenticationFailed) as refused:
            there.step(here.respond(asked))
        texts.append(str(refused.value))
        assert refused.value.user == user
    assert len(set(texts)) == 1


def test_an_unknown_user_is_shown_the_same_salt_every_time() -> None:
    first = client(user="mallory").respond(b"")
    assert challenge(server(), first) == challenge(server(), first)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=,r=client",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,,n=al=41ice,r=client",
        b"n,,n=alice,r=cli,ent",
        b"n,,m=ext,n=alice,r=client",
        b"p=tls-unique,,n=alice,r=client",
        b"n,a=bob,n=alice,r=client",
        b"n,,n=alice,r=client\0",
        b"n,,n=\xff,r=client",
        b"n,,n=alice,r=" + b"c" * MESSAGE_BYTES_MAX,
        b"c=biws,r=clientserver,p=AAAA",
        CLIENT_FINAL,
    ],
)
def test_first_messages_that_are_refused(message: bytes) -> None:
    one = server()
    with pytest.raises(AuthenticationFailed):
        one.step(message)
    with pytest.raises(AuthenticationFailed):
        one.step(client().respond(b""))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # y,,
        (b"c=biws", b"c=cD10bHMtdW5pcXVlLCw="),
        (b"c=biws,", b""),
        (b"clientserver", b"client"),
        (b"clientserver", b"clientserver2"),
        (b",p=", b",p=AAAA"),
        (b",p=", b",p="[:2] + b"?"),
        (b",p=", b",x=1,p="),
    ],
)
def test_final_messages_that_are_refused(old: bytes, new: bytes) -> None:
    one, here = server(), client()
    final = here.respond(challenge(one, here.respond(b"")))
    with pytest.raises(AuthenticationFailed):
        one.step(final.replace(old, new))
    with pytest.raises(AuthenticationFailed):
        one.step(final)


def test_a_proof_is_worth_nothing_in_another_exchange() -> None:
    here, there = client(), server(nonce="one")
    first = here.respond(b"")
    final = here.respond(challenge(there, first))
    another = server(nonce="two")
    challenge(another, first)
    with pytest.raises(AuthenticationFailed):
        another.step(final)


@pytest.mark.parametrize(
    ("nonce", "taken"), [("clientclientserver", True), ("xclientserver", False), ("server", False)]
)
def test_the_clients_nonce_may_be_said_twice(nonce: str, taken: bool) -> None:
    there = server()
    challenged = challenge(there, b"n,,n=alice,r=client").decode()
    _, salt, iterations = (part[2:] for part in challenged.split(","))
    said = f"n=alice,r=client,{challenged},c=biws,r={nonce}".encode()
    password = "secret of alice"
    salted = salted_password(SCRAM_SHA_256, password, b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(hashlib.sha256(key).digest(), said, "sha256")
    proof = b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    final = f"c=biws,r={nonce},p={proof.decode()}".encode()
    if taken:
        assert accepted(there, final).principal.name == "alice"
    else:
        with pytest.raises(AuthenticationFailed):
            outcome(there, final)


def test_stored_keys_alone_prove_nothing() -> None:
    there = server()
    kept = users("alice").credential(SCRAM_SHA_256, "alice")
    assert kept is not None
    challenge(there, client().respond(b""))
    with pytest.raises(AuthenticationFailed):
        there.step(b"c=biws,r=clientserver,p=" + b64encode(kept.stored_key))


def test_an_authenticated_exchange_accepts_no_further_messages() -> None:
    there, here = example_server(), CLIENT_FINAL
    challenge(there, CLIENT_FIRST)
    accepted(there, here)
    with pytest.raises(AuthenticationFailed):
        there.step(here)


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"e=other-error",
        SERVER_FIRST.replace(b"rOprNG", b"XXXXXX"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"4096", b"1"),
        SERVER_FIRST.replace(b"4096", b"4095"),
        SERVER_FIRST.replace(b"4096", b"999999999"),
        SERVER_FIRST.replace(b"4096", b"9" * 30),
        SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"AAAA"),
        b"m=ext," + SERVER_FIRST,
        SERVER_FIRST + b",x=\xff",
    ],
)
def test_servers_whose_first_message_is_not_taken(first: bytes) -> None:
    here = ScramClient(SCRAM_SHA_256, "user", "pencil", nonce=CLIENT_NONCE)
    here.respond(b"")
    with pytest.raises(ServerUntrusted):
        here.respond(first)


@pytest.mark.parametrize("final", [b"", b"e=invalid-proof", b"v=", b"v=AAAA", b"v=\xff", b"p=AAAA"])
def test_servers_that_do_not_prove_themselves(final: bytes) -> None:
    here = ScramClient(SCRAM_SHA_256, "user", "pencil", nonce=CLIENT_NONCE)
    here.respond(b"")
    here.respond(SERVER_FIRST)
    with pytest.raises(ServerUntrusted):
        here.respond(final)
    assert not here.done


@pytest.mark.parametrize("size", range(len(CLIENT_FINAL)))
def test_truncated_messages_are_refused(size: int) -> None:
    one = example_server()
    challenge(one, CLIENT_FIRST)
    with pytest.raises(AuthenticationFailed):
        outcome(one, CLIENT_FINAL[:size])


def test_a_name_without_a_user_is_challenged_as_users_are() -> None:
    salt, iterations = b"twenty-six bytes of a salt", 8192
    kept = derive(SCRAM_SHA_512, "pencil", salt=salt, iterations=iterations)
    users = FileCredentials({(SCRAM_SHA_512, "alice"): kept})
    shown = []
    for user in ("alice", "nobody", "nobody"):
        one = ScramServer(SCRAM_SHA_512, users, nonce="server", secret=SECRET)
        said = challenge(one, f"n,,n={user},r=client".encode()).decode()
        shown.append(dict(part.split("=", 1) for part in said.split(",")))
    alice, nobody, again = shown
    assert (nobody["i"], len(nobody["s"])) == (alice["i"], len(alice["s"]))
    assert nobody == again
    assert nobody["s"] != alice["s"]
