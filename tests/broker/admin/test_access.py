"""Permissions of the admin interface, and requests from foreign origins."""

from __future__ import annotations

import asyncio
import re
import socket
from base64 import b64encode
from collections.abc import AsyncIterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from penstock.base.http_routes import Routes
from penstock.broker import admin as admin_room
from penstock.broker import admin_app
from penstock.broker.admin.access import HOSTS, Needs
from penstock.broker.admin_app import build_app
from penstock.broker.admin_server import AdminServer
from penstock.broker.server import BrokerServer
from penstock.security import CLUSTER, AclAuthoriser
from penstock.security.credentials import SCRAM_SHA_256, FileCredentials, derive
from penstock.security.http_credentials import NotForHere, check_meant
from penstock.security.sasl.peers import PeerSecret
from tests.broker.admin.test_admin import fetch
from tests.broker.handlers.test_topics import create, creation
from tests.security.access import Noted, allow

PASSWORD = "correct horse"
CREDENTIAL = derive(SCRAM_SHA_256, PASSWORD, salt=b"0123456789abcdef", iterations=4096)
NAMES = {"topic": "orders", "group": "g/h", "transactional_id": "q", "cluster": CLUSTER}
MODULES = [
    admin_app,
    *(
        import_module(f"{admin_room.__name__}.{found.name}")
        for found in iter_modules(admin_room.__path__)
    ),
]
NEEDS: dict[tuple[str, str], Needs] = {
    (route.method, route.path): route.access
    for module in MODULES
    for views in vars(module).values()
    if isinstance(views, type) and isinstance(routes := getattr(views, "routes", None), Routes)
    for route in routes.declared
}
ROUTES = sorted(key for key, needs in NEEDS.items() if needs.operation)


class Guarded:
    """An admin interface with an authoriser and one user, alice."""

    def __init__(self, broker: BrokerServer, **settings: Any) -> None:
        self.authoriser = AclAuthoriser(super_users=["User:root"])
        self.audit = Noted()
        self.broker = broker
        broker.assembly.authoriser = self.authoriser
        broker.assembly.audit = self.audit
        from dataclasses import replace

        broker.security_service.secret = PeerSecret(bytes(32))
        broker.security_service.cluster_users = FileCredentials(
            {(SCRAM_SHA_256, "alice"): CREDENTIAL}
        )
        self.server = AdminServer(replace(broker.settings, **settings), broker.assembly)

    def allow(self, operation: str, resource_type: str, name: str, user: str = "ANONYMOUS") -> None:
        self.authoriser.replace([allow(operation, resource_type, name, user)])


@pytest.fixture
async def guarded(broker: BrokerServer) -> AsyncIterator[Guarded]:
    guarded = Guarded(broker)
    await guarded.server.start()
    await create(broker, creation("orders"), creation("secrets"))
    guarded.audit.events.clear()
    yield guarded
    await guarded.server.stop()


def path_of(path: str) -> str:
    path = path.replace("{topic}", "orders").replace("{group:path}", "g%2Fh")
    path = path.replace("{query:path}", "q").replace("{partition}", "0").replace("{batch}", "1")
    return re.sub(r"\{[^}]*\}", "x", path)


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()}


# Declarations


def test_every_declared_route_is_in_the_application(broker: BrokerServer, guarded: Guarded) -> None:
    app: Any = build_app(broker.assembly, guarded.server.access)
    routes = {
        (method, route.path) for route in app._app.routes for method in route.methods - {"HEAD"}
    }
    assert routes == NEEDS.keys()


def test_a_route_without_an_access_rule_is_refused() -> None:
    with pytest.raises(TypeError, match="access"):
        Routes[None, Needs]().add("GET /v1/open")  # type: ignore[call-arg]


def test_unauthenticated_routes_return_only_health() -> None:
    opened = {path for (_, path), needs in NEEDS.items() if not needs.operation}
    assert opened == {"/health", "/livez", "/readyz"}


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_each_route_needs_its_operation_on_its_resource(
    guarded: Guarded, method: str, path: str
) -> None:
    needs = NEEDS[method, path]
    name, url = NAMES[needs.resource_type], path_of(path)
    refused = [
        ("describe", "cluster", CLUSTER)
        if needs.operation != "describe"
        else ("read", "group", "x"),
        (needs.operation, needs.resource_type, "another"),
    ]
    for binding in refused if not needs.some else [("read", "topic", "orders")]:
        guarded.allow(*binding)
        status, answer = await fetch(guarded.server, url, method)
        assert status == 403, (binding, answer)
        assert answer["error"] == f"{needs.resource_type}_authorization_failed"
        words = f"{needs.operation} {needs.resource_type}".replace("_", " ")
        assert answer["message"].startswith(f"User:ANONYMOUS may not {words} ")
    guarded.allow(needs.operation, needs.resource_type, name)
    status, answer = await fetch(guarded.server, url, method)
    assert status not in (401, 403), answer
    denials = [event for event in guarded.audit.events if event.event == "denial"]
    assert {denial.operation for denial in denials} == {f"{method} {url.replace('%2F', '/')}"}


async def test_health_is_open_and_metrics_if_configured(
    broker: BrokerServer, guarded: Guarded
) -> None:
    for path in ("/health", "/livez", "/readyz"):
        assert (await fetch(guarded.server, path))[0] == 200
    assert (await fetch(guarded.server, "/metrics"))[0] == 403
    opened = Guarded(broker, admin_metrics_open=True)
    await opened.server.start()
    assert (await fetch(opened.server, "/metrics"))[0] == 200
    assert (await fetch(opened.server, "/v1/cluster"))[0] == 403
    await opened.server.stop()


async def test_without_an_authoriser_everything_is_as_ever(
    broker: BrokerServer, admin: AdminServer
) -> None:
    assert (await fetch(admin, "/v1/cluster"))[0] == 200
    assert (await fetch(admin, "/metrics"))[0] == 200


# Who it is


async def test_a_password_without_tls_counts_for_nothing(guarded: Guarded) -> None:
    status, answer = await fetch(guarded.server, "/v1/topics", headers=basic("alice", PASSWORD))
    assert (status, answer) == (
        401,
        {
            "error": "sasl_authentication_failed",
            "message": "the credentials are not accepted here",
        },
    )
    (event,) = guarded.audit.events
    assert (event.outcome, event.reason) == ("failure", "password sent without TLS")


async def test_a_user_has_the_rights_of_its_name(broker: BrokerServer) -> None:
    guarded = Guarded(broker, admin_basic_loopback=True)
    await guarded.server.start()
    await create(broker, creation("orders"))
    guarded.audit.events.clear()
    guarded.allow("describe", "topic", "orders", user="alice")
    alice = basic("alice", PASSWORD)
    for _ in range(2):
        assert (await fetch(guarded.server, "/v1/topics/orders", headers=alice))[0] == 200
    assert (await fetch(guarded.server, "/v1/topics", headers=alice))[0] == 403
    assert (await fetch(guarded.server, "/v1/topics/orders"))[0] == 403
    for bad in (basic("alice", "wrong"), basic("bob", PASSWORD), {"authorization": "Basic x"}):
        status, answer = await fetch(guarded.server, "/v1/topics/orders", headers=bad)
        assert (status, answer["message"]) == (401, "the credentials are not accepted here")
    await guarded.server.stop()
    assert guarded.audit.facts("principal", "mechanism", "resources") == [
        ("authentication", "success", "User:alice", "basic", []),
        ("denial", "denied", "User:alice", "basic", [CLUSTER]),
        ("denial", "denied", "User:ANONYMOUS", "", ["orders"]),
        ("authentication", "failure", "User:ANONYMOUS", "basic", []),
        ("authentication", "failure", "User:ANONYMOUS", "basic", []),
        ("authentication", "failure", "User:ANONYMOUS", "", []),
    ]
    assert PASSWORD not in repr(guarded.audit.events)


async def test_bad_credentials_are_no_way_to_be_anonymous(guarded: Guarded) -> None:
    guarded.allow("describe", "cluster", CLUSTER)
    assert (await fetch(guarded.server, "/v1/cluster"))[0] == 200
    for value in ("Bearer abc", "Basic x", "Negotiate abc"):
        headers = {"authorization": value}
        assert (await fetch(guarded.server, "/v1/cluster", headers=headers))[0] == 401


async def test_loopback_is_trusted_if_configured(broker: BrokerServer) -> None:
    guarded = Guarded(broker, admin_loopback_trusted=True, admin_basic_loopback=True)
    await guarded.server.start()
    assert (await fetch(guarded.server, "/v1/cluster"))[0] == 200
    alice = basic("alice", PASSWORD)  # has said who it is
    assert (await fetch(guarded.server, "/v1/cluster", headers=alice))[0] == 403
    await guarded.server.stop()


async def test_a_change_is_audited(guarded: Guarded) -> None:
    guarded.allow("write", "transactional_id", "q")
    assert (await fetch(guarded.server, "/v1/sinks/q", "DELETE"))[0] == 503  # there is no staging
    assert guarded.audit.facts("principal", "mechanism", "resources") == [
        ("change", "failure", "User:ANONYMOUS", "", ["q"])
    ]


# What is meant for others


@pytest.mark.parametrize(
    ("host", "origin", "meant"),
    [
        ("127.0.0.1:9644", None, True),
        ("[::1]:9644", None, True),
        ("10.1.2.3", None, True),
        ("localhost:9644", None, True),
        ("LOCALHOST", None, True),
        ("broker-1:9644", None, True),
        ("attacker.example:9644", None, False),
        ("localhost.attacker.example", None, False),
        ("127.0.0.1.attacker.example", None, False),
        ("", None, False),
        ("[::1", None, False),
        ("localhost@attacker.example", None, False),
        ("localhost:9644", "http://localhost:9644", True),
        ("localhost:9644", "https://localhost:9644", True),
        ("localhost:9644", "http://localhost:8080", False),
        ("localhost:9644", "http://attacker.example", False),
        ("localhost:9644", "null", False),
        ("localhost:9644", "", False),
        ("127.0.0.1:9644", "file://127.0.0.1:9644", False),
        ("localhost:9644", "http://[", False),
    ],
)
def test_host_and_origin_name_the_listener(host: str, origin: str | None, meant: bool) -> None:
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    if meant:
        check_meant(headers, {"localhost", "broker-1"}, HOSTS)
    else:
        with pytest.raises(NotForHere):
            check_meant(headers, {"localhost", "broker-1"}, HOSTS)


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
async def test_changes_for_other_names_are_refused(admin: AdminServer, method: str) -> None:
    path = {"PUT": "/v1/staging/a", "POST": "/v1/sinks/q/commits/1", "DELETE": "/v1/sinks/q"}
    for headers in ({"host": "attacker.example"}, {"origin": "http://attacker.example"}):
        status, answer = await fetch(admin, path[method], method, headers)
        assert (status, answer["error"]) == (400, "invalid_request"), answer
    assert (await fetch(admin, "/v1/cluster", headers={"host": "a-load-balancer"}))[0] == 200


# Requests that are read in two ways


async def raw(admin: AdminServer, request: bytes) -> bytes:
    """Send bytes; return everything until the server closes the connection."""

    def ask() -> bytes:
        with socket.create_connection(admin.address, 20) as connection:
            connection.sendall(request)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
            return answer

    return await asyncio.to_thread(ask)


SMUGGLED = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 4\r\nContent-Length: 5\r\n",
        b"Content-Length: 4, 5\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -1\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5\r\n\tX: y\r\nTransfer-Encoding:\x0bchunked\r\n",
    ],
)
async def test_a_body_of_two_lengths_is_refused(admin: AdminServer, lengths: bytes) -> None:
    head = b"PUT /v1/staging/a HTTP/1.1\r\nHost: localhost\r\n" + lengths + b"\r\n"
    answer = await raw(admin, head + b"0\r\n\r\n" + SMUGGLED)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), answer
    assert answer.count(b"HTTP/1.1 ") == 1, answer
