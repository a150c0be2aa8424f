"""Index of a cluster's ACL bindings, so that a decision examines only few of them.

A decision about a resource examines the bindings of its name, of those of its prefixes that have
bindings, and of `*`. Deny takes precedence over allow. Without a matching binding, the operation is
denied. The setting `allow_unbound` allows it if no binding names the resource at all.

Source: Kafka's `StandardAuthorizerData`, and `Authorizer.authorizeByResourceType` (KIP-679).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Final

from msgspec import Struct, field

from penstock.security.acls import ALL, EVERYBODY, GRANTED_BY, WILDCARD, AclBinding

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
        """Yield the bindings that apply to a resource, for each matching pattern."""
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
