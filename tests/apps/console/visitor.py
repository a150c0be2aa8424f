"""Visitor of the console over HTTP without a browser, and a broker whose ACLs decide."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

from penstock.testing import Broker
from tests.broker.security.secured import PASSWORD, users_file

SECONDS = 30.0
Fields = Mapping[str, str | Sequence[str]]


class Page(NamedTuple):
    """Response: its status, its text, and the URL after redirects."""

    status: int
    text: str
    url: str

    @property
    def words(self) -> str:
        """Text that a reader sees, with single spaces."""
        text = re.sub(r"<(script|style).*?</\1>", " ", self.text, flags=re.DOTALL)
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())

    @property
    def message(self) -> str:
        """Text of the first message about an act or an error."""
        found = re.search(r'class="flash[^>]*>(.*?)</p>', self.text, re.DOTALL)
        return "" if found is None else html.unescape(re.sub(r"<[^>]*>", "", found[1])).strip()


class Visitor:
    """Reader of pages and sender of forms; with a user, it signs in."""

    def __init__(self, url: str, user: str = "", password: str = PASSWORD) -> None:
        self._url = url
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        self._headers = {"origin": url}
        if user:
            credentials = base64.b64encode(f"{user}:{password}".encode()).decode()
            self._headers["authorization"] = f"Basic {credentials}"

    def get(self, path: str) -> Page:
        return self._send(path, None)

    def post(self, path: str, fields: Fields, *, page: str = "") -> Page:
        """Send a form with the token of a page, by default of the page with the same path."""
        found = re.search(r'name="proof" value="([^"]+)"', self.get(page or path).text)
        assert found is not None, "the page has no form"
        return self._send(path, urlencode({"proof": found[1], **fields}, doseq=True).encode())

    def _send(self, path: str, body: bytes | None) -> Page:
        request = Request(f"{self._url}{path}", data=body, headers=self._headers)
        try:
            with self._opener.open(request, timeout=SECONDS) as response:
                return Page(response.status, response.read().decode(), response.url)
        except HTTPError as error:
            with error:
                return Page(error.code, error.read().decode(), error.url or "")


@contextmanager
def guarded_broker(
    directory: Path,
    settings: Mapping[str, Any] | None = None,
    *,
    users: Sequence[str] = ("alice", "bob"),
    data: Path | None = None,
) -> Iterator[Broker]:
    """Run a broker with ACLs and these users; anonymous clients may do everything.

    `directory` gets its files of users and audit lines. `data` is its data directory, by default a
    temporary one.
    """
    secured = {
        "authorizer.class.name": "acls",
        "super.users": "User:ANONYMOUS",
        "admin.basic.loopback": "true",
        "sasl.users.file": users_file(directory, *users),
        "audit.log.file": str(directory / "audit.log"),
    }
    with Broker({**secured, **(settings or {})}, directory=data) as broker:
        yield broker
