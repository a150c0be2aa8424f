"""The admin interface while a client guesses passwords, keeps connections, or sends without end."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.testing import Broker
from tests.broker.security.secured import PASSWORD, context, users_file
from tests.security.certificates import keystore, truststore

FAILURES_MAX = 20
SILENT = 100
PIECE = bytes(64 << 10)
SENT_MAX = 32 << 20
"""Bytes that a sender gets rid of: what is read, and what both sides' buffers take."""


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, object]:
    return {
        "authorizer.class.name": "acls",
        "super.users": "User:alice;User:carol",
        "admin.basic.loopback": "true",
        "admin.max.connections": 8,
        "max.failed.authentications.per.ip": FAILURES_MAX,
        "sasl.users.file": users_file(tmp_path, "alice", "carol"),
    }


@pytest.fixture
def broker(settings: dict[str, object]) -> Iterator[Broker]:
    with Broker(settings) as broker:
        yield broker


def asked(connection: HTTPConnection, user: str = "", password: str = PASSWORD) -> tuple[int, bool]:
    """The status of a request for the cluster, or of a probe without user; whether it closes."""
    headers = {"authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}
    connection.request("GET", "/v1/cluster" if user else "/livez", headers=headers if user else {})
    answer = connection.getresponse()
    answer.read()
    return answer.status, answer.getheader("connection") == "close"


def test_wrong_passwords_are_counted(broker: Broker) -> None:
    place = urlsplit(broker.admin_url).netloc
    with closing(HTTPConnection(place)) as known, closing(HTTPConnection(place)) as guessing:
        assert asked(known, "alice") == (200, False)
        answers = [asked(guessing, "alice", f"guess {number}") for number in range(FAILURES_MAX)]
        assert answers == [(401, False)] * (FAILURES_MAX - 1) + [(429, True)]
        assert asked(guessing, "bob", "guess") == (429, True)
        assert asked(guessing, "carol") == (429, True), "a right guess is not shown"
        assert asked(known, "alice") == (200, False), "it was right before"
        assert asked(known) == (200, False)


def test_silent_tls_connections_shut_out_no_probe(
    settings: dict[str, object], tmp_path: Path
) -> None:
    more = {
        "admin.security.protocol": "SSL",
        "listener.name.admin.ssl.keystore.location": keystore(tmp_path),
        "listener.name.admin.ssl.truststore.location": truststore(tmp_path),
        "max.tls.handshakes": 10_000,
        "max.tls.handshakes.per.ip": 10_000,
    }
    with Broker({**settings, **more}) as broker, ExitStack() as stack:
        place = urlsplit(broker.admin_url)
        tls = context(tmp_path)
        for _ in range(SILENT):
            plain = socket.create_connection(
                (place.hostname or "", place.port or 0), source_address=("127.0.0.2", 0)
            )
            stack.enter_context(tls.wrap_socket(plain, server_hostname="localhost"))
        for _ in range(3):
            made = HTTPSConnection(place.hostname or "", place.port, context=_trusting(tls))
            with closing(made) as connection:
                assert asked(connection) == (200, False)


def test_silent_connections_of_the_same_address_shut_out_no_probe(
    settings: dict[str, object], tmp_path: Path
) -> None:
    more = {
        "admin.security.protocol": "SSL",
        "listener.name.admin.ssl.keystore.location": keystore(tmp_path),
        "max.unauthenticated.connections.per.ip": 8,
    }
    with Broker({**settings, **more}) as broker, ExitStack() as stack:
        place = urlsplit(broker.admin_url)
        for _ in range(SILENT):
            silent = socket.create_connection((place.hostname or "", place.port or 0))
            stack.enter_context(silent)
        tls = _trusting(context(tmp_path))
        made = HTTPSConnection(place.hostname or "", place.port, context=tls)
        with closing(made) as connection:
            assert asked(connection) == (200, False)


def _trusting(tls: ssl.SSLContext) -> ssl.SSLContext:
    tls.check_hostname = False
    return tls


@pytest.mark.parametrize(
    "length", ["Content-Length: 1000000000000000", "Transfer-Encoding: chunked"]
)
def test_a_body_without_end_is_not_read(broker: Broker, length: str) -> None:
    place = urlsplit(broker.admin_url)
    head = f"PUT /v1/staging/a HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
    piece = PIECE if "Length" in length else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    sent = 0
    with socket.create_connection((place.hostname or "", place.port or 0), 30) as connection:
        connection.sendall(head.encode())
        with suppress(ConnectionError):
            while sent <= SENT_MAX:
                connection.sendall(piece)
                sent += len(piece)
    assert sent <= SENT_MAX
