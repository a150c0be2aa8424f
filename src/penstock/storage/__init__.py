"""The segmented log: partitions in Kafka's file formats behind one shared journal."""

from penstock.storage.files.errors import (
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
from penstock.storage.files.settings import LogConfig, StorageSettings
from penstock.storage.files.values import Lease, OffsetAndTimestamp, Read
from penstock.storage.log.partition_log import PartitionLog
from penstock.storage.store import LogStore

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
