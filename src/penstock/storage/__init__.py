"""The segmented log: partitions in Kafka's file formats behind one shared journal."""

from penstock.storage.config import LogConfig
from penstock.storage.errors import (
    AppendBacklog,
    BatchesTooLarge,
    CorruptFile,
    CorruptLog,
    DiskFull,
    InvalidProducerEpoch,
    InvalidTimestamp,
    LogDeleted,
    OutOfOrderSequence,
    ReplicaEpochFell,
    ReplicaOverlap,
    StorageError,
    StorageFailed,
    StoreLocked,
    TopicIdMismatch,
)
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.settings import StorageSettings
from penstock.storage.store import LogStore
from penstock.storage.values import (
    Lease,
    OffsetAndTimestamp,
    Read,
)

__all__ = [
    "AppendBacklog",
    "BatchesTooLarge",
    "CorruptFile",
    "CorruptLog",
    "DiskFull",
    "InvalidProducerEpoch",
    "InvalidTimestamp",
    "Lease",
    "LogConfig",
    "LogDeleted",
    "LogStore",
    "OffsetAndTimestamp",
    "OutOfOrderSequence",
    "PartitionLog",
    "Read",
    "ReplicaEpochFell",
    "ReplicaOverlap",
    "StorageError",
    "StorageFailed",
    "StorageSettings",
    "StoreLocked",
    "TopicIdMismatch",
]
