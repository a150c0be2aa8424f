"""The principals of the matrix, each with ACLs of its own, in worlds in which nothing changes.

A principal has one operation allowed, or denied, on one type of resource by one pattern. What most
requests need are several: so each of them comes twice, with nothing else and with all else allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from tests.security.access import allow

from compat.authorization.requests import GROUP, TOPIC, TRANSACTION
from penstock.security.acls import CLUSTER, SUPPORTED, AclBinding

NAMES: Final = {"topic": TOPIC, "group": GROUP, "transactional_id": TRANSACTION}
KINDS: Final = (*NAMES, "cluster")
PATTERNS: Final = ("literal", "prefixed", "wildcard", "other")
HOSTS: Final = ("127.0.0.1", "127.0.0.2")
"""Where all ask from, and where nobody does."""
SUPER_USER: Final = "root"
EVERYBODY: Final = "*"

Right = tuple[str, str, str, str, str]
"""An operation, a type, a pattern, whether it is allowed or denied, a host."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A principal, and what its ACLs are."""

    name: str
    rights: tuple[Right, ...]

    def __str__(self) -> str:
        words = [
            f"{permission} {operation} {kind} {pattern}{'' if host == '*' else ' from ' + host}"
            for operation, kind, pattern, permission, host in self.rights
        ]
        return ", ".join(words) or "nothing"

    def bindings(self) -> Iterator[AclBinding]:
        """Its ACLs."""
        for operation, kind, pattern, permission, host in self.rights:
            yield allow(
                operation,
                kind,
                _name(kind, pattern),
                self.name,
                pattern_type="prefixed" if pattern == "prefixed" else "literal",
                host=host,
                permission=permission,
            )


def _name(kind: str, pattern: str) -> str:
    if kind == "cluster":
        return CLUSTER
    return {"literal": NAMES[kind], "prefixed": "m-", "wildcard": "*", "other": "n"}[pattern]


@dataclass(frozen=True, slots=True)
class World:
    """ACLs that are there together: those of the principals that ask, and those of `User:*`."""

    holders: tuple[Holder, ...]
    everybody: tuple[Right, ...] = ()

    def __str__(self) -> str:
        return f"everybody: {Holder(EVERYBODY, self.everybody)}" if self.everybody else ""

    def bindings(self) -> Iterator[AclBinding]:
        """All of them."""
        for holder in (*self.holders, Holder(EVERYBODY, self.everybody)):
            yield from holder.bindings()


def holders() -> list[Holder]:
    """All principals that differ in their own ACLs."""
    return _named(_rights())


def of_everybody() -> list[World]:
    """What everybody may, or may not, before principals with more, and with less."""
    return [
        World(
            tuple(_named([
                (),
                others,
                (everything(kind), *others),
                (("all", kind, "literal", "deny", "*"), *others),
            ])),
            everybody=(right,),
        )
        for right, kind in _whole_rights()
        for others in [_all_else(kind)]
    ]  # fmt: skip


def of_resources() -> list[World]:
    """One ACL alone, before its principal and another one: all else has none."""
    rights = [right for right, _ in _whole_rights()]
    rights += [("describe", *right[1:]) for right in rights if right[3:] == ("allow", "*")]
    return [World(tuple(_named([()])))] + [World(tuple(_named([(), (right,)]))) for right in rights]


def _named(rights: Iterable[Iterable[Right]]) -> list[Holder]:
    return [Holder(f"u{number}", tuple(each)) for number, each in enumerate(rights)]


def everything(kind: str) -> Right:
    return ("all", kind, "wildcard", "allow", "*")


def _all_else(kind: str) -> list[Right]:
    return [everything(other) for other in KINDS if other != kind]


def _patterns(kind: str) -> tuple[str, ...]:
    return ("literal",) if kind == "cluster" else PATTERNS


def _whole_rights() -> Iterator[tuple[Right, str]]:
    """All operations at once, by every pattern, from everywhere, from here and from elsewhere."""
    for kind in KINDS:
        for pattern, permission in product(_patterns(kind), ("allow", "deny")):
            for host in ("*", *HOSTS) if pattern == "literal" else ("*",):
                yield ("all", kind, pattern, permission, host), kind


def _rights() -> Iterator[tuple[Right, ...]]:
    yield ()
    for kind in KINDS:
        others = _all_else(kind)
        for operation, pattern in product(("all", *SUPPORTED[kind]), _patterns(kind)):
            allowed = (operation, kind, pattern, "allow", "*")
            yield (allowed,)
            yield (allowed, *others)
            if pattern != "other":
                yield ((operation, kind, pattern, "deny", "*"), everything(kind), *others)
        for host in HOSTS:
            yield (("all", kind, "literal", "allow", host), *others)
            yield (("all", kind, "literal", "deny", host), everything(kind), *others)
