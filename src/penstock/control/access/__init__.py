"""Who may do what, and what is kept of passwords: rows of the control plane, and their changes."""

from penstock.control.access.acls import bindings_of, change_acls
from penstock.control.access.credentials import (
    CredentialChange,
    change_credentials,
    credentials_of,
)

__all__ = [
    "CredentialChange",
    "bindings_of",
    "change_acls",
    "change_credentials",
    "credentials_of",
]
