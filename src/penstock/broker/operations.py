"""Operations that a client may perform, as the bit fields that some answers carry.

Bit `n` stands for operation number `n` of Kafka's `AclOperation`. Without an authoriser everything
that means something on the resource is allowed.

Source: KIP-430; Kafka's `AuthHelper.authorizedOperations`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from penstock.security import CLUSTER, EVERYTHING
from penstock.security.acls import OPERATIONS, SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.security import Rights

NOT_ASKED: Final = -(2**31)
"""What an answer carries when the client did not ask."""


def operations_of(rights: Rights, resource_type: str, name: str) -> int:
    """What may be done with a resource."""
    if rights is EVERYTHING:
        return all_operations(resource_type)
    return _bits(rights.operations(resource_type, name))


def cluster_operations(rights: Rights) -> int:
    """What may be done with the cluster, by who may describe it."""
    if not rights.allows("describe", "cluster", CLUSTER):
        return 0
    return operations_of(rights, "cluster", CLUSTER)


@cache
def all_operations(resource_type: str) -> int:
    """All that means something on a type of resource."""
    return _bits(SUPPORTED[resource_type])


def _bits(operations: Iterable[str]) -> int:
    return sum(1 << OPERATIONS.index(operation) for operation in operations)
