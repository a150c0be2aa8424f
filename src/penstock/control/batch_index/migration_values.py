"""The values of a topic that becomes diskless, or local again: copied logs, brokers that take part.

Where several brokers lead its partitions, the one that is asked coordinates. Each of them has a
*part*, which is stored as far as it is: COPYING, READY when its logs are copied but for what is
appended meanwhile, FENCED when nothing is appended any more and all is copied, FAILED when that
cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from uuid import UUID

from penstock.records.extents import Extent
from penstock.records.idempotence import Producer
from penstock.records.transactions import AbortedTransaction

ParticipantState = Literal["copying", "ready", "fenced", "failed"]


class MigratedObject(NamedTuple):
    """A written object that holds a part of a local log."""

    object_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedPartition:
    """A local log that lies in objects, whole: what its partition is once it is diskless.

    `extents` adjoin, hold the log start (unless the log is empty) and end at the high watermark.
    `leader_epoch` is the one that the log was written in up to its end. `aborted` are its aborted
    transactions, by marker.
    """

    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    objects: tuple[MigratedObject, ...] = ()
    extents: tuple[Extent, ...] = ()
    producers: Mapping[int, Producer] = field(default_factory=dict)
    aborted: tuple[AbortedTransaction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMigration:
    """A topic that becomes diskless: its configs before and after, and one broker's part.

    `incarnation` is the process that keeps producers out of `partitions`. If other brokers lead
    some, `migration_id` is that of the request under which their participants are stored.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    partitions: tuple[MigratedPartition, ...]
    migration_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReplication:
    """A diskless topic that gets replicas: its configs before and after, and by whom.

    `broker_id` has what it is to hold; what others have is under the request of `migration_id`.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    min_insync_replicas: int
    migration_id: UUID


class MigrationRequest(NamedTuple):
    """That a topic is to become diskless, or to get replicas; by whom, and which attempt it is."""

    topic_id: UUID
    migration_id: UUID
    broker_id: int
    incarnation: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationParticipant:
    """How far a broker is with the partitions that it leads; they are there once it is FENCED."""

    broker_id: int
    incarnation: UUID
    state: ParticipantState
    reason: str = ""
    partitions: tuple[MigratedPartition, ...] = ()


class RunningMigration(NamedTuple):
    """A request and the participants in it, by broker; their partitions are left out."""

    request: MigrationRequest
    participants: tuple[MigrationParticipant, ...]
