"""Share groups at their coordinator: membership and assignment of partitions."""

from penstock.broker.coordination.share.core import (
    DescribedShareGroup,
    DescribedShareMember,
    EnsureShareGroup,
    ShareGroupLimits,
    ShareGroups,
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
