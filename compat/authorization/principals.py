"""The principals of the matrix: each has ACLs of its own, and nothing is changed while it runs.

A principal has one operation allowed, or denied, on one type of resource by one pattern. What most
requests need are several: so each of them comes twice, with nothing else and with all else allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.security.access import allow

from compat.authorization.requests import GROUP, TOPIC, TRANSACTION
from penstock.security.acls import CLUSTER, SUPPORTED, AclBinding

NAMES: Final = {"topic": TOPIC, "group": GROUP, "transactional_id": TRANSACTION}
PATTERNS: Final = ("literal", "prefixed", "wildcard", "other")
SUPER_USER: Final = "root"


@dataclass(frozen=True, slots=True)
class Holder:
    """A principal, and what its ACLs are, as (operation, type, pattern, permission, host)."""

    name: str
    rights: tuple[tuple[str, str, str, str, str], ...]

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


def holders() -> list[Holder]:
    """All of them."""
    return [Holder(f"u{number}", rights) for number, rights in enumerate(_rights())]


def _all_else(kind: str) -> list[tuple[str, str, str, str, str]]:
    others = [*NAMES, "cluster"]
    return [("all", one, "wildcard", "allow", "*") for one in others if one != kind]


def _rights() -> Iterator[tuple[tuple[str, str, str, str, str], ...]]:
    yield ()
    for kind in (*NAMES, "cluster"):
        patterns = ("literal",) if kind == "cluster" else PATTERNS
        for operation in ("all", *SUPPORTED[kind]):
            for pattern in patterns:
                allowed = (operation, kind, pattern, "allow", "*")
                yield (allowed,)
                yield (allowed, *_all_else(kind))
                if pattern != "other":
                    everything = ("all", kind, "wildcard", "allow", "*")
                    denied = (operation, kind, pattern, "deny", "*")
                    yield (denied, everything, *_all_else(kind))
        for host in ("127.0.0.1", "127.0.0.2"):
            yield (("all", kind, "literal", "allow", host), *_all_else(kind))
