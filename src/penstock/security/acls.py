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

import ipaddress
import json
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

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


# Index of a cluster's ACL bindings, so that a decision examines only few of them.
#
# A decision about a resource examines the bindings of its name, of those of its prefixes that have
# bindings, and of `*`. Deny takes precedence over allow. Without a matching binding, the operation
# is denied. The setting `allow_unbound` allows it if no binding names the resource at all.
#
# Source: Kafka's `StandardAuthorizerData`, and `Authorizer.authorizeByResourceType` (KIP-679).


ADDRESSES_KEPT_MAX: Final = 10_000
"""Most client addresses whose parsed form is cached, for bindings that name networks."""

_MAPPED_BITS: Final = 96
"""Bits that precede the IPv4 address in an IPv4-mapped IPv6 address."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class _Entry:
    __slots__ = ("host", "network", "operation", "permission", "principal")

    def __init__(self, binding: AclBinding) -> None:
        self.principal = binding.principal
        self.operation = binding.operation
        self.permission = binding.permission
        self.host = address_of(binding.host)
        self.network = network_of(binding.host)

    def applies(self, principal: str, host: str) -> bool:
        if self.principal != principal and self.principal != EVERYBODY:
            return False
        if self.network is not None:
            address = _parsed(host)
            return address is not None and address in self.network
        return self.host == WILDCARD or self.host == host


Entries = list[_Entry]


class _OfType(Struct):
    literal: dict[str, Entries] = field(default_factory=dict)
    prefixed: dict[str, Entries] = field(default_factory=dict)
    lengths: list[int] = field(default_factory=list)
    """Lengths of the prefixes that have bindings, ascending."""

    def naming(self, name: str) -> Iterator[Entries]:
        """Yield the ACL entries for a resource, once for each pattern that matches its name."""
        for found in {name, WILDCARD}:
            if found in self.literal:
                yield self.literal[found]
        for length in self.lengths:
            if length > len(name):
                break
            if (prefix := name[:length]) in self.prefixed:
                yield self.prefixed[prefix]


class AclIndex:
    """Immutable index of all bindings at one moment."""

    def __init__(self, bindings: Iterable[AclBinding], *, allow_unbound: bool = False) -> None:
        """Build the index; `allow_unbound` allows every operation on resources that no binding
        names.
        """
        self._types: dict[str, _OfType] = {}
        self._allow_unbound = allow_unbound
        for binding in bindings:
            of_type = self._types.setdefault(binding.resource_type, _OfType())
            literal = binding.pattern_type == "literal"
            patterns = of_type.literal if literal else of_type.prefixed
            patterns.setdefault(binding.name, []).append(_Entry(binding))
        for of_type in self._types.values():
            of_type.lengths = sorted({len(prefix) for prefix in of_type.prefixed})

    def allows(
        self, operation: str, resource_type: str, name: str, *, principal: str, host: str
    ) -> bool:
        """Return whether a principal is allowed an operation on a resource.

        `host` is the client's address in the form of `address_of`.
        """
        of_type = self._types.get(resource_type)
        found = [] if of_type is None else list(of_type.naming(name))
        if not found:
            return self._allow_unbound
        granted_by = GRANTED_BY.get(operation, (ALL, operation))
        allowed = False
        for entries in found:
            for entry in entries:
                if not entry.applies(principal, host):
                    continue
                if entry.permission == "deny":
                    if entry.operation in (ALL, operation):
                        return False
                elif entry.operation in granted_by:
                    allowed = True
        return allowed

    def allows_some(self, operation: str, resource_type: str, *, principal: str, host: str) -> bool:
        """Return whether a principal is allowed an operation on at least one resource of a type.

        As in Kafka, an allowed literal name counts unless the same name is denied. An allowed name
        or prefix does not count if it begins with a denied prefix.
        """
        if self.allows(operation, resource_type, "hardcode", principal=principal, host=host):
            return True
        of_type = self._types.get(resource_type, _OfType())
        literal = _by_permission(of_type.literal, operation, principal, host)
        prefixed = _by_permission(of_type.prefixed, operation, principal, host)
        if WILDCARD in literal["deny"]:
            return False
        if WILDCARD in literal["allow"]:
            return True
        names = [*(literal["allow"] - literal["deny"]), *prefixed["allow"]]
        return any(
            not any(name.startswith(denied) for denied in prefixed["deny"]) for name in names
        )


def _by_permission(
    patterns: dict[str, Entries], operation: str, principal: str, host: str
) -> dict[str, set[str]]:
    """Return the names whose bindings allow an operation, and those whose bindings deny it.

    The keys of the result are `allow` and `deny`.
    """
    names: dict[str, set[str]] = {"allow": set(), "deny": set()}
    for name, entries in patterns.items():
        for entry in entries:
            if entry.operation in (ALL, operation) and entry.applies(principal, host):
                names[entry.permission].add(name)
    return names


@lru_cache(ADDRESSES_KEPT_MAX)
def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def network_of(host: str) -> Network | None:
    """Return the network of a host such as `10.1.0.0/16`; None if the text is not a network.

    Host bits are ignored, and an IPv4-mapped IPv6 network becomes an IPv4 network.
    """
    if "/" not in host:
        return None
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        return None
    mapped = getattr(network.network_address, "ipv4_mapped", None)
    if mapped is not None and network.prefixlen >= _MAPPED_BITS:
        return ipaddress.ip_network((mapped, network.prefixlen - _MAPPED_BITS), strict=False)
    return network


def address_of(host: str) -> str:
    """Return an address in its canonical form, so that texts can be compared.

    An IPv4-mapped IPv6 address becomes IPv4. Other texts, such as `*`, are returned unchanged.
    """
    if host == WILDCARD:
        return host
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return str(mapped or address)
    return host
