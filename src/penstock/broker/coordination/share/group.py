"""A share group and its members. A partition may be several members', so nobody waits for anybody.

Source: Kafka's `ShareGroup` and `ShareGroupMember`.
"""

from __future__ import annotations

from penstock.broker.coordination.assignors import Partitions
from penstock.broker.coordination.modern.group import ModernGroup, ModernMember


class ShareMember(ModernMember):
    """A member. `told` is what it was told last to read; None: it is told with the next answer."""

    __slots__ = ("last_sent",)

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.last_sent: Partitions | None = None


ShareGroup = ModernGroup[ShareMember]
