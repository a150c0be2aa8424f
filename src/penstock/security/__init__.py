"""Authentication and authorisation, applied before every request handler."""

from penstock.security.acls import CLUSTER
from penstock.security.authoriser import (
    ANONYMOUS,
    EVERYTHING,
    PERMISSIVE,
    AclAuthoriser,
    AuthorisationFailed,
    Authoriser,
    PermissiveAuthoriser,
    Principal,
    Rights,
    SecurityDisabled,
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
    "EVERYTHING",
    "PERMISSIVE",
    "AclAuthoriser",
    "AuthorisationFailed",
    "Authoriser",
    "Credentials",
    "InvalidCredential",
    "PermissiveAuthoriser",
    "Principal",
    "Rights",
    "ScramCredential",
    "SecurityDisabled",
    "parse_credential",
    "refusal",
]
