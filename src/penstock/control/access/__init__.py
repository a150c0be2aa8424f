"""Access control in the control plane: ACL bindings and password verifiers, and their changes."""

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
