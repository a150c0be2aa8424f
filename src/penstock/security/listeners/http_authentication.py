"""Authentication of HTTP requests by password, token or certificate.

A password is accepted only over TLS; a setting also accepts it without TLS from this machine. The
same holds for tokens that do not expire. Signed tokens are verified as for OAUTHBEARER. A request
without an Authorization header is authenticated by its client certificate, if it has one. Each
interface converts the result to its own rights (`known`).

The response to invalid credentials is always 401 with the same text, whatever the cause.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from penstock.base.errors import InvalidError
from penstock.base.http_listener import client_address, is_loopback
from penstock.base.http_protocol import PEER_CERTIFICATE
from penstock.security.audit import Audit, AuditEvent, EventKind, Outcome
from penstock.security.authoriser import ANONYMOUS, EVERYTHING, Principal
from penstock.security.http_credentials import (
    BadAuthorization,
    Basic,
    Bearer,
    PasswordVerifier,
    Recent,
    TooManyFailures,
    read_authorization,
)
from penstock.security.sasl import NobodysName

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.security import AuthorisationFailed, Credentials, Rights
    from penstock.security.sasl.oauthbearer import Verifier


_FAILED: Final = 400
"""Lowest HTTP status of a failed request."""
REFUSAL: Final = "the credentials are not accepted here"
TOO_MANY: Final = (
    "too many authentications from this address failed (max.failed.authentications.per.ip); try"
    " again in a minute"
)


class NotAuthenticated(InvalidError):
    """Missing or invalid credentials; `reason` is only for the audit log."""

    code: ClassVar[str] = "sasl_authentication_failed"

    def __init__(self, reason: str, told: str = REFUSAL) -> None:
        super().__init__(told)
        self.reason = reason


class Shown(Struct, frozen=True, kw_only=True):
    """Result of authentication: the mechanism, and the name of a user, token owner or certificate.

    For a token that does not expire, `token_sha256` is set instead of a name. All fields are empty
    if the request has no credentials.
    """

    mechanism: str = ""
    name: str = ""
    token_sha256: str = ""


class Failures(Protocol):
    """Counter of failed authentications by address, within a minute."""

    def failed(self, address: str) -> None: ...
    def barred(self, address: str) -> bool:
        """Return whether credentials from an address are rejected until the minute is over."""
        ...


class Somebody(Protocol):
    """Rights that an interface assigns to an authenticated client."""

    @property
    def principal(self) -> object: ...


K = TypeVar("K", bound=Somebody)


class Identities(Struct, frozen=True, kw_only=True):
    """Verifiers for each kind of credential; None if the interface does not accept the kind."""

    credentials: Credentials | None = None
    tokens: Verifier | None = None
    fixed_tokens: Collection[str] = ()
    """SHA-256 digests of the tokens that do not expire."""
    name_of: Callable[[bytes], str] | None = None
    """Function that returns the name for a certificate (DER); it may raise NobodysName."""


class Authentication(Generic[K]):
    """Authenticator of the HTTP requests to one interface."""

    def __init__(
        self,
        listener: str,
        identities: Callable[[], Identities],
        known: Callable[[Request, Shown], K],
        passwords: PasswordVerifier,
        audit: Audit,
        failures: Failures,
        *,
        plain_loopback: bool = False,
    ) -> None:
        """Args:
        listener: the interface's name in the audit log.
        identities: function that returns the accepted credentials.
        known: function that returns a client's rights, or raises NotAuthenticated if it has
            none.
        passwords: verifier of passwords.
        audit: audit log.
        failures: counter of failed authentications.
        plain_loopback: whether passwords, and tokens that do not expire, are accepted without TLS
            from this machine.
        """
        self._listener = listener
        self._identities = identities
        self._known = known
        self._passwords = passwords
        self._audit = audit
        self._failures = failures
        self._plain_loopback = plain_loopback
        self._lately = Recent()

    async def who(self, request: Request) -> K:
        """Authenticate a request and return the rights of its sender.

        Raises:
            NotAuthenticated: credentials are invalid, or missing although they are required.
            TooManyLogins: too many passwords are waiting for verification.
            TooManyFailures: too many credentials from the same address were invalid.
        """
        mechanism, address = "", client_address(request)
        headers = request.headers.getlist("authorization")
        try:
            given = read_authorization(headers)
            if given is not None and self._failures.barred(address) and not self._known_well(given):
                raise TooManyFailures(TOO_MANY)
            if isinstance(given, Basic):
                mechanism = "basic"
                shown = await self._by_password(request, given)
            elif isinstance(given, Bearer):
                mechanism = "bearer"
                shown = await self._by_token(request, given.token)
            else:
                certificate = request.scope.get(PEER_CERTIFICATE)
                mechanism = "" if certificate is None else "SSL"
                shown = self._by_certificate(certificate)
            known = self._known(request, shown)
        except (NotAuthenticated, BadAuthorization, NobodysName) as error:
            refusal = error if isinstance(error, NotAuthenticated) else NotAuthenticated(str(error))
            self._record(request, ANONYMOUS, mechanism, "failure", refusal.reason)
            if headers or mechanism:
                self._failures.failed(address)
                if self._failures.barred(address):
                    raise TooManyFailures(TOO_MANY) from None
            raise refusal from None
        who = (mechanism, str(known.principal), address)
        if shown.mechanism and self._lately.is_new(who):  # every request has credentials
            self._record(request, known.principal, mechanism, "success", "")
        return known

    def _known_well(self, given: Basic | Bearer) -> bool:
        """Return whether credentials are a cached correct password or a fixed token.

        Their address is not rejected for too many failed authentications: other clients with the
        same address may have caused these.
        """
        identities = self._identities()
        if isinstance(given, Bearer):
            return _digest(given.token) in identities.fixed_tokens
        credentials = identities.credentials
        return credentials is not None and self._passwords.remembers(given, credentials)

    async def _by_password(self, request: Request, given: Basic) -> Shown:
        credentials = self._identities().credentials
        if not self._closed(request):
            raise NotAuthenticated("password sent without TLS")
        if credentials is None:
            raise NotAuthenticated("no users are configured")
        if not await self._passwords.verify(given, credentials):
            raise NotAuthenticated(f"unknown user or wrong password: {given.user}")
        return Shown(mechanism="basic", name=given.user)

    def _closed(self, request: Request) -> bool:
        """Return whether the network protects the request's credentials: by TLS, or because it is
        local.
        """
        return request.url.scheme == "https" or (
            self._plain_loopback and is_loopback(client_address(request))
        )

    async def _by_token(self, request: Request, token: str) -> Shown:
        identities = self._identities()
        digest = _digest(token)
        if digest in identities.fixed_tokens:
            if not self._closed(request):
                raise NotAuthenticated("token without expiry time sent without TLS")
            return Shown(mechanism="bearer", token_sha256=digest)
        tokens = identities.tokens
        if tokens is None:
            raise NotAuthenticated("signed tokens are not configured")
        from penstock.security.tokens import (
            InvalidToken,
            UnknownKey,
        )  # imported where the verifier is

        try:
            try:
                owner = tokens.verify(token)
            except UnknownKey:
                owner = await asyncio.to_thread(tokens.verify_with_new_keys, token)
        except InvalidToken as error:
            raise NotAuthenticated(str(error)) from None
        return Shown(mechanism="bearer", name=owner.name)

    def _by_certificate(self, certificate: bytes | None) -> Shown:
        name_of = self._identities().name_of
        if certificate is None or name_of is None:
            return Shown()
        return Shown(mechanism="SSL", name=name_of(certificate))

    def _record(
        self, request: Request, principal: object, mechanism: str, outcome: Outcome, reason: str
    ) -> None:
        self._audit.record(
            AuditEvent(
                event="authentication",
                outcome=outcome,
                principal=str(principal),
                mechanism=mechanism,
                address=client_address(request),
                listener=self._listener,
                operation=f"{request.method} {request.url.path}",
                reason=reason,
            )
        )


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Known(Struct, frozen=True, kw_only=True):
    """Identity of a client: its principal, and the mechanism by which it authenticated.

    If `rights` is set, these are its permissions; otherwise the authoriser decides.
    """

    principal: Principal
    mechanism: str = ""
    rights: Rights | None = None


def known(request: Request, shown: Shown, *, loopback_trusted: bool) -> Known:
    """Return the identity of a request with the credentials `shown`.

    With `loopback_trusted`, local clients without credentials have all permissions.
    """
    if shown.mechanism:
        return Known(principal=Principal("User", shown.name), mechanism=shown.mechanism)
    trusted = loopback_trusted and is_loopback(client_address(request))
    return Known(principal=ANONYMOUS, rights=EVERYTHING if trusted else None)


class RequestAudit(Struct, frozen=True, kw_only=True):
    """Audit log of one request, with its client and its listener."""

    audit: Audit
    listener: str
    known: Known
    request: Request

    def denied(self, error: AuthorisationFailed) -> None:
        self._record("denial", "denied", error.resource_type, [error.name], str(error))

    def changed(self, status: int, reason: str = "") -> None:
        """Record a change by its HTTP status; `reason` says why it failed."""
        named = [str(value) for value in self.request.path_params.values()]
        failed = f"status {status}{reason and f': {reason}'}" if status >= _FAILED else ""
        self._record("change", "failure" if failed else "success", "", named, failed)

    def _record(
        self, event: EventKind, outcome: Outcome, resource_type: str, names: list[str], reason: str
    ) -> None:
        self.audit.record(
            AuditEvent(
                event=event,
                outcome=outcome,
                principal=str(self.known.principal),
                mechanism=self.known.mechanism,
                address=client_address(self.request),
                listener=self.listener,
                operation=f"{self.request.method} {self.request.url.path}",
                resource_type=resource_type,
                resources=names,
                reason=reason,
            )
        )
