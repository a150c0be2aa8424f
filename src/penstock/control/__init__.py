"""The control plane: topics, brokers, producer ids, group offsets and group records."""

from penstock.control.errors import (
    ControlBusy,
    ControlUnavailable,
    IncompatibleDatabase,
    StaleBroker,
    StaleConfigs,
    StaleGroup,
    StaleTopic,
    TopicExists,
    UnknownTopic,
)
from penstock.control.memory import MemoryControlPlane
from penstock.control.port import ControlPlane
from penstock.control.sqlite import SqliteControlPlane
from penstock.control.values import (
    Broker,
    CommittedOffset,
    GroupRecord,
    MetadataImage,
    Partition,
    Topic,
)

__all__ = [
    "Broker",
    "CommittedOffset",
    "ControlBusy",
    "ControlPlane",
    "ControlUnavailable",
    "GroupRecord",
    "IncompatibleDatabase",
    "MemoryControlPlane",
    "MetadataImage",
    "Partition",
    "SqliteControlPlane",
    "StaleBroker",
    "StaleConfigs",
    "StaleGroup",
    "StaleTopic",
    "Topic",
    "TopicExists",
    "UnknownTopic",
]
