"""Quorum sizes: of n replicas, a must acknowledge a record, and f must be fenced.

With f = n − a + 1, any a replicas and any f replicas have one in common. So f replicas cannot all
lack a record that a replicas have acknowledged. With 2a > n, any two sets of a replicas have one in
common, too.

Source: BookKeeper's write, ack and fence quorums; Kafka's `min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from msgspec import Struct

from penstock.base.errors import InvalidError


class InvalidQuorum(InvalidError):
    """Number of acknowledgements that is not a valid quorum of the replicas."""

    code: ClassVar[str] = "invalid_replication_factor"

    def __init__(self, replicas: int, acks: int) -> None:
        super().__init__(
            f"{acks} acknowledgements are not a valid quorum of {replicas} replicas: the number"
            " must be more than half of them, and at most all of them"
        )
        self.replicas = replicas
        self.acks = acks


class Quorum(Struct, frozen=True):
    """Quorum sizes of an epoch: an offset is committed once `acks` of `replicas` have it.

    Raises:
        InvalidQuorum: `acks` is not more than half of `replicas`, or above `replicas`.
    """

    replicas: int
    acks: int

    def __post_init__(self) -> None:
        if not self.replicas >= self.acks > self.replicas // 2:
            raise InvalidQuorum(self.replicas, self.acks)

    @property
    def fences(self) -> int:
        """Number of fenced replicas that must lack a record before it counts as absent."""
        return self.replicas - self.acks + 1

    def reached(self, ends: Iterable[int]) -> int:
        """Return the offset below which `acks` replicas have all records: the acks-th highest."""
        return sorted(ends)[-self.acks]


def quorum_of(replicas: int, min_insync_replicas: int) -> Quorum:
    """Return the quorum for a replication factor and a topic's `min.insync.replicas`.

    Raises:
        InvalidQuorum: `min_insync_replicas` is above `replicas`, so no append could be committed.
    """
    return Quorum(replicas, max(min_insync_replicas, replicas // 2 + 1))
