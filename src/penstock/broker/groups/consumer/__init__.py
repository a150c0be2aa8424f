"""Consumer groups of KIP-848: the coordinator assigns partitions, and members reconcile."""

from penstock.broker.groups.consumer.core import ConsumerGroups
from penstock.broker.groups.consumer.events import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.groups.consumer.state import ConsumerLimits, MigrationPolicy

__all__ = [
    "ConsumerGroups",
    "ConsumerHeartbeat",
    "ConsumerLimits",
    "DescribedConsumer",
    "DescribedConsumerGroup",
    "MigrationPolicy",
]
