"""State of a share group and its members. Members may share partitions, so none waits for another.

Source: Kafka's `ShareGroup` and `ShareGroupMember`.
"""

from __future__ import annotations

from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember


class ShareMember(ModernMember):
    """Member of a share group. `last_sent` is the assignment that it received last, or None."""

    __slots__ = ("last_sent",)

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.last_sent: Partitions | None = None


ShareGroup = ModernGroup[ShareMember]
