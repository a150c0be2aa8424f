"""The values of a local topic that becomes diskless: copied logs, and the brokers' shares in it.

Where several brokers lead its partitions, the one that is asked coordinates. Each of them has a
*share*, which is stored as far as it is: COPYING, READY when its logs are copied but for what is
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

ShareState = Literal["copying", "ready", "fenced", "failed"]


class SwitchedObject(NamedTuple):
    """A written object that holds a part of a local log."""

    object_id: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedPartition:
    """A local log that lies in objects, whole: what its partition is once it is diskless.

    `extents` adjoin, hold the log start (unless the log is empty) and end at the high watermark.
    `leader_epoch` is the one that the log was written in up to its end.
    """

    partition: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    objects: tuple[SwitchedObject, ...] = ()
    extents: tuple[Extent, ...] = ()
    producers: Mapping[int, Producer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSwitch:
    """A topic that becomes diskless: its configs before and after, and one broker's share.

    `incarnation` is the process that keeps producers out of `partitions`. If other brokers lead
    some, `switch_id` is that of the request under which their shares are stored.
    """

    topic_id: UUID
    broker_id: int
    incarnation: UUID
    expected: Mapping[str, str]
    configs: Mapping[str, str]
    partitions: tuple[SwitchedPartition, ...]
    switch_id: UUID | None = None


class SwitchRequest(NamedTuple):
    """That a topic is to become diskless; by whom, and which attempt it is."""

    topic_id: UUID
    switch_id: UUID
    broker_id: int
    incarnation: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchShare:
    """How far a broker is with the partitions that it leads; they are there once it is FENCED."""

    broker_id: int
    incarnation: UUID
    state: ShareState
    reason: str = ""
    partitions: tuple[SwitchedPartition, ...] = ()


class RunningSwitch(NamedTuple):
    """A request and the shares in it, by broker; their partitions are left out."""

    request: SwitchRequest
    shares: tuple[SwitchShare, ...]
