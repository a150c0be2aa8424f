"""Streams groups of KIP-1071: the coordinator assigns the tasks of Kafka Streams applications."""

from penstock.broker.groups.streams.core import StreamsGroups
from penstock.broker.groups.streams.group import (
    DescribedStreamsGroup,
    StreamsHeartbeat,
    StreamsLimits,
    StreamsResponse,
)
from penstock.broker.groups.streams.topology import InternalTopic, Status, Subtopology, Topology

__all__ = [
    "DescribedStreamsGroup",
    "InternalTopic",
    "Status",
    "StreamsGroups",
    "StreamsHeartbeat",
    "StreamsLimits",
    "StreamsResponse",
    "Subtopology",
    "Topology",
]
