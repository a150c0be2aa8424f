"""ACL bindings and SCRAM credentials, stored as entity configs in the metadata image."""

from penstock.control.access.acls import bindings_of, change_acls
from penstock.control.access.credentials import (
    ClusterUsers,
    CredentialChange,
    change_credentials,
    check_user,
    credentials_of,
)

__all__ = [
    "ClusterUsers",
    "CredentialChange",
    "bindings_of",
    "change_acls",
    "change_credentials",
    "check_user",
    "credentials_of",
]
