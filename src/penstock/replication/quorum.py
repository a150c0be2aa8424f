"""Quorum sizes: n replicas, a acknowledgements, f fences.

With f = n − a + 1, any a replicas and any f replicas have one in common: f replicas cannot all lack
what a replicas have acknowledged. With 2a > n, any two sets of a replicas have one in common, too.

Source: BookKeeper's write, ack and fence quorums; Kafka's `min.insync.replicas`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from msgspec import Struct

from penstock.base.errors import InvalidError


class InvalidQuorum(InvalidError):
    """No quorum of so many acknowledgements exists among so many replicas."""

    code: ClassVar[str] = "invalid_replication_factor"

    def __init__(self, replicas: int, acks: int) -> None:
        super().__init__(
            f"{acks} acknowledgements of {replicas} replicas: it must be more than half of them,"
            " and no more than there are"
        )
        self.replicas = replicas
        self.acks = acks


class Quorum(Struct, frozen=True):
    """`acks` of `replicas` commit an offset.

    Raises:
        InvalidQuorum: not 2 × acks > replicas ≥ acks.
    """

    replicas: int
    acks: int

    def __post_init__(self) -> None:
        if not self.replicas >= self.acks > self.replicas // 2:
            raise InvalidQuorum(self.replicas, self.acks)

    @property
    def fences(self) -> int:
        """Replicas that must have promised before what they lack is absent."""
        return self.replicas - self.acks + 1

    def reached(self, ends: Iterable[int]) -> int:
        """The offset below which `acks` replicas hold everything: the acks-th highest end."""
        return sorted(ends)[-self.acks]


def quorum_of(replicas: int, min_insync_replicas: int) -> Quorum:
    """The quorum that a topic's settings ask for.

    Raises:
        InvalidQuorum: `min_insync_replicas` is above `replicas`: no append could be acknowledged.
    """
    return Quorum(replicas, max(min_insync_replicas, replicas // 2 + 1))
