"""Delegation tokens: short-lived credentials that a job uses instead of the password of its owner.

A token has a random id, and an HMAC of this id by `delegation.token.secret.key`. The HMAC in base64
is the password of a SCRAM login with the extension `tokenauth=true`, whose user name is the token
id. The connection then has the token's owner as principal, until the token expires.

The HMAC is not stored. A token is stored with the SCRAM credentials of the HMAC, so that every
broker authenticates it without slow hashing.

Source: KIP-48, KIP-373 (owner and requester); Kafka's `DelegationTokenManager`, `ScramExtensions`.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import ClassVar, Final

import msgspec

from penstock.base.errors import InvalidError
from penstock.security.authoriser import Principal
from penstock.security.credentials import HASHES, ITERATIONS, derive

EXTENSION: Final = "tokenauth=true"
"""SCRAM extension of a client that logs in with a token."""
_VALUE: Final = "token"


class TokensDisabled(InvalidError):
    """Request about delegation tokens to a broker without `delegation.token.secret.key`."""

    code: ClassVar[str] = "delegation_token_auth_disabled"


class TokenNotFound(InvalidError):
    code: ClassVar[str] = "delegation_token_not_found"


class TokenOwnerMismatch(InvalidError):
    """Change of a token by a principal that is neither its owner nor one of its renewers."""

    code: ClassVar[str] = "delegation_token_owner_mismatch"


class TokenRequestNotAllowed(InvalidError):
    """Request about tokens on a connection without a password or certificate of its own."""

    code: ClassVar[str] = "delegation_token_request_not_allowed"


class TokenAuthorisationFailed(InvalidError):
    """Request for a token of another user without permission."""

    code: ClassVar[str] = "delegation_token_authorization_failed"


class TokenExpired(InvalidError):
    code: ClassVar[str] = "delegation_token_expired"


class InvalidPrincipalType(InvalidError):
    code: ClassVar[str] = "invalid_principal_type"


class DelegationToken(msgspec.Struct, frozen=True, kw_only=True):
    """Delegation token. Times are in ms since 1970; it can be renewed until `max_ms`."""

    token_id: str
    owner: Principal
    requester: Principal
    renewers: tuple[Principal, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int

    def belongs_to(self, principal: Principal) -> bool:
        """Return whether a principal owns, requested or may renew the token."""
        return principal in (self.owner, self.requester, *self.renewers)

    def is_expired(self, now_ms: int) -> bool:
        return now_ms > min(self.expires_ms, self.max_ms)

    def hmac(self, key: str) -> bytes:
        return hmac.digest(key.encode(), self.token_id.encode(), "sha512")

    def row(self, key: str, salt: bytes) -> dict[str, str]:
        """Return the stored form, with SCRAM credentials of the HMAC; this is slow."""
        password = b64encode(self.hmac(key)).decode()
        credentials = {
            mechanism: derive(mechanism, password, salt=salt, iterations=ITERATIONS).text()
            for mechanism in HASHES
        }
        return {_VALUE: self.text(), **credentials}

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def changed(self, row: dict[str, str]) -> dict[str, str]:
        """Return the stored form `row` of this token with new times."""
        return {**row, _VALUE: self.text()}


def token_of(row: dict[str, str]) -> DelegationToken:
    """Parse the stored form of a token; raises msgspec.MsgspecError."""
    return msgspec.json.decode(row[_VALUE], type=DelegationToken)
