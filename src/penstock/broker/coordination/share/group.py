"""A share group and its members; several members may share a partition, so none waits for another.

Source: Kafka's `ShareGroup` and `ShareGroupMember`.
"""

from __future__ import annotations

from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember


class ShareMember(ModernMember):
    """A member. `last_sent` is the assignment sent to it last; None if none was sent."""

    __slots__ = ("last_sent",)

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.last_sent: Partitions | None = None


ShareGroup = ModernGroup[ShareMember]
