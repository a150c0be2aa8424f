"""Consumer groups of KIP-848: the coordinator assigns, and members reconcile; sans-IO."""

from penstock.broker.coordination.consumer.core import ConsumerGroups
from penstock.broker.coordination.consumer.events import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.coordination.consumer.limits import ConsumerLimits, MigrationPolicy

__all__ = [
    "ConsumerGroups",
    "ConsumerHeartbeat",
    "ConsumerLimits",
    "DescribedConsumer",
    "DescribedConsumerGroup",
    "MigrationPolicy",
]
