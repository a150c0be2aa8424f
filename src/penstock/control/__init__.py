"""The control plane: topics, brokers, offsets, groups, sink commits, and diskless data's index.

Its forms are loaded when they are first used: they take SQLite and asyncio, and Spark's processes,
of which every query starts some, want values alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.control.batch_index.migration_values import (
    MigratedObject,
    MigratedPartition,
    MigrationParticipant,
    MigrationRequest,
    RunningMigration,
    TopicMigration,
)
from penstock.control.batch_index.plane import DisklessPlane
from penstock.control.batch_index.values import (
    Backlog,
    BatchEntry,
    CommitAnswer,
    FindRequest,
    Found,
    MarkedObject,
    ObjectCommit,
    ObjectKind,
    ObjectLease,
    ObjectState,
    ObjectTotals,
    PartitionKey,
    Retained,
    SegmentSwap,
    StoreIdentity,
    Watermarks,
)
from penstock.control.coordination.values import (
    KEY_ROW,
    CoordinationRecord,
    RecordChange,
    RecordKey,
    SavedRecords,
)
from penstock.control.epochs.seen import SeenDatabase
from penstock.control.epochs.values import (
    ClaimedEpochs,
    EpochClaim,
    EpochOpening,
    InSyncReplicas,
    OwedEpoch,
    PartitionChain,
    PartitionEpoch,
    Reservation,
)
from penstock.control.errors import (
    CommitForgotten,
    ControlBusy,
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseSetBack,
    DatabaseSlow,
    DatabaseStopped,
    EntryRefused,
    IncompatibleDatabase,
    InvalidCommit,
    InvalidPartitions,
    InvalidQuorum,
    InvalidReplicas,
    MigrationRefused,
    NotReplica,
    NotReplicated,
    ObjectLeaseLost,
    OffsetBeyondEnd,
    StaleBroker,
    StaleClusterEpoch,
    StaleConfigs,
    StaleEpoch,
    StaleExtents,
    StaleMigration,
    StaleRecord,
    StaleSink,
    StaleTopic,
    TooLarge,
    TopicExists,
    TopicIdTaken,
    UnknownTopic,
    UnstorableText,
)
from penstock.control.sink_commits.object_rules import SinkAnswer
from penstock.control.values import (
    Broker,
    CommittedOffset,
    MetadataImage,
    Partition,
    SinkCommit,
    SinkState,
    SinkTarget,
    Topic,
)

if TYPE_CHECKING:
    from penstock.control.plane import ControlPlane
    from penstock.control.sqlite import SqliteControlPlane
    from penstock.control.sqlite_memory import MemoryControlPlane

_FORMS = {
    "ControlPlane": "plane",
    "MemoryControlPlane": "sqlite_memory",
    "SqliteControlPlane": "sqlite",
}

__all__ = [
    "KEY_ROW",
    "Backlog",
    "BatchEntry",
    "Broker",
    "ClaimedEpochs",
    "CommitAnswer",
    "CommitForgotten",
    "CommittedOffset",
    "ControlBusy",
    "ControlPlane",
    "ControlUnavailable",
    "CoordinationRecord",
    "DatabaseDamaged",
    "DatabaseFull",
    "DatabaseLocked",
    "DatabaseSetBack",
    "DatabaseSlow",
    "DatabaseStopped",
    "DisklessPlane",
    "EntryRefused",
    "EpochClaim",
    "EpochOpening",
    "FindRequest",
    "Found",
    "InSyncReplicas",
    "IncompatibleDatabase",
    "InvalidCommit",
    "InvalidPartitions",
    "InvalidQuorum",
    "InvalidReplicas",
    "MarkedObject",
    "MemoryControlPlane",
    "MetadataImage",
    "MigratedObject",
    "MigratedPartition",
    "MigrationParticipant",
    "MigrationRefused",
    "MigrationRequest",
    "NotReplica",
    "NotReplicated",
    "ObjectCommit",
    "ObjectKind",
    "ObjectLease",
    "ObjectLeaseLost",
    "ObjectState",
    "ObjectTotals",
    "OffsetBeyondEnd",
    "OwedEpoch",
    "Partition",
    "PartitionChain",
    "PartitionEpoch",
    "PartitionKey",
    "RecordChange",
    "RecordKey",
    "Reservation",
    "Retained",
    "RunningMigration",
    "SavedRecords",
    "SeenDatabase",
    "SegmentSwap",
    "SinkAnswer",
    "SinkCommit",
    "SinkState",
    "SinkTarget",
    "SqliteControlPlane",
    "StaleBroker",
    "StaleClusterEpoch",
    "StaleConfigs",
    "StaleEpoch",
    "StaleExtents",
    "StaleMigration",
    "StaleRecord",
    "StaleSink",
    "StaleTopic",
    "StoreIdentity",
    "TooLarge",
    "Topic",
    "TopicExists",
    "TopicIdTaken",
    "TopicMigration",
    "UnknownTopic",
    "UnstorableText",
    "Watermarks",
]


def __getattr__(name: str) -> object:
    if name not in _FORMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock.control.{_FORMS[name]}"), name)
