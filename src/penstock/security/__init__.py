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

__all__ = [
    "ANONYMOUS",
    "CLUSTER",
    "PERMISSIVE",
    "AuthorisationFailed",
    "Authoriser",
    "PermissiveAuthoriser",
    "Principal",
    "refusal",
]
