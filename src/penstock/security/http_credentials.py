"""Credentials in the Authorization header, and verification of passwords.

Basic (RFC 7617) carries name and password in clear text and needs TLS; bearer (RFC 6750) carries a
token. Passwords are verified in threads, `DERIVATIONS_MAX` at a time. As a client sends its
password with every request, a correct one is cached: as a digest under a key of this process,
together with the credential that it was verified against, so that a changed credential is verified
again.

An unknown user takes as long as a known one.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import re
from base64 import b64decode
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

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
"""The WWW-Authenticate header of an answer 401."""
HEADER_CHARS_MAX: Final = 24 << 10
USER_CHARS_MAX: Final = 1024
DERIVATIONS_MAX: Final = 2
WAITING_MAX: Final = 64
REMEMBERED_MAX: Final = 1024
_SECRET_BITS: Final = 256
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class BadAuthorization(InvalidError):
    """An invalid Authorization header; its text is never shown."""

    code: ClassVar[str] = "sasl_authentication_failed"


class TooManyLogins(RetriableError):
    """Too many passwords wait for verification."""

    code: ClassVar[str] = "throttling_quota_exceeded"


class TooManyFailures(TooManyLogins):
    """Too many invalid credentials from an address within a minute."""


@dataclass(frozen=True, slots=True)
class Basic:
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Bearer:
    token: str = field(repr=False)


def read_authorization(values: Sequence[str]) -> Basic | Bearer | None:
    """Return the credentials in the Authorization headers of a request; None if there are none.

    Raises:
        BadAuthorization: there are several headers, or one is invalid.
    """
    if not values:
        return None
    if len(values) > 1 or len(values[0]) > HEADER_CHARS_MAX:
        raise BadAuthorization("several Authorization headers, or one that is too long")
    scheme, _, rest = values[0].strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and _TOKEN.fullmatch(rest):
        return Bearer(rest)
    if scheme.lower() != "basic":
        raise BadAuthorization("an Authorization header must be basic or bearer")
    try:
        user, colon, password = b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        user = colon = password = ""
    if not colon or not user or len(user) > USER_CHARS_MAX or len(password) > PASSWORD_BYTES_MAX:
        raise BadAuthorization("basic credentials must be base64 of NAME:PASSWORD in UTF-8")
    return Basic(user, password)


class Recent:
    """The last `REMEMBERED_MAX` new entries."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, None] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._seen

    def is_new(self, key: Hashable) -> bool:
        """Return whether an item is new, and add it."""
        if key in self._seen:
            return False
        while len(self._seen) >= REMEMBERED_MAX:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = None
        return True


class PasswordVerifier:
    """Verifier of passwords off the event loop."""

    def __init__(self, randomness: Randomness) -> None:
        self._secret = randomness.bits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big")
        self._remembered = Recent()
        self._turns = asyncio.Semaphore(DERIVATIONS_MAX)
        self._waiting = 0

    async def verify(self, given: Basic, credentials: Credentials) -> bool:
        """Return whether a password is the user's.

        Raises:
            TooManyLogins: too many passwords wait for verification.
        """
        credential, known, digest = self._looked_up(given, credentials)
        if digest in self._remembered:
            return True
        if self._waiting >= WAITING_MAX:
            raise TooManyLogins("too many passwords wait to be verified; try again")
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
        """Return whether a password was recently verified to be the user's."""
        return self._looked_up(given, credentials)[2] in self._remembered

    def _looked_up(
        self, given: Basic, credentials: Credentials
    ) -> tuple[ScramCredential, bool, bytes]:
        """Return a user's credential or a decoy, whether the user exists, and a digest of all."""
        found, known = credential_or_decoy(credentials, PLAIN, given.user, self._secret)
        user, password = given.user.encode(), given.password.encode()
        sizes = len(user).to_bytes(4, "big")
        said = sizes + user + found.stored_key + password
        return found, known, hmac.digest(self._secret, said, "sha256")
