"""Who sends a request to the admin interface: by certificate, by password, by token, or nobody.

A password counts over TLS alone; from this machine without it, if `admin.basic.loopback` says so. A
token is verified as for OAUTHBEARER. Who shows neither is who its certificate names, and without
one anonymous; with `admin.loopback.trusted` whoever asks so from this machine may do everything.

Credentials that are worth nothing are answered 401 in the same words, whatever was wrong.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.base.http_listener import client_address
from penstock.base.http_protocol import PEER_CERTIFICATE
from penstock.security import ANONYMOUS, EVERYTHING, Principal, Rights
from penstock.security.audit import AuditEvent
from penstock.security.http_credentials import (
    BadAuthorization,
    Basic,
    Bearer,
    PasswordVerifier,
    Recent,
    read_authorization,
)
from penstock.security.sasl import NobodysName
from penstock.security.tokens import InvalidToken, UnknownKey

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.security import Credentials
    from penstock.security.audit import Audit, Outcome
    from penstock.security.sasl.oauthbearer import Verifier

REFUSAL: Final = "the credentials are not accepted here"


class NotAuthenticated(InvalidError):
    """Credentials that are worth nothing; `reason` is for the audit log."""

    code: ClassVar[str] = "sasl_authentication_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(REFUSAL)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Who it is and how that is known. `rights` where no authoriser need be asked."""

    principal: Principal
    mechanism: str = ""
    rights: Rights | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identities:
    """What the admin listener verifies by; None where it has none of the kind."""

    credentials: Credentials | None = None
    tokens: Verifier | None = None
    name_of: Callable[[bytes], str] | None = None
    """Of a certificate (DER); raises NobodysName."""


class Authentication:
    """Finds out who sends requests."""

    def __init__(
        self,
        identities: Callable[[], Identities],
        passwords: PasswordVerifier,
        audit: Audit,
        *,
        basic_loopback: bool = False,
        loopback_trusted: bool = False,
    ) -> None:
        self._identities = identities
        self._passwords = passwords
        self._audit = audit
        self._basic_loopback = basic_loopback
        self._loopback_trusted = loopback_trusted
        self._lately = Recent()

    async def who(self, request: Request) -> Known:
        """Who sends a request.

        Raises:
            NotAuthenticated: credentials are worth nothing.
            TooManyLogins: too many passwords wait to be verified.
        """
        mechanism = "SSL"
        try:
            given = read_authorization(request.headers.getlist("authorization"))
            if isinstance(given, Basic):
                mechanism = "basic"
                known = await self._by_password(request, given)
            elif isinstance(given, Bearer):
                mechanism = "bearer"
                known = await self._by_token(given)
            else:
                known = self._by_connection(request)
        except (NotAuthenticated, BadAuthorization, NobodysName) as error:
            reason = getattr(error, "reason", str(error))
            self._record(request, ANONYMOUS, mechanism, "failure", reason)
            raise NotAuthenticated(reason) from None
        who = (known.mechanism, known.principal.name, client_address(request))
        if known.mechanism and self._lately.is_new(who):  # credentials come each time
            self._record(request, known.principal, known.mechanism, "success", "")
        return known

    async def _by_password(self, request: Request, given: Basic) -> Known:
        credentials = self._identities().credentials
        if request.url.scheme != "https" and not (self._basic_loopback and is_loopback(request)):
            raise NotAuthenticated("a password without TLS")
        if credentials is None:
            raise NotAuthenticated("there are no users")
        if not await self._passwords.verify(given, credentials):
            raise NotAuthenticated(f"unknown user or wrong password: {given.user}")
        principal = Principal("User", given.user)
        return Known(principal=principal, mechanism="basic")

    async def _by_token(self, given: Bearer) -> Known:
        tokens = self._identities().tokens
        if tokens is None:
            raise NotAuthenticated("there is nobody who signs tokens")
        try:
            try:
                owner = tokens.verify(given.token)
            except UnknownKey:
                owner = await asyncio.to_thread(tokens.verify_with_new_keys, given.token)
        except InvalidToken as error:
            raise NotAuthenticated(str(error)) from None
        return Known(principal=Principal("User", owner.name), mechanism="bearer")

    def _by_connection(self, request: Request) -> Known:
        certificate, name_of = request.scope.get(PEER_CERTIFICATE), self._identities().name_of
        if certificate is not None and name_of is not None:
            name = name_of(certificate)
            return Known(principal=Principal("User", name), mechanism="SSL")
        trusted = self._loopback_trusted and is_loopback(request)
        return Known(principal=ANONYMOUS, rights=EVERYTHING if trusted else None)

    def _record(
        self, request: Request, principal: Principal, mechanism: str, outcome: Outcome, reason: str
    ) -> None:
        self._audit.record(
            AuditEvent(
                event="authentication",
                outcome=outcome,
                principal=str(principal),
                mechanism=mechanism,
                address=client_address(request),
                listener="admin.listener",
                operation=f"{request.method} {request.url.path}",
                reason=reason,
            )
        )


def is_loopback(request: Request) -> bool:
    """Whether a request comes from this machine."""
    try:
        return ipaddress.ip_address(client_address(request)).is_loopback
    except ValueError:
        return False
