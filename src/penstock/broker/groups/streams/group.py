"""State of a streams group and its members, and the requests that change it.

A member's tasks are sets of partitions under the key of role and subtopology (`assignor.py`), so a
streams group reconciles as a consumer group does. Two rules say when a task is free:

    active task     no other member has it as an active task
    any task        no other member of the same process has it, in any role

Source: Kafka's `StreamsGroup`, `StreamsGroupMember`, `CurrentAssignmentBuilder`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from penstock.base.errors import BugError
from penstock.broker.configuration.groups import GroupConfigs
from penstock.broker.groups.consumer.events import (
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from penstock.broker.groups.consumer.group import (
    ConsumerGroup,
    ConsumerMember,
    Current,
    Taken,
)
from penstock.broker.groups.consumer.state import (
    ConsumerLimits,
    common_fields,
    decode_common,
    encode_current,
)
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.modern.group import decode_rows, encode_rows, outdate, row_of
from penstock.broker.groups.runtime.assignors import (
    NOTHING,
    Partitions,
    fewer,
    merged,
    within,
)
from penstock.broker.groups.runtime.kinds import CorruptGroup
from penstock.broker.groups.streams.assignor import ACTIVE, Task
from penstock.broker.groups.streams.topology import Configured, Status, Topology

KIND: Final = "streams"
NOT_READY: Final = "NotReady"
"""State of a group whose topology has no tasks yet."""

FIRST_EPOCH: Final = 1
"""Epoch of a group without a target."""
ENDPOINT_EPOCHS: Final = 1 << 30

Endpoint = tuple[str, int]
"""Host and port at which a process serves interactive queries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsHeartbeat(ConsumerHeartbeat):
    """StreamsGroupHeartbeat request. `owned` are tasks of all roles; None means unchanged."""

    topology: Topology | None = None
    process_id: str | None = None
    endpoint: Endpoint | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    held: frozenset[Task] | None = None
    """Tasks whose state the member has on disk."""
    endpoint_epoch: int = -1
    shutdown: bool = False


class StreamsResponse(HeartbeatResponse, frozen=True, kw_only=True):
    """Heartbeat response of a streams group. `assigned` are tasks of all roles.

    `endpoints` are the tasks of members with an endpoint, None if the member has them already.
    `configured.missing` are internal topics that the broker has to create.
    """

    statuses: tuple[tuple[Status, str], ...] = ()
    endpoint_epoch: int = 0
    endpoints: tuple[tuple[Endpoint, Partitions], ...] | None = None
    configured: Configured


class DescribedStreamsMember(DescribedConsumer, frozen=True, kw_only=True):
    """Member of a described streams group; `assigned` is empty, because it has tasks instead."""

    process_id: str
    topology_epoch: int
    endpoint: Endpoint | None
    tags: tuple[tuple[str, str], ...]
    tasks: Partitions
    target_tasks: Partitions


class DescribedStreamsGroup(DescribedConsumerGroup, frozen=True, kw_only=True):
    members: tuple[DescribedStreamsMember, ...]
    topology: Topology | None
    configured: Configured
    protocol_type: str = KIND


class StreamsLimits(ConsumerLimits, frozen=True, kw_only=True):
    """Limits of streams groups; times in ms. `configs` returns the settings of a single group."""

    initial_delay: int = 0
    standbys: int = 0

    def _of(self, group_id: str) -> GroupConfigs | None:
        return None if self.configs is None else self.configs(group_id)

    def session_timeout_ms(self, group_id: str) -> int:
        own = self._of(group_id)
        return self.session_timeout if own is None else own.streams_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        own = self._of(group_id)
        return self.heartbeat_interval if own is None else own.streams_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        own = self._of(group_id)
        return self.assignment_interval if own is None else own.streams_assignment_interval_ms

    def initial_delay_ms(self, group_id: str) -> int:
        own = self._of(group_id)
        return self.initial_delay if own is None else own.streams_initial_rebalance_delay_ms

    def standby_count(self, group_id: str) -> int:
        own = self._of(group_id)
        return self.standbys if own is None else own.streams_num_standby_replicas


class StreamsMember(ConsumerMember):
    """Member of a streams group. `held` are tasks whose state it has reported to have on disk."""

    __slots__ = ("endpoint", "held", "kept_since", "process_id", "tags", "topology_epoch")

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.process_id = ""
        self.endpoint: Endpoint | None = None
        self.tags: tuple[tuple[str, str], ...] = ()
        self.topology_epoch = -1
        self.held: frozenset[Task] = frozenset()
        self.kept_since: int | None = None
        """Epoch since which the member has lost no task; None if unknown."""

    def may_commit(self, epoch: int) -> bool:
        """Accept also earlier epochs since which no task was lost (KIP-1251)."""
        since = self.epoch if self.kept_since is None else self.kept_since
        return epoch == self.epoch or since <= epoch <= self.epoch


def streams_member(member: ConsumerMember) -> StreamsMember:
    """Return `member`, which belongs to a streams group."""
    if not isinstance(member, StreamsMember):
        raise BugError(f"member {member.member_id!r} is not a member of a streams group")
    return member


class StreamsGroup(ConsumerGroup):
    """Streams group. `owners` maps active tasks to members; `holders` has the tasks of all roles.

    A new group has epoch 1, so that the first target always has a later epoch than a member that
    joined before it.
    """

    def __init__(self, group_id: str, *, touched_ms: int) -> None:
        super().__init__(group_id, touched_ms=touched_ms)
        self.epoch = self.assignment_epoch = FIRST_EPOCH
        self.holders: dict[tuple[str, bytes], dict[int, list[str]]] = {}
        """Members with a task, by process and subtopology, and by partition."""
        self.topology: Topology | None = None
        self.topology_row = b""
        self.matches: Mapping[str, frozenset[str]] = {}
        """Topics that match each regular expression of the topology."""
        self.configured = Configured()
        self.configured_for: str | None = None
        """Fingerprint of the topics for which `configured` was computed; None if unknown."""
        self.standbys: int | None = None
        """Number of standby tasks in the last target; None if unknown."""
        self.shutdown_by = ""
        """Member that requested to shut down the application; empty if none did."""
        self.endpoint_epoch = touched_ms // 1000 % ENDPOINT_EPOCHS
        """Number of the current endpoints; begins with the time, so that restarts raise it."""

    @property
    def has_target(self) -> bool:
        return self.assignment_epoch > FIRST_EPOCH

    @property
    def topology_epoch(self) -> int:
        """Epoch of the topology; −1 without one."""
        return -1 if self.topology is None else self.topology.epoch

    def set_topology(self, topology: Topology, resolved: Mapping[str, frozenset[str]]) -> None:
        self.topology, self.topology_row = topology, msgspec.json.encode(topology)
        self.set_matches(resolved)

    def set_matches(self, resolved: Mapping[str, frozenset[str]]) -> None:
        """Set the topics that match the topology's regular expressions."""
        self.matches = resolved
        names = frozenset() if self.topology is None else self.topology.topics
        self.readers = dict.fromkeys(names.union(*resolved.values()), 1)
        self.fingerprint = self.configured_for = None

    def set_process(self, member: StreamsMember, process_id: str) -> None:
        """Set the process of a member that joins, without tasks that the process has already."""
        self._disown(member)
        member.process_id = process_id
        member.assigned = fewer(member.assigned, self._taken_from(member, member.assigned))
        member.revoking = NOTHING
        self._own(member)
        outdate(member, "current")

    # -- owners -----------------------------------------------------------------------------

    def move(self, member: ConsumerMember, current: Current) -> None:
        own = streams_member(member)
        before = merged(own.assigned, own.revoking)
        super().move(own, current)
        if own.kept_since is None or not within(before, merged(own.assigned, own.revoking)):
            own.kept_since = own.epoch

    def taken_from(self, member: ConsumerMember) -> Taken:
        return partial(self._taken_from, streams_member(member))

    def _taken_from(self, member: StreamsMember, partitions: Partitions) -> Partitions:
        found = {}
        for key, numbers in partitions.items():
            own, process = member.member_id, (member.process_id, key[1:])
            owners, holders = self.owners.get(key, {}), self.holders.get(process, {})
            found[key] = frozenset(
                [
                    number
                    for number in numbers
                    if owners.get(number, own) != own
                    or any([holder != own for holder in holders.get(number, ())])
                ]
            )
        return {key: numbers for key, numbers in found.items() if numbers}

    def _own(self, member: ConsumerMember) -> None:
        self.endpoint_epoch += 1
        member_id, process = member.member_id, streams_member(member).process_id
        for tasks in (member.assigned, member.revoking):
            for key, numbers in tasks.items():
                holders = self.holders.setdefault((process, key[1:]), {})
                owners = self.owners.setdefault(key, {}) if key[:1] == ACTIVE else {}
                for number in numbers:
                    holders.setdefault(number, []).append(member_id)
                    if owners.setdefault(number, member_id) != member_id:
                        raise BugError(
                            f"active task {key[1:].decode()}_{number} belongs to {owners[number]!r}"
                            f" and to {member_id!r} in group {self.group_id!r}"
                        )

    def _disown(self, member: ConsumerMember) -> None:
        self.endpoint_epoch += 1
        member_id, process = member.member_id, streams_member(member).process_id
        for tasks in (member.assigned, member.revoking):
            for key, numbers in tasks.items():
                holders = self.holders.get((process, key[1:]), {})
                owners = self.owners.get(key, {})
                for number in numbers:
                    if owners.get(number) == member_id:
                        del owners[number]
                    if member_id in holders.get(number, ()):
                        holders[number].remove(member_id)
                        if not holders[number]:
                            del holders[number]
                if not holders:
                    self.holders.pop((process, key[1:]), None)
                if not owners:
                    self.owners.pop(key, None)


# Stored rows of a streams group: those of a consumer group, and one for the topology.
#
# The group's own row has the empty member id:
#
#     {"kind": "streams", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
#      "topics": text (fingerprint of the topics of the topology)}
#
# The topology's row is the JSON of `Topology`, under a single space, which is no valid member id.
#
# A member's row, under its id:
#
#     {"member": {"instance": text | null, "rack": text | null, "client": text, "host": text,
#                 "rebalance_timeout_ms": int, "process": text, "topology_epoch": int,
#                 "endpoint": [host, port] | null, "tags": [[key, value], …]},
#      "current": {"state": text, "epoch": int, "previous_epoch": int,
#                  "assigned": tasks, "revoking": tasks},
#      "target": tasks}
#
# Tasks are {role and subtopology in hexadecimal: [int, …], …}.

FORMAT: Final = 1
TOPOLOGY_ROW: Final = " "


def encode_group(group: StreamsGroup) -> dict[str, bytes]:
    rows = encode_rows(group, kind=KIND, row_format=FORMAT, member=_member, current=encode_current)
    if group.topology is not None:
        rows[TOPOLOGY_ROW] = group.topology_row
    return rows


def _member(member: ConsumerMember) -> bytes:
    own = streams_member(member)
    return row_of(
        {
            **common_fields(own),
            "process": own.process_id,
            "topology_epoch": own.topology_epoch,
            "endpoint": own.endpoint,
            "tags": own.tags,
        }
    )


def decode_group(
    empty: StreamsGroup,
    rows: Mapping[str, bytes],
    matches: Callable[[Topology], Mapping[str, frozenset[str]]],
) -> tuple[StreamsGroup, str]:
    """Fill an empty group from its rows; return it, and the fingerprint of its topics when saved.

    `matches` returns the topics that match the regular expressions of a topology. The timers of the
    members are not started.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    members = {member: row for member, row in rows.items() if member != TOPOLOGY_ROW}
    group, seen = decode_rows(empty, members, row_format=FORMAT, member=_decode_member)
    group.gathers = not group.has_target
    if TOPOLOGY_ROW in rows:
        try:
            topology = msgspec.json.decode(rows[TOPOLOGY_ROW], type=Topology)
        except msgspec.MsgspecError as error:
            raise CorruptGroup(
                f"the saved topology of group {group.group_id!r} cannot be read: {error}"
            ) from None
        group.set_topology(topology, matches(topology))
    return group, seen


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> StreamsMember:
    member = StreamsMember(member_id)
    fields = saved["member"]
    member.process_id = str(fields["process"])
    member.topology_epoch = int(fields["topology_epoch"])
    if fields["endpoint"] is not None:
        host, port = fields["endpoint"]
        member.endpoint = str(host), int(port)
    member.tags = tuple((str(key), str(value)) for key, value in fields["tags"])
    decode_common(member, saved)
    return member
