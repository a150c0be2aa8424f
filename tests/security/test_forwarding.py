"""Forwarded client identity: accepted from a front alone."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.http_protocol import PEER_CERTIFICATE
from penstock.security.listeners.forwarding import forwarded, heeding

SECRET, OTHER = bytes(range(32)), bytes(32)
ASKED = {
    "type": "http", "client": ("2001:db8::7", 50_000), "scheme": "https",
    PEER_CERTIFICATE: b"\0\xffDER", "headers": [],
}  # fmt: skip


async def heard(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The scope that an application behind `heeding` sees."""
    seen: dict[str, Any] = {}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope)

    own = {"client": ("127.0.0.1", 1), "scheme": "http", PEER_CERTIFICATE: None}
    scope = {"type": "http", **own, "headers": headers}
    await heeding(app, SECRET)(scope, None, None)  # type: ignore[arg-type]
    return {name: seen[name] for name in own}


async def test_a_front_forwards_the_client() -> None:
    told = {name: ASKED[name] for name in ("client", "scheme", PEER_CERTIFICATE)}
    assert await heard(forwarded(ASKED, SECRET)) == told
    plain = {**ASKED, "scheme": "http", PEER_CERTIFICATE: None}
    assert (await heard(forwarded(plain, SECRET)))[PEER_CERTIFICATE] is None


@pytest.mark.parametrize(
    "headers", [[], forwarded(ASKED, OTHER), forwarded(ASKED, b""), forwarded(ASKED, SECRET)[1:]]
)
async def test_headers_without_the_secret_are_ignored(headers: list[tuple[bytes, bytes]]) -> None:
    assert (await heard(headers))["client"] == ("127.0.0.1", 1)
