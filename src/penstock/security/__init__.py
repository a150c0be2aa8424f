"""Who asks, and whether they may: asked before every handler."""

from penstock.security.authoriser import (
    ANONYMOUS,
    CLUSTER,
    PERMISSIVE,
    AuthorisationFailed,
    Authoriser,
    PermissiveAuthoriser,
    Principal,
    refusal,
)
from penstock.security.credentials import (
    Credentials,
    InvalidCredential,
    ScramCredential,
    parse_credential,
)

__all__ = [
    "ANONYMOUS",
    "CLUSTER",
    "PERMISSIVE",
    "AuthorisationFailed",
    "Authoriser",
    "Credentials",
    "InvalidCredential",
    "PermissiveAuthoriser",
    "Principal",
    "ScramCredential",
    "parse_credential",
    "refusal",
]
