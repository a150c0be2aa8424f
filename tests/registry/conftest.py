"""A registry that listens, over a control plane in memory, and a client of its HTTP interface."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import pytest
from starlette.requests import Request

from penstock.control import MemoryControlPlane
from penstock.registry.access import RegistryAccess
from penstock.registry.server import RegistryServer
from penstock.security import Authoriser
from penstock.security.authoriser import (
    ANONYMOUS,
    AclAuthoriser,
    PermissiveAuthoriser,
    Principal,
)
from penstock.security.listeners.http_authentication import Known, NotAuthenticated
from tests.security.access import Noted

JSON: Final = {"content-type": "application/vnd.schemaregistry.v1+json"}
HOST: Final = "registry.test"


class ByHeader:
    """Authentication by the header X-User; the user `wrong` has a wrong password."""

    async def who(self, request: Request) -> Known:
        name = request.headers.get("x-user", "")
        if name == "wrong":
            raise NotAuthenticated("wrong password")
        return Known(principal=Principal("User", name) if name else ANONYMOUS)


class Response:
    """Response with its decoded JSON."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.value: Any = json.loads(body)

    @property
    def refusal(self) -> tuple[int, int]:
        """Status and error code."""
        return self.status, self.value["error_code"]


class Served:
    """A registry that listens, with the parts that a test changes."""

    def __init__(self, authoriser: Authoriser) -> None:
        self.control = MemoryControlPlane()
        self.authoriser = authoriser
        self.audit = Noted()
        self.address = ("", 0)
        access = RegistryAccess(
            authoriser=authoriser,
            authentication=ByHeader(),  # type: ignore[arg-type]
            audit=self.audit,
            hosts={HOST},
        )
        self.server = RegistryServer(self.control, access, version="1.2.3")
        self.registry = self.server.registry

    async def start(self) -> None:
        await self.control.start()
        self.address = await self.server.start(("127.0.0.1", 0), connections_max=64)

    async def stop(self) -> None:
        await self.server.stop()
        await self.control.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request. A body that is not bytes is sent as JSON."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {**JSON, **({"x-user": user} if user else {}), **(headers or {})}
        return await asyncio.to_thread(
            self._ask, method, path, None if body is None else sent, given
        )

    def _ask(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> Response:
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Response(response.status, found, response.read())
        finally:
            connection.close()

    async def get(self, path: str, **more: Any) -> Any:
        """Return the value of a successful GET."""
        found = await self.ask("GET", path, **more)
        assert found.status == 200, found.body
        return found.value

    async def register(
        self, subject: str, schema: object, path: str = "", *, user: str = "", **more: Any
    ) -> Any:
        """Register a schema under a subject; `more` are fields of the body."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        name = quote(subject, safe="")
        body = {"schema": text, **more}
        found = await self.ask("POST", f"{path}/subjects/{name}/versions", body, user=user)
        assert found.status == 200, found.body
        return found.value


async def _served(authoriser: Authoriser) -> AsyncIterator[Served]:
    made = Served(authoriser)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Return a registry whose clients have all permissions."""
    async for made in _served(PermissiveAuthoriser()):
        yield made


@pytest.fixture
async def guarded() -> AsyncIterator[Served]:
    """Return a registry with ACLs; only `admin` has all permissions."""
    async for made in _served(AclAuthoriser(super_users={"User:admin"})):
        yield made


def record(*fields: str, name: str = "Order", **more: Any) -> dict[str, Any]:
    """Return an Avro record whose fields have defaults."""
    listed = [{"name": field, "type": "int", "default": 0} for field in fields]
    return {"type": "record", "name": name, "fields": listed, **more}


def association(kind: str, **fields: str) -> dict[str, object]:
    """Return a request that associates topic orders with the subject of its keys or values."""
    return {
        "resourceName": "orders",
        "resourceNamespace": "cluster",
        "resourceId": "r1",
        "associations": [{"associationType": kind, **fields}],
    }
