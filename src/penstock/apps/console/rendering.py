"""Rendering of the console's pages, and its responses to errors and acts.

| cookie             | content                                                               |
|--------------------|-----------------------------------------------------------------------|
| `penstock_theme`   | `light` or `dark`; without it, the browser's preference applies       |
| `penstock_flash`   | message of the last act, shown once; its text is data, never markup   |
"""

from __future__ import annotations

import asyncio
import gzip
from base64 import urlsafe_b64decode, urlsafe_b64encode
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct
from starlette.responses import RedirectResponse, Response

from penstock.apps.console import formats
from penstock.apps.console.assets import COMPRESSED_BYTES_MIN, Asset, accepts_gzip
from penstock.apps.console.forms import ReadOnly, Tokens
from penstock.apps.console.navigation import ITEMS, current
from penstock.broker.admin.access import CONSOLE, Caller, caller_of
from penstock.security.http_credentials import CHALLENGE, READS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

    from penstock.broker.configuration.settings import BrokerSettings

TEMPLATES: Final = Path(__file__).parent / "templates"
THEME: Final = "penstock_theme"
THEMES: Final = ("light", "dark")
FLASH: Final = "penstock_flash"
FLASH_CHARS_MAX: Final = 1000
COMPRESSION_LEVEL: Final = 4
SHARED_TEMPLATES: Final = ("base.html", "tables.html", "forms.html", "icons.html")
"""Templates that most pages use."""


class Flash(Struct, frozen=True):
    """Message of the last act; `kind` is `done` or `failed`."""

    kind: str
    text: str


class Pages:
    """Renderer of pages. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        node_id: int,
        secured: bool,
        assets: Mapping[str, Asset],
        tokens: Tokens,
    ) -> None:
        """`secured`: the broker has an authoriser that may reject requests."""
        self.loading: asyncio.Task[None] | None = None
        """Task that compiles the templates while the first pages are shown already."""
        self.read_only = settings.console_read_only
        self._secured = secured
        self._tokens = tokens
        self._environment = environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "number": formats.number,
            "size": formats.size,
            "duration": formats.duration,
            "moment": formats.moment,
            "sentence": formats.sentence,
        }
        environment.globals |= {
            "asset": lambda name: assets[name].path,
            "counted": formats.counted,
            "path": formats.path,
            "query": formats.query,
            "readable": formats.readable,
            "unknown": formats.UNKNOWN,
            "console": CONSOLE,
            "node_id": node_id,
            "read_only": self.read_only,
        }

    def load(self, names: Iterable[str]) -> None:
        """Compile templates, or all without `names`, so that no request waits for it. Blocks."""
        for name in names or self._environment.list_templates(extensions=["html"]):
            self._environment.get_template(name)

    def show(
        self, request: Request, template: str, *, title: str, status: int = 200, **values: Any
    ) -> Response:
        """Return a page. `values` are the variables of its template."""
        caller: Caller | None = getattr(request.state, "caller", None)
        text = self._environment.get_template(template).render(
            title=title, **self._frame(request, caller), **values
        )
        content, headers = text.encode(), {"cache-control": "no-store", "vary": "accept-encoding"}
        if len(content) >= COMPRESSED_BYTES_MIN and accepts_gzip(request):
            content = gzip.compress(content, COMPRESSION_LEVEL, mtime=0)
            headers["content-encoding"] = "gzip"
        response = Response(content, status, headers, media_type="text/html")
        if FLASH in request.cookies:
            response.delete_cookie(FLASH, path=CONSOLE)
        return response

    def _frame(self, request: Request, caller: Caller | None) -> dict[str, Any]:
        principal = None if caller is None else caller.known.principal
        return {
            "items": [item for item in ITEMS if item.is_shown(caller)],
            "current": current(request.url.path),
            "user": "" if caller is None or not caller.known.mechanism else str(principal),
            "sign_in": self._secured and caller is not None and not caller.known.mechanism,
            "token": "" if principal is None else self._tokens.issue(principal),
            "theme": _theme(request),
            "flash": _flash(request),
        }

    async def check(self, request: Request) -> None:
        """Reject a request that changes something, if the console is read-only or it has no token.

        Raises:
            ReadOnly: the console is read-only.
            ForeignForm, InvalidField: the form is not one of the console's pages.
        """
        if request.method in READS:
            return
        request.state.form_checked = False
        if self.read_only:
            raise ReadOnly("this console is read-only (console.read.only = true)")
        await self._tokens.check(request, caller_of(request).known.principal)
        request.state.form_checked = True

    def done(self, url: str, message: str) -> Response:
        """Return the response to an act: a redirect to a page, which shows `message` once."""
        response = RedirectResponse(url, HTTPStatus.SEE_OTHER)
        flash = msgspec.json.encode(Flash("done", message[:FLASH_CHARS_MAX]))
        response.set_cookie(
            FLASH,
            urlsafe_b64encode(flash).decode(),
            max_age=60,
            path=CONSOLE,
            httponly=True,
            samesite="strict",
        )
        return response

    def failed(self, request: Request, status: int, code: str, message: str) -> Response:
        """Return the page that shows an error.

        A caller without credentials gets status 401 instead of 403, so that browsers ask for a user
        and a password.
        """
        unknown = self._secured and "authorization" not in request.headers
        meant = getattr(request.state, "form_checked", True)
        if status == HTTPStatus.FORBIDDEN and unknown and meant:
            status = HTTPStatus.UNAUTHORIZED
        response = self.show(
            request, "error.html", title=HTTPStatus(status).phrase, status=status, message=message
        )
        if status == HTTPStatus.UNAUTHORIZED:
            response.headers["www-authenticate"] = CHALLENGE
        return response


def _theme(request: Request) -> str:
    theme = request.cookies.get(THEME, "")
    return theme if theme in THEMES else ""


def _flash(request: Request) -> Flash | None:
    text = request.cookies.get(FLASH)
    if not text:
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(text.encode()), type=Flash)
    except (ValueError, msgspec.MsgspecError):
        return None
