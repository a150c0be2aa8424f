"""Bit fields of permitted operations (KIP-430): bit `n` is Kafka's `AclOperation` `n`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.security import CLUSTER, EVERYTHING
from penstock.security.acls import OPERATIONS, SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.security import Rights

NOT_ASKED: Final = -(2**31)
"""Value of the bit field in a response if the client did not request it."""


def operations_of(rights: Rights, resource_type: str, name: str) -> int:
    if rights is EVERYTHING:
        return all_operations(resource_type)
    return _bits(rights.operations(resource_type, name))


def cluster_operations(rights: Rights) -> int:
    """Return the permitted operations on the cluster; 0 without permission to describe it."""
    if not rights.allows("describe", "cluster", CLUSTER):
        return 0
    return operations_of(rights, "cluster", CLUSTER)


@cache
def all_operations(resource_type: str) -> int:
    return _bits(SUPPORTED[resource_type])


def _bits(operations: Iterable[str]) -> int:
    return sum(1 << OPERATIONS.index(operation) for operation in operations)
