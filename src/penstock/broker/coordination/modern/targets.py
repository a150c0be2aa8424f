"""The computation of a target, as a piece of work that shares nothing with whoever asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.broker.coordination.assignors import ASSIGNORS, GroupSpec, Partitions


def encode_partitions(partitions: Partitions) -> bytes:
    """Partitions as JSON: their numbers, in order, by the topic's id in hexadecimal digits."""
    numbers = {topic.hex(): sorted(partitions[topic]) for topic in sorted(partitions)}
    return json.dumps(numbers, separators=(",", ":")).encode()


def decode_partitions(saved: Mapping[str, list[int]]) -> Partitions:
    """The partitions of such JSON.

    Raises:
        ValueError, TypeError, AttributeError: it is none.
    """
    return {bytes.fromhex(topic): frozenset(map(int, n)) for topic, n in saved.items() if n}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What each member is to read, for an epoch of the group; with the rows that say so."""

    epoch: int
    assignor: str
    members: Mapping[str, tuple[Partitions, bytes | None]]
    """Without rows for those whose target is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWork:
    """Computes a target."""

    epoch: int
    assignor: str
    spec: GroupSpec

    @property
    def size(self) -> int:
        """How much work that is: members and partitions."""
        return len(self.spec.members) + sum(self.spec.partitions.values())

    def __call__(self) -> Target:
        assigned = ASSIGNORS[self.assignor](self.spec)
        members: dict[str, tuple[Partitions, bytes | None]] = {}
        for member in self.spec.members:
            target = assigned.get(member.member_id) or {}
            same = target == member.assigned
            row = None if same else encode_partitions(target)
            members[member.member_id] = (member.assigned if same else target), row
        return Target(epoch=self.epoch, assignor=self.assignor, members=members)
