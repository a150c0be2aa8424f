"""Share groups at their coordinator: membership and assignment of partitions."""

from penstock.broker.coordination.share.core import ShareGroupLimits, ShareGroups
from penstock.broker.coordination.share.events import (
    DescribedShareGroup,
    DescribedShareMember,
    EnsureShareGroup,
    ShareHeartbeat,
)

__all__ = [
    "DescribedShareGroup",
    "DescribedShareMember",
    "EnsureShareGroup",
    "ShareGroupLimits",
    "ShareGroups",
    "ShareHeartbeat",
]
