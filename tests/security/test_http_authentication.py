"""HTTP credentials, by transport and kind."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass

import pytest
from starlette.requests import Request

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.security.http_credentials import PasswordVerifier, TooManyFailures
from penstock.security.listeners.http_authentication import (
    Authentication,
    Identities,
    NotAuthenticated,
    Shown,
)
from tests.security.access import Noted
from tests.security.exchanges import users

TOKEN = "a-token-of-much-entropy"
BASIC = "Basic " + b64encode(b"web:secret of web").decode()
IDENTITIES = Identities(
    credentials=users("web"), fixed_tokens=[hashlib.sha256(TOKEN.encode()).hexdigest()]
)


@dataclass(frozen=True)
class Found:
    principal: str


class Failed:
    """Failures by address, of which two are allowed."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def failed(self, address: str) -> None:
        self.counts[address] += 1

    def barred(self, address: str) -> bool:
        return self.counts[address] > 2


def known(request: Request, shown: Shown) -> Found:
    return Found(shown.name or shown.token_sha256)


def request(scheme: str, address: str, authorization: str) -> Request:
    scope = {
        "type": "http", "method": "GET", "path": "/", "scheme": scheme, "query_string": b"",
        "server": ("agent", 8088), "client": (address, 50_000),
        "headers": [(b"authorization", authorization.encode())],
    }  # fmt: skip
    return Request(scope)


@pytest.mark.parametrize("authorization", [BASIC, f"Bearer {TOKEN}"])
@pytest.mark.parametrize(
    ("scheme", "address", "plain_loopback", "counts"),
    [
        ("https", "192.0.2.7", False, True),
        ("http", "192.0.2.7", True, False),
        ("http", "2001:db8::1", True, False),
        ("http", "127.0.0.1", True, True),
        ("http", "::1", True, True),
        ("http", "127.0.0.1", False, False),
        ("http", "", True, False),
    ],
)
async def test_passwords_and_tokens_that_never_end_need_tls_or_this_machine(
    scheme: str, address: str, plain_loopback: bool, counts: bool, authorization: str
) -> None:
    audit, verifier = Noted(), PasswordVerifier(SYSTEM_RANDOMNESS)
    asked = Authentication(
        "listener", lambda: IDENTITIES, known, verifier, audit, Failed(),
        plain_loopback=plain_loopback,
    )  # fmt: skip
    sent = request(scheme, address, authorization)
    if counts:
        assert (await asked.who(sent)).principal
        return
    with pytest.raises(NotAuthenticated):
        await asked.who(sent)
    (event,) = audit.events
    assert event.reason.endswith("without TLS")
    assert TOKEN not in repr(event)


def basic(password: str) -> str:
    return "Basic " + b64encode(f"web:{password}".encode()).decode()


@pytest.mark.parametrize("wrong", [basic("guess"), "Bearer abc", "Basic x"])
async def test_credentials_of_an_address_are_refused_after_too_many_failures(wrong: str) -> None:
    failed = Failed()
    asked = Authentication(
        "listener", lambda: IDENTITIES, known, PasswordVerifier(SYSTEM_RANDOMNESS), Noted(), failed
    )
    here, there = "192.0.2.7", "192.0.2.8"
    for _ in range(2):
        with pytest.raises(NotAuthenticated):
            await asked.who(request("https", here, wrong))
    for sent in (wrong, basic("secret of web"), "Bearer a.signed.token"):
        with pytest.raises(TooManyFailures, match=r"max\.failed\.authentications\.per\.ip"):
            await asked.who(request("https", here, sent))
    assert (await asked.who(request("https", there, BASIC))).principal == "web"
    assert (await asked.who(request("https", here, BASIC))).principal == "web", "was right before"
    assert (await asked.who(request("https", here, f"Bearer {TOKEN}"))).principal
    assert failed.counts == Counter({here: 3})
