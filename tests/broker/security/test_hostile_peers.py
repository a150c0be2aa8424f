"""Attacks of hostile peers on one broker with all its listeners, all at once.

Each attack gets the right rejection or a closed connection within `CLOSED_SECONDS`; a user
continues to produce, and the broker's memory grows little. Every attack has its own source address,
so that none is rejected because of another. `test_abuse.py` has attacks that need a view inside.
"""

from __future__ import annotations

import base64
import hmac
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest

from penstock.client.admin_http import AdminHttp, AdminSecurity
from penstock.client.security import admin_security
from penstock.security.sasl.scram import ScramClient
from penstock.testing import Broker
from penstock.wire.kafka.apis import API_VERSIONS, BY_NAME
from tests.broker.security.arena import (
    BOMB,
    CLOSED_SECONDS,
    FAILED,
    GROWTH_KIB,
    HTTP,
    INVALID_REQUEST,
    KINDS,
    LISTENERS,
    MECHANISM,
    RSA,
    UNSUPPORTED_MECHANISM,
    UNSUPPORTED_VERSION,
    Arena,
    Peer,
    encoded,
    frame,
    kind,
    said,
)
from tests.broker.security.hostile_http import REQUESTS
from tests.broker.security.secured import PASSWORD, context, users_file
from tests.broker.wire_client import batch, produce_request
from tests.ports import free_port
from tests.security.certificates import client_hello, keystore, truststore
from tests.security.exchanges import key_set, signing_key, token

pytestmark = pytest.mark.timeout(120)

# Bytes that are closed upon


def closed(
    arena: Arena, listener: str, *sent: bytes, secure: bool = True, pause: float = 0
) -> None:
    with arena.open(listener, secure=secure) as peer:
        peer.send(*sent, pause=pause)
        assert peer.rest() == b"" or listener.endswith("SSL")


def unframed(key: int, version: int = 0, rest: bytes = b"\0" * 20) -> bytes:
    body = struct.pack(">hhih", key, version, 1, -1) + rest
    return struct.pack(">i", len(body)) + body


HELLO: Final = bytes.fromhex("16030100a5010000a10303") + bytes(160)
CLOSED: Final[dict[str, tuple[str, bytes]]] = {
    **{
        f"{name}, to {listener}": (listener, sent)
        for listener in ("SASL_SSL", "SASL_PLAINTEXT")
        for name, sent in (
            ("one byte more than 64 KiB", struct.pack(">i", 65_537)),
            ("2 GiB", b"\x7f\xff\xff\xff"),
            ("a negative length", b"\x80\0\0\0"),
            ("an empty frame", bytes(4)),
            ("half a length", bytes(2)),
            ("half a frame", b"\0\0\1\0\0\x24"),
        )
    },
    "an unknown API key": ("SASL_PLAINTEXT", unframed(9999)),
    "a negative API key": ("SASL_SSL", unframed(-1)),
    "a client id that reaches beyond": ("SASL_PLAINTEXT", b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\x7f\xff"),
    "a client id that is no text": ("SASL_PLAINTEXT", b"\0\0\0\x0c\0\x12\0\0\0\0\0\1\0\2\xff\xfe"),
    "a bomb to decompress": (
        "SASL_PLAINTEXT",
        frame("Produce", 3, b"\xff\xff\0\1\0\0\0\0\0\0\0\1\0\1t\0\0\0\1" + BOMB),
    ),
    "SASL without Kafka's frames": ("SASL_PLAINTEXT", b"\0\0\0\x0e\0alice\0wrong!!!"),
    "HTTP to a Kafka listener": ("SASL_PLAINTEXT", HTTP),
    "HTTP in TLS to a Kafka listener": ("SASL_SSL", HTTP),
    "TLS within TLS": ("SASL_SSL", HELLO),
    "TLS to a plain listener": ("SASL_PLAINTEXT", HELLO),
    **{
        f"{name} before authentication": ("SASL_PLAINTEXT", unframed(BY_NAME[name].key))
        for name in ("Metadata", "CreateAcls", "AlterUserScramCredentials", "Fetch", "JoinGroup")
    },
}
for _name, (_listener, _sent) in CLOSED.items():
    KINDS[_name] = partial(
        lambda arena, one, sent: closed(arena, one, sent), one=_listener, sent=_sent
    )

IN_PLAIN: Final[dict[str, bytes]] = {
    "a request of Kafka without TLS": frame("ApiVersions", 0, b""),
    "HTTP without TLS": HTTP,
    "a hello of SSL 2": bytes.fromhex("802e0100020015000000100100800300800700c0"),
    "a TLS record of 64 KiB": b"\x16\x03\x01\xff\xff" + bytes(200),
    "an alert": bytes.fromhex("15030100020228"),
    "records without content": bytes.fromhex("1603010000") * 200,
    "half a hello": HELLO[:60],
    "application data before a handshake": bytes.fromhex("1703030010") + bytes(16),
}
for _name, _sent in IN_PLAIN.items():
    for _listener in ("SASL_SSL", "ADMIN"):
        KINDS[f"{_name}, to {_listener}"] = partial(
            lambda arena, one, sent: _no_tls(arena, one, sent), one=_listener, sent=_sent
        )


def _no_tls(arena: Arena, listener: str, sent: bytes) -> None:
    with arena.open(listener, secure=False) as peer:
        peer.send(sent)
        said = peer.rest()
        assert len(said) < 100, said
        assert said[:1] in (b"", b"\x15"), said  # an alert at most


# TLS


@kind
def a_handshake_byte_by_byte(arena: Arena) -> None:
    for listener in ("SSL", "ADMIN"):
        with arena.open(listener, secure=False) as peer:
            peer.send(*[bytes([byte]) for byte in client_hello(arena.trusting)[:60]], pause=0.12)
            assert len(peer.rest()) < 100


@kind
def a_handshake_that_is_left_halfway(arena: Arena) -> None:
    with arena.open("SASL_SSL", secure=False) as peer:
        peer.send(client_hello(arena.trusting))
        assert peer.rest()  # the server's half


@kind
def a_certificate_of_another_authority(arena: Arena) -> None:
    made = context(arena.directory)
    made.load_cert_chain(keystore(arena.directory, "mallory", hosts=(), ca="their CA"))
    with (
        socket.create_connection(("127.0.0.1", arena.ports["SSL"]), 20) as opened,
        pytest.raises((ssl.SSLError, ConnectionError, EOFError)),
        Peer(made.wrap_socket(opened, server_hostname="localhost")) as peer,
    ):
        peer.call("Metadata", 9, {"topics": []})


@kind
def renegotiation(arena: Arena) -> None:
    openssl = shutil.which("openssl")
    assert openssl is not None
    port = arena.ports["SASL_SSL"]
    command = [openssl, "s_client", "-tls1_2", "-connect", f"127.0.0.1:{port}"]
    said = subprocess.run(command, input=b"R\n", capture_output=True, timeout=15).stderr
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said, said


# Kafka's protocol


@kind
def versions_that_there_are_not(arena: Arena) -> None:
    with arena.open("SASL_SSL") as peer:
        peer.send(unframed(API_VERSIONS, 99))
        assert peer.answer("ApiVersions", 0).error_code == UNSUPPORTED_VERSION
    for name in ("SaslHandshake", "SaslAuthenticate"):
        with arena.open("SASL_PLAINTEXT") as peer:
            peer.send(unframed(BY_NAME[name].key, 99))
            assert len(peer.rest()) < 200


@kind
def a_request_behind_half_an_exchange(arena: Arena) -> None:
    with arena.open("SASL_SSL") as peer:
        assert peer.sasl(MECHANISM, b"n,,n=alice,r=abc").error_code == 0
        peer.send(frame("Metadata", 0, b"\0\0\0\0"))
        assert peer.rest() == b""


@kind
def another_mechanism_halfway(arena: Arena) -> None:
    with arena.open("SASL_SSL") as peer:
        assert peer.sasl(MECHANISM, b"n,,n=alice,r=abc").error_code == 0
        peer.send(frame("SaslHandshake", 1, b"\0\5PLAIN"))
        assert peer.rest() == b""


@kind
def mechanisms_that_there_are_not(arena: Arena) -> None:
    for name in ("plain", "GSSAPI", "PLAIN\0", "SCRAM-SHA-256-PLUS", "x" * 30_000, ""):
        with arena.open("SASL_PLAINTEXT") as peer:
            answer = peer.call("SaslHandshake", 1, {"mechanism": name})
            assert answer.error_code == UNSUPPORTED_MECHANISM
            assert peer.rest() == b""


def refused(arena: Arena, mechanism: str, *messages: bytes, listener: str = "SASL_SSL") -> None:
    with arena.open(listener) as peer:
        answer = peer.sasl(mechanism, *messages)
        assert answer.error_code == FAILED, messages
        assert "alice" not in answer.error_message
        assert peer.rest() == b""


PLAIN: Final[dict[str, bytes]] = {
    "no NUL": b"alice" + PASSWORD.encode(),
    "a NUL too many": b"\0alice\0" + PASSWORD.encode() + b"\0",
    "a NUL in the name": b"\0ali\0ce\0" + PASSWORD.encode(),
    "nobody": b"\0\0" + PASSWORD.encode(),
    "no password": b"\0alice\0",
    "nothing": b"",
    "the authorisation id of another": b"bob\0alice\0" + PASSWORD.encode(),
    "a name that is no text": b"\0\xffalice\0" + PASSWORD.encode(),
    "a name in other letters": b"\0Alice\0" + PASSWORD.encode(),
    "a name with a space": b"\0alice \0" + PASSWORD.encode(),
    "a name that looks the same": "\0\N{CYRILLIC SMALL LETTER A}lice\0".encode()
    + PASSWORD.encode(),
    "the name of the brokers": b"\0__penstock\0" + PASSWORD.encode(),
}
for _name, _sent in PLAIN.items():
    KINDS[f"PLAIN with {_name}"] = partial(
        lambda arena, sent: refused(arena, "PLAIN", sent), sent=_sent
    )

SCRAM: Final[dict[str, bytes]] = {
    "channel binding": b"p=tls-unique,,n=alice,r=abc",
    "an escaped comma and no name": b"n,,n==2C,r=abc",
    "an escape in small letters": b"n,,n=alice=2c,r=abc",
    "an escape that is none": b"n,,n=alice=,r=abc",
    "a NUL in the name": b"n,,n=al\0ice,r=abc",
    "two names": b"n,,n=alice,n=bob,r=abc",
    "the authorisation id of another": b"n,a=bob,n=alice,r=abc",
    "an extension that must be known": b"n,,m=x,n=alice,r=abc",
    "no nonce": b"n,,n=alice,r=",
    "a nonce of 2 KiB": b"n,,n=alice,r=" + b"a" * 2048,
    "a message of 60 KiB": b"n,,n=alice,r=abc," + b"x=y" * 20_000,
    "a final message first": b"c=biws,r=abc,p=AAAA",
    "bytes that are no text": b"n,,n=\xff\xfe,r=abc",
}
for _name, _sent in SCRAM.items():
    KINDS[f"SCRAM with {_name}"] = partial(
        lambda arena, sent: refused(arena, MECHANISM, sent, b"c=biws,r=x,p=AAAA"), sent=_sent
    )


def changed_final(arena: Arena, old: bytes, new: bytes, password: str = PASSWORD) -> None:
    """A right exchange whose last message was changed."""
    client = ScramClient(MECHANISM, "alice", password, nonce="abc")
    with arena.open("SASL_SSL") as peer:
        challenge = peer.sasl(MECHANISM, client.respond(b"")).auth_bytes
        final = client.respond(challenge)
        assert old in final
        message = {"auth_bytes": final.replace(old, new)}
        assert peer.call("SaslAuthenticate", 2, message).error_code == FAILED
        assert peer.rest() == b""


FINAL: Final = {
    "another nonce": (b"r=abc", b"r=abd"),
    "the nonce of the client alone": (b",r=abc", b",r=abc,x=y,r=abc"),
    "the binding of another flag": (b"c=biws", b"c=eSws"),
    "an empty proof": (b",p=", b",p=AAAA,p="),
    "no proof": (b",p=", b",q="),
}
for _name, (_old, _new) in FINAL.items():
    KINDS[f"SCRAM that ends with {_name}"] = partial(
        lambda arena, old, new: changed_final(arena, old, new), old=_old, new=_new
    )


# Tokens


def signed_by_public_key() -> str:
    """Return a token signed with the public key as secret."""
    head = f"{encoded({'alg': 'HS256', 'kid': 'k1'})}.{encoded(said())}"
    made = hmac.digest(RSA.as_pem(private=False), head.encode(), "sha256")  # type: ignore[union-attr]
    return f"{head}.{base64.urlsafe_b64encode(made).rstrip(b'=').decode()}"


TOKENS: Final[dict[str, Callable[[], str]]] = {
    "by nobody": lambda: f"{encoded({'alg': 'none'})}.{encoded(said())}.",
    "by None in other letters": lambda: (
        f"{encoded({'alg': 'nOnE', 'kid': 'k1'})}.{encoded(said())}."
    ),
    "by the public key as a secret": signed_by_public_key,
    "for another audience": lambda: token(RSA, said(aud="other")),
    "of another issuer": lambda: token(RSA, said(iss="https://issuer.attacker")),
    "that has ended": lambda: token(RSA, said(exp=int(time.time()) - 60)),
    "that never ends": lambda: token(RSA, said(exp=None)),
    "of tomorrow": lambda: token(RSA, said(nbf=int(time.time()) + 86_400)),
    "whose key is a path": lambda: token(RSA, said(), key_id="../../../../dev/null"),
    "by a key of its own": lambda: token(
        signing_key("EC"), said(), algorithm="ES256", jwk=RSA.as_dict(private=False)
    ),
    "of 20 KiB": lambda: token(RSA, said(more="x" * 20_000)),
    "with half a character as its name": lambda: token(RSA, said(sub="alice\ud800")),
    "with a critical extension": lambda: token(RSA, said(), crit=["b64"], b64=True),
}


def refused_token(arena: Arena, shown: str) -> None:
    message = b"n,,\1auth=Bearer " + shown.encode() + b"\1\1"
    refused(arena, "OAUTHBEARER", message, b"\1")


for _name, _make in TOKENS.items():
    KINDS[f"a token {_name}"] = partial(
        lambda arena, make: refused_token(arena, make()), make=_make
    )


@kind
def two_tokens_in_a_message(arena: Arena) -> None:
    good = b"\1auth=Bearer " + token(RSA, said()).encode()
    refused(arena, "OAUTHBEARER", b"n," + good + good + b"\1\1")


# Many


@kind
def connections_of_one_address(arena: Arena) -> None:
    """More than may wait are closed at once, and others are not concerned."""
    peers = [arena.open("SASL_PLAINTEXT", source="127.0.2.1") for _ in range(300)]
    try:
        last = peers[-1]
        assert last.rest() == b""
        assert time.monotonic() - last.began < 3
    finally:
        for peer in peers:
            peer.socket.close()


@kind
def connections_of_http(arena: Arena) -> None:
    peers = [arena.open("ADMIN", source="127.0.2.3", secure=False) for _ in range(200)]
    for peer in peers:
        peer.socket.close()


# All of it


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "jwks.json").write_bytes(key_set(k1=RSA))
    ports = {name: free_port() for name in LISTENERS}
    settings = {
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "authorizer.class.name": "acls",
        "super.users": "User:alice",
        "admin.security.protocol": "SSL",
        "ssl.keystore.location": keystore(directory),
        "ssl.truststore.location": truststore(directory),
        "ssl.client.auth": "requested",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
        "sasl.users.file": users_file(directory, "alice", "bob"),
        "sasl.oauthbearer.jwks.endpoint.url": (directory / "jwks.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "penstock",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "authentication.timeout.ms": 4_000,
    }
    with Broker(settings, process=True) as broker:
        ports["ADMIN"] = int(broker.admin_url.rpartition(":")[2])
        yield Arena(broker, directory, ports, context(directory))


class User:
    """Alice, who produces for as long as it takes."""

    def __init__(self, arena: Arena) -> None:
        self.took: list[float] = []
        self._peer = arena.open("SASL_SSL", source="127.0.3.1")
        assert self._peer.sasl("PLAIN", b"\0alice\0" + PASSWORD.encode()).error_code == 0
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
        topics = [{**topic, "assignments": [], "configs": []}]
        self._peer.call("CreateTopics", 7, {"topics": topics, "timeout": 5000})
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        request = produce_request("t", batch(b"x" * 1000))
        while not self._ended.wait(0.02):
            began = time.monotonic()
            answer = self._peer.call("Produce", 9, request)
            assert answer.responses[0].partition_responses[0].error_code == 0
            self.took.append(time.monotonic() - began)

    def end(self) -> None:
        self._ended.set()
        self._thread.join(30)
        self._peer.socket.close()


@dataclass(slots=True)
class Battle:
    results: dict[str, Future[None]]
    user: User
    before_kib: int
    after_kib: int


@pytest.fixture(scope="module")
def battle(arena: Arena) -> Battle:
    """Run all attacks at once, beside a user."""
    user = User(arena)
    time.sleep(0.5)
    before_kib = arena.resident_kib()
    with ThreadPoolExecutor(32) as pool:
        results = {name: pool.submit(attack, arena) for name, attack in KINDS.items()}
    after_kib = arena.resident_kib()
    count = len(user.took)
    time.sleep(0.5)
    assert len(user.took) > count
    user.end()
    return Battle(results, user, before_kib, after_kib)


@pytest.mark.parametrize("name", KINDS)
def test_is_refused(battle: Battle, name: str) -> None:
    battle.results[name].result()


def test_a_client_continues_during_the_attack(battle: Battle) -> None:
    took = sorted(battle.user.took)
    assert len(took) > 50
    assert took[-1] < CLOSED_SECONDS
    print(f"produce: {len(took)}, p99 {took[len(took) * 99 // 100] * 1000:.0f} ms")


def test_nothing_stays(battle: Battle, arena: Arena) -> None:
    assert battle.after_kib - battle.before_kib <= GROWTH_KIB
    print(f"the broker has grown by {(battle.after_kib - battle.before_kib) >> 10} MiB")
    security = admin_security(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": PASSWORD,
            "ssl.truststore.location": truststore(arena.directory),
        }
    )
    until = time.monotonic() + 20
    while (waiting := _waiting(arena, security)) and time.monotonic() < until:
        time.sleep(0.1)
    assert waiting == 0


def _waiting(arena: Arena, security: AdminSecurity) -> float:
    with AdminHttp(arena.broker.admin_url, security=security) as admin:
        text = admin.ask("GET", "/metrics", timeout_seconds=20).content.decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] not in "#")
    return float(lines["penstock_unauthenticated_connections"])


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 100
    assert {f"HTTP with {name}" for name in REQUESTS} <= {*KINDS}


@pytest.mark.parametrize("where", ["resource_name", "principal", "host"])
@pytest.mark.parametrize(
    "text", ["a\0b", "a\nb", "a\x1b[2J", "a" * 30_000], ids=["NUL", "line", "escape", "long"]
)
def test_names_of_acls(arena: Arena, where: str, text: str) -> None:
    """The attacker may create ACLs."""
    creation = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3,
        "principal": "User:bob", "host": "*", "operation": 3, "permission_type": 3,
        where: f"User:{text}" if where == "principal" else text,
    }  # fmt: skip
    with arena.open("SASL_SSL", source="127.0.3.2") as peer:
        assert peer.sasl("PLAIN", b"\0alice\0" + PASSWORD.encode()).error_code == 0
        answer = peer.call("CreateAcls", 3, {"creations": [creation]})
    assert answer.results[0].error_code == INVALID_REQUEST
