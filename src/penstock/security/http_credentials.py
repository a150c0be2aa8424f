"""Credentials in the Authorization header of HTTP requests, and verification of passwords.

Basic (RFC 7617) carries name and password in clear text and needs TLS; bearer (RFC 6750) carries a
token. Passwords are verified in threads, at most `DERIVATIONS_MAX` at a time. Because a client
sends its password with every request, a correct one is cached. The cache has a digest of the
password and of the credential that it was verified against, with a key of this process. After a
change of the credential, the password is therefore verified again.

The verification takes as long for an unknown user as for a known one.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import ipaddress
import re
import socket
from base64 import b64decode
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlsplit

from penstock.base.errors import InvalidError, RetriableError
from penstock.security.credentials import (
    PASSWORD_BYTES_MAX,
    PLAIN,
    Credentials,
    ScramCredential,
    credential_or_decoy,
    matches,
)

if TYPE_CHECKING:
    from penstock.base.system import Randomness


CHALLENGE: Final = 'Basic realm="penstock", Bearer'
"""WWW-Authenticate header of a response 401."""
HEADER_CHARS_MAX: Final = 24 << 10
USER_CHARS_MAX: Final = 1024
DERIVATIONS_MAX: Final = 2
WAITING_MAX: Final = 64
REMEMBERED_MAX: Final = 1024
_SECRET_BITS: Final = 256
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class BadAuthorization(InvalidError):
    """Invalid Authorization header; the message never shows its text."""

    code: ClassVar[str] = "sasl_authentication_failed"


class TooManyLogins(RetriableError):
    """Rejection of a password because too many others are waiting for verification."""

    code: ClassVar[str] = "throttling_quota_exceeded"


class TooManyFailures(TooManyLogins):
    """Rejection of credentials because too many from this address were invalid lately."""


@dataclass(frozen=True, slots=True)
class Basic:
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bearer:
    token: str = field(repr=False)


def read_authorization(values: Sequence[str]) -> Basic | Bearer | None:
    """Parse the Authorization headers of a request; return None if there are none.

    Raises:
        BadAuthorization: there are several headers, or the header is invalid.
    """
    if not values:
        return None
    if len(values) > 1 or len(values[0]) > HEADER_CHARS_MAX:
        raise BadAuthorization(
            f"a request must have one Authorization header of at most {HEADER_CHARS_MAX} characters"
        )
    scheme, _, rest = values[0].strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and _TOKEN.fullmatch(rest):
        return Bearer(rest)
    if scheme.lower() != "basic":
        raise BadAuthorization("an Authorization header must use the scheme Basic or Bearer")
    try:
        user, colon, password = b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        user = colon = password = ""
    if not colon or not user or len(user) > USER_CHARS_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise BadAuthorization("basic credentials must be base64 of NAME:PASSWORD in UTF-8")
    return Basic(user, password)


class Recent:
    """Set of the last `REMEMBERED_MAX` items that were added."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, None] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._seen

    def is_new(self, key: Hashable) -> bool:
        """Add an item, and return whether it was new."""
        if key in self._seen:
            return False
        while len(self._seen) >= REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return True


class PasswordVerifier:
    """Verifier of passwords, which runs off the event loop and caches correct passwords."""

    def __init__(self, randomness: Randomness) -> None:
        self._secret = randomness.bits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        self._remembered = Recent()
        self._turns = asyncio.Semaphore(DERIVATIONS_MAX)
        self._waiting = 0

    async def verify(self, given: Basic, credentials: Credentials) -> bool:
        """Return whether a password is the user's.

        Raises:
            TooManyLogins: too many passwords are waiting for verification.
        """
        credential, known, digest = self._looked_up(given, credentials)
        if digest in self._remembered:
            return True
        if self._waiting >= WAITING_MAX:
            raise TooManyLogins(
                f"{WAITING_MAX} passwords are already waiting for verification. Try again"
            )
        self._waiting += 1
        try:
            async with self._turns:
                right = await asyncio.to_thread(matches, credential, given.password)
        finally:
            self._waiting -= 1
        if not right or not known:
            return False
        self._remembered.is_new(digest)
        return True

    def remembers(self, given: Basic, credentials: Credentials) -> bool:
        """Return whether the password is in the cache of correct passwords."""
        return self._looked_up(given, credentials)[2] in self._remembered

    def _looked_up(
        self, given: Basic, credentials: Credentials
    ) -> tuple[ScramCredential, bool, bytes]:
        """Return the user's credential or a decoy, whether the user exists, and the cache key."""
        found, known = credential_or_decoy(credentials, PLAIN, given.user, self._secret)
        user, password = given.user.encode(), given.password.encode()
        sizes = len(user).to_bytes(4, "big")
        said = sizes + user + found.stored_key + password
        return found, known, hmac.digest(self._secret, said, "sha256")


# Check of the Host and Origin headers of HTTP requests.
#
# Host, and the Origin that a browser adds, must name this listener. Then no page of another site
# can make a browser send changes, not even if that site's name resolves to this listener (DNS
# rebinding).
#
# Source: OWASP, "Cross-Site Request Forgery Prevention"; RFC 6454.


READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class NotForHere(InvalidError):
    """Request whose Host or Origin header names another listener."""

    code: ClassVar[str] = "invalid_request"


def names_of_listener(host: str, more: Iterable[str]) -> frozenset[str]:
    """Return the host names of a listener on this machine, in lower case."""
    names = ["localhost", host, socket.gethostname(), *more]
    return frozenset(name.lower() for name in names if name)


def check_meant(headers: Mapping[str, str], hosts: Collection[str], setting: str) -> None:
    """Check that the headers Host and, if present, Origin name this listener.

    This rejects requests that pages of other sites make in a user's browser.

    `hosts` are the listener's names. `setting` is the setting that adds names, for the message.

    Raises:
        NotForHere: a header names another listener.
    """
    host = headers.get("host", "")
    if not names_listener(host, hosts):
        raise NotForHere(
            f"Host {host[:100]!r} is not a name of this listener. If it should be, add it to"
            f" {setting}"
        )
    origin = headers.get("origin")
    if origin is not None and not _is_at(origin, host):
        raise NotForHere(f"Origin {origin[:100]!r} must be this listener, {host[:100]}")


def _is_at(origin: str, host: str) -> bool:
    try:
        found = urlsplit(origin)
    except ValueError:
        return False
    return origin.startswith("http") and found.netloc.lower() == host.lower()


def names_listener(host: str, hosts: Collection[str]) -> bool:
    """Return whether a Host header is an IP address, or one of the names in `hosts`."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name in hosts
    return True
