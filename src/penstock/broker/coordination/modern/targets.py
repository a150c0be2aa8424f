"""Computation of a target: the partitions that each member of a group is to get."""

from __future__ import annotations

import json
from collections.abc import Mapping

from msgspec import Struct

from penstock.broker.coordination.assignors import ASSIGNORS, GroupSpec, Partitions


def encode_partitions(partitions: Partitions) -> bytes:
    """Encode partitions as JSON: sorted numbers by topic id in hexadecimal."""
    numbers = {topic.hex(): sorted(partitions[topic]) for topic in sorted(partitions)}
    return json.dumps(numbers, separators=(",", ":")).encode()


def decode_partitions(saved: Mapping[str, list[int]]) -> Partitions:
    """Decode partitions from the JSON of `encode_partitions`.

    Raises:
        ValueError, TypeError, AttributeError: the JSON has another form.
    """
    return {bytes.fromhex(topic): frozenset(map(int, n)) for topic, n in saved.items() if n}


class Target(Struct, frozen=True, kw_only=True):
    epoch: int
    assignor: str
    members: Mapping[str, tuple[Partitions, bytes | None]]
    """Target of each member by id: partitions, and their encoding; None if they are unchanged."""


class TargetWork(Struct, frozen=True, kw_only=True):
    epoch: int
    assignor: str
    spec: GroupSpec

    @property
    def size(self) -> int:
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
