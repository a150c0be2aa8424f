"""Values of topics that become diskless or replicated: copied logs, requests, participants.

The broker that receives the request coordinates. Each broker that copies partitions stores its
progress as a participant, in one of these states:

| state   | meaning                                                |
|---------|--------------------------------------------------------|
| COPYING | the broker copies its partitions                       |
| READY   | all records except the newest appends are copied       |
| FENCED  | appends have stopped, and all records are copied       |
| FAILED  | the broker cannot copy its partitions; `reason` is set |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple
from uuid import UUID

from msgspec import Struct, field

from penstock.records.extents import Extent
from penstock.records.idempotence import Producer
from penstock.records.transactions import AbortedTransaction

ParticipantState = Literal["copying", "ready", "fenced", "failed"]


class MigratedObject(NamedTuple):
    object_id: int
    size_bytes: int


class MigratedPartition(Struct, frozen=True, kw_only=True):
    """A local log that was copied completely, and becomes a diskless partition.

    `extents` adjoin and end at the high watermark. The first one holds the log start, unless the
    log is empty. `leader_epoch` is the log's last epoch. `aborted` has its aborted transactions, in
    the order of their markers.
    """

    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    objects: tuple[MigratedObject, ...] = ()
    extents: tuple[Extent, ...] = ()
    producers: Mapping[int, Producer] = field(default_factory=dict)
    aborted: tuple[AbortedTransaction, ...] = ()


class TopicMigration(Struct, frozen=True, kw_only=True):
    """A commit that makes a topic diskless.

    `expected` and `configs` are the topic's configs before and after. `partitions` are those that
    the committing broker leads; its process `incarnation` rejects appends to them. The partitions
    of other brokers are stored under the request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    partitions: tuple[MigratedPartition, ...]
    migration_id: UUID | None = None


class TopicReplication(Struct, frozen=True, kw_only=True):
    """A commit that makes a diskless topic replicated.

    `expected` and `configs` are the topic's configs before and after. `broker_id` is the committing
    broker, which has copied its own replicas. Other brokers are stored as participants of the
    request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    min_insync_replicas: int
    migration_id: UUID


class MigrationRequest(NamedTuple):
    """A request to make a topic diskless or replicated. `migration_id` identifies the attempt.

    `broker_id` and `incarnation` are the coordinator's.
    """

    topic_id: UUID
    migration_id: UUID
    broker_id: int
    incarnation: UUID


class MigrationParticipant(Struct, frozen=True, kw_only=True):
    """A broker's progress in a migration.

    `partitions` has the copied partitions once the broker is FENCED.
    """

    broker_id: int
    incarnation: UUID
    state: ParticipantState
    reason: str = ""
    partitions: tuple[MigratedPartition, ...] = ()


class RunningMigration(NamedTuple):
    """An open request and its participants, by broker id, without their copied partitions."""

    request: MigrationRequest
    participants: tuple[MigrationParticipant, ...]
