"""Attacks on the admin interface over TLS; importing this module adds them to `KINDS`."""

from __future__ import annotations

import base64
import time
from functools import partial
from typing import Final

from tests.broker.security.arena import (
    BOMB,
    HTTP,
    KINDS,
    Arena,
    encoded,
    frame,
    kind,
    said,
)
from tests.broker.security.secured import PASSWORD


def asked(arena: Arena, sent: bytes, *statuses: int, answers: int = 1) -> bytes:
    """Send a request to the admin interface; the answer, which has one of these statuses."""
    with arena.open("ADMIN") as peer:
        peer.send(sent)
        said = peer.rest()
        assert said.count(b"HTTP/1.1 ") == answers, said
        assert int(said.split(b" ")[1]) in statuses, said
        assert b"Traceback" not in said
        return said


def request(
    path: str = "/v1/cluster", method: str = "GET", more: bytes = b"", host: bytes = b"localhost"
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\n".encode() + b"Host: " + host + b"\r\n"
    return head + b"Connection: close\r\n" + more + b"\r\n"


def basic(text: bytes) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(text) + b"\r\n"


ALICE: Final = basic(b"alice:" + PASSWORD.encode())
PUT: Final = "/v1/staging/a"
SMUGGLED: Final = b"5\r\nabcde\r\n0\r\n\r\n" + HTTP
UNSIGNED: Final = f"{encoded({'alg': 'none'})}.{encoded(said())}.".encode()
REQUESTS: Final[dict[str, tuple[bytes, tuple[int, ...]]]] = {
    "no credentials": (request(), (403,)),
    "a wrong password": (request(more=basic(b"alice:wrong")), (401,)),
    "a password with a NUL": (request(more=basic(b"alice\0:" + PASSWORD.encode())), (401,)),
    "two credentials": (request(more=ALICE + ALICE), (401,)),
    "credentials that are none": (request(more=b"Authorization: Basic %%%\r\n"), (401,)),
    "an unsigned token": (request(more=b"Authorization: Bearer " + UNSIGNED + b"\r\n"), (401,)),
    "two lengths": (
        request(PUT, "PUT", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + SMUGGLED,
        (400,),
    ),
    "two lengths that differ": (
        request(PUT, "PUT", b"Content-Length: 5\r\nContent-Length: 6\r\n") + SMUGGLED,
        (400,),
    ),
    "a chunk of 2^64 bytes": (
        request(PUT, "PUT", b"Transfer-Encoding: chunked\r\n") + b"1" + b"0" * 16 + b"\r\n",
        (400, 401, 403),
    ),
    "a chunk of negative size": (
        request(PUT, "PUT", b"Transfer-Encoding: chunked\r\n") + b"-1\r\n",
        (400, 401, 403),
    ),
    "dots in the path": (request("/v1/staging/%2e%2e%2f%2e%2e%2fetc", "PUT", ALICE), (400, 404)),
    "dots in a path that is open": (request("/livez/%2e%2e/v1/cluster"), (404,)),
    "a NUL in the path": (request("/v1/topics/t%00", more=ALICE), (400, 404)),
    "a NUL in a name that is staged": (request("/v1/staging/a%00b", "PUT", ALICE), (400, 404)),
    "lines in the path": (request("/v1/topics/t%0d%0aSet-Cookie:%20a=b", more=ALICE), (404,)),
    "slashes before the path": (request("//v1/cluster"), (404,)),
    "another site's page": (
        request(PUT, "PUT", ALICE + b"Origin: https://attacker.example\r\n"),
        (400,),
    ),
    "an origin that is none": (request(PUT, "PUT", ALICE + b"Origin: http://[\r\n"), (400,)),
    "another host": (request(PUT, "PUT", ALICE, host=b"attacker.example"), (400,)),
    "a host that is none": (request(PUT, "PUT", ALICE, host=b"[::1"), (400,)),
    "no host": (b"GET /v1/cluster HTTP/1.1\r\n\r\n", (400,)),
    "a head of 64 KiB": (request(more=b"X: " + b"x" * 65_536 + b"\r\n"), (400, 431)),
    "5,000 headers": (request(more=b"X: y\r\n" * 5_000), (400, 431)),
    "a NUL in a header": (request(more=b"X: a\0b\r\n"), (400,)),
    "a line feed in a header": (request(more=b"X: a\rSet-Cookie: b\r\n"), (400,)),
    "a space before the colon": (request(more=b"X : y\r\n"), (400,)),
    "a body that is a bomb": (
        request(PUT, "PUT", b"Content-Encoding: gzip\r\nContent-Length: 99\r\n") + BOMB[:99],
        (403,),
    ),
    "a body of 2^62 bytes": (
        request("/v1/cluster", "GET", b"Content-Length: 4611686018427387904\r\n"),
        (413,),
    ),
    "TRACE": (request(method="TRACE"), (405,)),
    "CONNECT": (request("localhost:22", "CONNECT"), (400, 404, 405)),
    "Kafka's protocol": (frame("ApiVersions", 0, b""), (400,)),
    "a parameter twice": (request("/v1/tiers?topic=a&topic=b", more=ALICE), (400,)),
}
for _name, (_sent, _statuses) in REQUESTS.items():
    KINDS[f"HTTP with {_name}"] = partial(
        lambda arena, sent, statuses: _asked(arena, sent, statuses), sent=_sent, statuses=_statuses
    )


def _asked(arena: Arena, sent: bytes, statuses: tuple[int, ...]) -> None:
    said = asked(arena, sent, *statuses)
    assert b"\nset-cookie" not in said.lower()


@kind
def http_that_says_nothing(arena: Arena) -> None:
    with arena.open("ADMIN") as peer:
        assert peer.rest() == b""


@kind
def http_with_half_a_head(arena: Arena) -> None:
    with arena.open("ADMIN") as peer:
        peer.send(request()[:30])
        assert peer.rest() == b""


@kind
def http_with_a_head_that_is_half_sent_behind_a_request(arena: Arena) -> None:
    with arena.open("ADMIN") as peer:
        peer.send(HTTP + HTTP[:20])
        peer.socket.settimeout(15)
        assert peer.socket.recv(1 << 16).startswith(b"HTTP/1.1 303")
        time.sleep(0.5)
        peer.send(b"a")
        assert peer.rest().count(b"HTTP/1.1 ") == 0


@kind
def http_with_a_head_line_by_line(arena: Arena) -> None:
    with arena.open("ADMIN") as peer:
        peer.send(b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 12, pause=0.5)
        assert peer.rest() == b""


@kind
def http_with_a_body_byte_by_byte(arena: Arena) -> None:
    """Send a body slowly without permission: the response does not wait for it."""
    with arena.open("ADMIN") as peer:
        peer.send(request(PUT, "PUT", b"Content-Length: 1000\r\n"), *[b"x"] * 12, pause=0.5)
        assert peer.rest().startswith(b"HTTP/1.1 403")


@kind
def http_2(arena: Arena) -> None:
    asked(arena, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400)
