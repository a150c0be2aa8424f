"""Values of topics that become diskless or replicated: copied logs, requests, participants.

If several brokers lead its partitions, the broker that received the request coordinates. Each of
them stores its *part*: COPYING, READY when its logs are copied except for the newest appends,
FENCED when appends have stopped and everything is copied, FAILED when that is impossible.
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
    """A completely copied local log, which becomes a diskless partition.

    `extents` adjoin, hold the log start (unless the log is empty) and end at the high watermark.
    `leader_epoch` is the log's last epoch. `aborted` are its aborted transactions, by marker.
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
    """The commit that makes a topic diskless: its configs before and after, and one broker's part.

    `incarnation` is the process that keeps producers out of `partitions`. Parts of other brokers
    are stored under the request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    partitions: tuple[MigratedPartition, ...]
    migration_id: UUID | None = None


class TopicReplication(Struct, frozen=True, kw_only=True):
    """The commit that makes a diskless topic replicated: its configs before and after.

    `broker_id` holds its own replicas; other parts are stored under the request `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    min_insync_replicas: int
    migration_id: UUID


class MigrationRequest(NamedTuple):
    """A request to make a topic diskless, or replicated; `migration_id` identifies the attempt."""

    topic_id: UUID
    migration_id: UUID
    broker_id: int
    incarnation: UUID


class MigrationParticipant(Struct, frozen=True, kw_only=True):
    """A broker's progress with the partitions that it leads; they are set once it is FENCED."""

    broker_id: int
    incarnation: UUID
    state: ParticipantState
    reason: str = ""
    partitions: tuple[MigratedPartition, ...] = ()


class RunningMigration(NamedTuple):
    """An open request and its participants, by broker, without their partitions."""

    request: MigrationRequest
    participants: tuple[MigrationParticipant, ...]
