"""Access control lists: which principals may perform which operations on which resources.

A binding names resources by their type and a pattern: LITERAL is one name, or all names as `*`;
PREFIXED is all names with this prefix. Its entry allows or denies an operation to a principal
(`User:alice`, or `User:*` for all) from a host. A host is an address, a network such as
`10.0.0.0/8`, or `*`. Filters select bindings, as in DescribeAcls and DeleteAcls.

Types, patterns, operations and permissions are words. The index of a word in its tuple is its
number in Kafka's protocol.

Source: KIP-11, KIP-290 (patterns); Kafka's `ResourcePatternFilter`, `AccessControlEntryFilter`,
`AclEntry.supportedOperations` and `AclControlManager.validateNewAcl`.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import astuple, dataclass
from typing import Final

from msgspec import Struct

from penstock.base.errors import InvalidError

RESOURCE_TYPES: Final = (
    "unknown", "any", "topic", "group", "cluster", "transactional_id", "delegation_token", "user",
)  # fmt: skip
PATTERN_TYPES: Final = ("unknown", "any", "match", "literal", "prefixed")
OPERATIONS: Final = (
    "unknown", "any", "all", "read", "write", "create", "delete", "alter", "describe",
    "cluster_action", "describe_configs", "alter_configs", "idempotent_write", "create_tokens",
    "describe_tokens", "two_phase_commit",
)  # fmt: skip
PERMISSIONS: Final = ("unknown", "any", "deny", "allow")

ANY: Final = "any"
ALL: Final = "all"
WILDCARD: Final = "*"
EVERYBODY: Final = "User:*"
CLUSTER: Final = "kafka-cluster"
"""Name of the only resource of the type cluster."""

NAME_CHARS_MAX: Final = 1024
"""Most characters of the name of a resource, a principal or a host."""

SUPPORTED: Final = {
    "topic": (
        "read", "write", "create", "delete", "alter", "describe", "describe_configs",
        "alter_configs",
    ),
    "group": ("read", "delete", "describe", "describe_configs", "alter_configs"),
    "cluster": (
        "create", "alter", "describe", "cluster_action", "describe_configs", "alter_configs",
        "idempotent_write",
    ),
    "transactional_id": ("describe", "write"),
    "delegation_token": ("describe",),
    "user": ("create_tokens", "describe_tokens"),
}  # fmt: skip
"""Operations that exist for each resource type; responses list the allowed ones (KIP-430)."""

GRANTED_BY: Final = {
    "describe": frozenset({ALL, "describe", "read", "write", "delete", "alter"}),
    "describe_configs": frozenset({ALL, "describe_configs", "alter_configs"}),
}
"""Operations that are also allowed by a binding that allows another operation.

A binding that denies an operation denies only this one, unless it denies `all`.
"""


class InvalidAcl(InvalidError):
    """Invalid ACL binding or filter."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """Entry of an access control list, with the resources that it applies to."""

    resource_type: str
    name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.principal} {self.operation} {self.resource_type}"
            f" {self.name!r} ({self.pattern_type}) from {self.host}"
        )

    def text(self) -> str:
        """Return the binding as JSON, the form in which it is stored."""
        return json.dumps(astuple(self), ensure_ascii=False, separators=(",", ":"))


def binding_of(text: str) -> AclBinding:
    """Parse a binding from its stored form.

    Raises:
        InvalidAcl: the text is not a valid binding.
    """
    try:
        values = json.loads(text)
        return checked(AclBinding(**dict(zip(AclBinding.__slots__, values, strict=True))))
    except (TypeError, ValueError):
        raise InvalidAcl(f"{text[:200]!r} is not a stored ACL") from None


def checked(binding: AclBinding) -> AclBinding:
    """Return the binding unchanged if it is valid.

    Raises:
        InvalidAcl: a type, pattern, operation, permission or name is invalid.
    """
    _check_word("resource type", binding.resource_type, RESOURCE_TYPES[2:])
    _check_word("pattern type", binding.pattern_type, PATTERN_TYPES[3:])
    _check_word("operation", binding.operation, OPERATIONS[2:])
    _check_word("permission type", binding.permission, PERMISSIONS[2:])
    _check_name("resource name", binding.name)
    _check_name("host", binding.host)
    _check_name("principal", binding.principal)
    if ":" not in binding.principal:
        raise InvalidAcl(f"principal {binding.principal!r:.200} must have the form TYPE:NAME")
    if binding.resource_type == "cluster" and binding.name != CLUSTER:
        raise InvalidAcl(f"the name of a resource of type cluster must be {CLUSTER}")
    return binding


def _check_word(kind: str, word: object, words: tuple[str, ...]) -> None:
    if word not in words:
        raise InvalidAcl(f"{kind} {word!r:.60} of an ACL must be one of {', '.join(words)}")


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidAcl(f"the {kind} of an ACL must not be empty")
    if len(name) > NAME_CHARS_MAX:
        raise InvalidAcl(
            f"the {kind} of an ACL has {len(name)} characters; the limit is {NAME_CHARS_MAX}"
        )
    if has_control_characters(name):
        raise InvalidAcl(f"the {kind} of an ACL must not have control characters")


def has_control_characters(text: str) -> bool:
    """Return whether a text has control characters or lone surrogates, which no name may have."""
    return any(unicodedata.category(char) in ("Cc", "Cs") for char in text)


class AclFilter(Struct, frozen=True, kw_only=True):
    """Filter that selects bindings; None as name, principal or host matches any.

    The pattern type `match` selects every binding that applies to `name`: literal, prefix and `*`.
    """

    resource_type: str = ANY
    name: str | None = None
    pattern_type: str = ANY
    principal: str | None = None
    host: str | None = None
    operation: str = ANY
    permission: str = ANY

    def matches(self, binding: AclBinding) -> bool:
        return (
            self.resource_type in (ANY, binding.resource_type)
            and self._names(binding)
            and self.principal in (None, binding.principal)
            and self.host in (None, binding.host)
            and self.operation in (ANY, binding.operation)
            and self.permission in (ANY, binding.permission)
        )

    def _names(self, binding: AclBinding) -> bool:
        kind, name = self.pattern_type, self.name
        if kind not in (ANY, "match", binding.pattern_type):
            return False
        if name is None:
            return True
        if kind != "match":
            return name == binding.name
        if binding.pattern_type == "prefixed":
            return name.startswith(binding.name)
        return binding.name in (name, WILDCARD)
