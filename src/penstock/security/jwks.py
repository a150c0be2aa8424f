"""Public keys for the verification of tokens, loaded from a file or a URL, and refreshed.

Keys are loaded again when they are old, and when a token names an unknown key. The pause between
two loads is at least `PAUSE_SECONDS`, so tokens with invented key ids cause no load on the key
server. If a response is invalid, the previous keys stay in use. Loading blocks: it runs in one
thread at a time, and never on an event loop. Any thread may verify tokens with the present keys.

Source: KIP-768 (`RefreshingHttpsJwks`).
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.system import Clock
from penstock.base.urls import without_credentials
from penstock.security.files import read_file
from penstock.security.tls import TlsFiles, TlsOptions, client_context
from penstock.security.tokens import (
    JWKS_BYTES_MAX,
    InvalidKeys,
    InvalidToken,
    KeySet,
    TokenOwner,
    TokenRules,
    UnknownKey,
    owner_of,
    parse_key_set,
)

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 5.0
"""Timeout of each step of a transfer; the whole transfer may take twice as long."""
_PIECE_BYTES: Final = 32 << 10


class Loads(Struct):
    """Numbers of successful and failed loads of keys."""

    succeeded: int = 0
    failed: int = 0


class TokenVerifier:
    """Verifier of tokens with rules and keys; it implements `sasl.oauthbearer.Verifier`."""

    def __init__(
        self,
        rules: TokenRules,
        load: Callable[[], bytes] | None,
        *,
        refresh_seconds: float,
        clock: Clock,
    ) -> None:
        """Create the verifier without loading keys.

        `load` returns a JWKS, or raises OSError or InvalidError; it may block. With None there are
        no keys.
        """
        self.loads = Loads()
        self._rules = rules
        self._load = load
        self._refresh_seconds = refresh_seconds
        self._clock = clock
        self._keys = KeySet()
        self._tried: float | None = None
        self._loaded: float | None = None

    def verify(self, token: str) -> TokenOwner:
        return owner_of(token, self._keys, self._rules, self._clock.now_ms())

    def verify_with_new_keys(self, token: str) -> TokenOwner:
        self.refresh()
        try:
            return self.verify(token)
        except UnknownKey as error:
            raise InvalidToken(str(error)) from None

    @property
    def due(self) -> bool:
        now, loaded = self._clock.monotonic(), self._loaded
        old = loaded is None or now - loaded >= self._refresh_seconds
        return self._load is not None and old and self._may_try(now)

    def _may_try(self, now: float) -> bool:
        return self._tried is None or now - self._tried >= PAUSE_SECONDS

    def refresh(self) -> None:
        """Load the keys, unless the last attempt was less than `PAUSE_SECONDS` ago; blocks."""
        now = self._clock.monotonic()
        if self._load is None or not self._may_try(now):
            return
        self._tried = now
        try:
            self._keys = parse_key_set(self._load())
            self._loaded = self._clock.monotonic()
            self.loads.succeeded += 1
        except (OSError, PenstockError, ValueError) as error:
            self.loads.failed += 1
            logger.warning("keeping the previous token keys: cannot load new ones: %s", error)


def loader(url: str, truststore: str, clock: Clock) -> Callable[[], bytes]:
    """Return a function that loads a JWKS from `file:///path` or `https://…`.

    `truststore` is a file of CA certificates, or empty for the system's. It is read for each load.

    Raises:
        ValueError: the URL has another scheme.
        UnusableFile: the truststore cannot be used.
    """
    check_url(url)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return lambda: read_file(unquote(parts.path), JWKS_BYTES_MAX)
    _context(truststore, clock)
    return lambda: _fetch(url, truststore, clock)


def _context(truststore: str, clock: Clock) -> ssl.SSLContext:
    files = TlsFiles(truststore=truststore)
    return client_context(files, TlsOptions(), check_host=True, now_ms=clock.now_ms())


def check_url(url: str) -> None:
    """Check that keys may be loaded from a URL.

    Raises:
        ValueError: the URL is neither a local file:// nor an https:// URL.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # not shown, because its message may contain the user info
        parts = urlsplit("")
    is_file = parts.scheme == "file" and parts.netloc in ("", "localhost")
    if not is_file and (parts.scheme != "https" or not parts.hostname):
        raise ValueError("must be a file:// or an https:// URL")


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


def _bounded(clock: Clock, until: float) -> type[ssl.SSLSocket]:
    """Return a socket class whose reads all have the same deadline."""

    class Bounded(ssl.SSLSocket):
        def recv_into(self, *arguments: Any, **named: Any) -> int:
            if clock.monotonic() > until:
                raise TimeoutError(f"loading the JWKS took more than {2 * CONNECT_SECONDS} s")
            return super().recv_into(*arguments, **named)

    return Bounded


def _fetch(url: str, truststore: str, clock: Clock) -> bytes:
    context = _context(truststore, clock)
    until = clock.monotonic() + 2 * CONNECT_SECONDS
    context.sslsocket_class = _bounded(clock, until)
    opener = build_opener(HTTPSHandler(context=context), _NoRedirects)
    request = Request(url, headers={"Accept": "application/json"})  # noqa: S310  (https alone)
    data = bytearray()
    try:
        with opener.open(request, timeout=CONNECT_SECONDS) as answer:
            while piece := answer.read1(_PIECE_BYTES):
                data += piece
                if len(data) > JWKS_BYTES_MAX:
                    raise InvalidKeys(f"the JWKS has more than {JWKS_BYTES_MAX} bytes, the limit")
    except URLError as error:
        raise InvalidKeys(f"{without_credentials(url)} cannot be read: {error.reason}") from error
    except HTTPException as error:
        place, kind = without_credentials(url), type(error).__name__
        raise InvalidKeys(f"{place} sent an invalid HTTP response: {kind}") from error
    return bytes(data)
