"""The control plane: topics, brokers, producer ids, group offsets and group records."""

from penstock.control.errors import (
    ControlBusy,
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseStopped,
    IncompatibleDatabase,
    InvalidPartitions,
    InvalidReplicas,
    StaleBroker,
    StaleConfigs,
    StaleGroup,
    StaleTopic,
    TooLarge,
    TopicExists,
    TopicIdTaken,
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
    "DatabaseDamaged",
    "DatabaseFull",
    "DatabaseLocked",
    "DatabaseStopped",
    "GroupRecord",
    "IncompatibleDatabase",
    "InvalidPartitions",
    "InvalidReplicas",
    "MemoryControlPlane",
    "MetadataImage",
    "Partition",
    "SqliteControlPlane",
    "StaleBroker",
    "StaleConfigs",
    "StaleGroup",
    "StaleTopic",
    "TooLarge",
    "Topic",
    "TopicExists",
    "TopicIdTaken",
    "UnknownTopic",
]
