"""Core of streams groups: members join with the topology of their application, and get tasks.

A streams group is a consumer group (`broker/groups/consumer/`) whose members get tasks instead of
partitions: epochs, static members, sessions and reconciliation are the same. The differences are:

    topology       the first member sets it; a member with a later topology epoch replaces it
    configuration  tasks exist once all source and internal topics exist (`topology.py`); otherwise
                   the response has a status, and the internal topics that the broker has to create
    first target   waits for the initial rebalance delay; members get ASSIGNMENT_DELAYED meanwhile

Source: Kafka's `GroupMetadataManager.streamsGroupHeartbeat`; KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Final

from msgspec.structs import asdict

from penstock.broker.groups.classic import ClassicGroups, JoinGroup
from penstock.broker.groups.consumer.core import check_commit, check_fetch, described
from penstock.broker.groups.consumer.events import UNCHANGED, Beat
from penstock.broker.groups.consumer.group import ConsumerMember
from penstock.broker.groups.consumer.heartbeat import (
    INVALID_REGULAR_EXPRESSION,
    heartbeat,
    interval_ms,
    invalid,
    refuse_fields,
    step,
    waiting_interval_ms,
)
from penstock.broker.groups.consumer.state import ConsumerState
from penstock.broker.groups.modern.core import JOIN
from penstock.broker.groups.modern.group import outdate
from penstock.broker.groups.runtime.assignors import NOTHING, Partitions
from penstock.broker.groups.runtime.core import Computed, Refused, Saved, SaveFailed, Work
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    CommitCheck,
    DeleteGroup,
    DescribeGroup,
    FetchCheck,
    Handler,
    NewTopics,
    OffsetDeleteCheck,
    OffsetsDeletable,
    Turn,
)
from penstock.broker.groups.streams.assignor import STICKY, TaskMember, TaskWork
from penstock.broker.groups.streams.group import (
    KIND,
    NOT_READY,
    DescribedStreamsGroup,
    DescribedStreamsMember,
    StreamsGroup,
    StreamsHeartbeat,
    StreamsLimits,
    StreamsMember,
    StreamsResponse,
    decode_group,
    encode_group,
    streams_member,
)
from penstock.broker.groups.streams.topology import (
    Configured,
    Status,
    Topology,
    configure,
    matches,
    refuse_regexes,
    refuse_topology,
)

STREAMS_INVALID_TOPOLOGY: Final = "streams_invalid_topology"
FIELD_CHARS_MAX: Final = 64 << 10
"""Maximum characters of a member's tags, endpoint and process id together."""


class StreamsGroups(ConsumerState[StreamsGroup, StreamsHeartbeat]):
    name: ClassVar[str] = KIND
    protocol_type: ClassVar[str] = KIND
    limits: StreamsLimits

    def __init__(self, turn: Turn, limits: StreamsLimits | None = None) -> None:
        super().__init__(turn, limits or StreamsLimits())
        self.handlers: Mapping[type, Handler] = {
            StreamsHeartbeat: self.heartbeat,
            DescribeGroup: self.describe,
            CommitCheck: partial(check_commit, self),
            FetchCheck: partial(check_fetch, self),
            DeleteGroup: self.delete,
            OffsetDeleteCheck: self.check_offset_delete,
            Computed: self.computed,
            Saved: self.saved,
            SaveFailed: self.save_failed,
        }

    def convert_empty(self, classic: ClassicGroups) -> None:
        """Let the members of either kind join an empty group of the other; its offsets remain."""
        classic.foreign[StreamsHeartbeat] = partial(self._join_classic, classic)
        self.foreign[JoinGroup] = partial(self._join_streams, classic)

    def _join_streams(self, classic: ClassicGroups, event: JoinGroup, token: int) -> None:
        group = self.groups[event.group_id]
        if group.members:
            self.refuse(event, token)
        elif group.saving is not None or self.busy(group):
            self.turn.refuse(
                token, COORDINATOR_NOT_AVAILABLE, f"group {event.group_id!r} is being saved"
            )
        else:
            self.forget(group)
            classic.handlers[JoinGroup](event, token)
            if event.group_id in classic.ids:
                classic.group(event.group_id).has_offsets = group.has_offsets

    def _join_classic(self, classic: ClassicGroups, event: StreamsHeartbeat, token: int) -> None:
        group = classic.group(event.group_id)
        refusal = self.refuse_malformed(event)
        if refusal is not None:
            self.turn.reply(token, refusal)
            return
        if group.members or group.pending or group.store_busy or event.epoch != JOIN:
            self.turn.refuse(
                token,
                GROUP_ID_NOT_FOUND,
                f"Group {event.group_id} is a classic group. Stop its members, then start those"
                " with group.protocol=streams.",
            )
            return
        has_offsets = group.has_offsets
        classic.release(group)
        self.heartbeat(event, token)
        made = self.groups.get(event.group_id)
        if made is not None:
            made.has_offsets = has_offsets

    # -- kind-specific parts ----------------------------------------------------------------

    def new_group(self, group_id: str) -> StreamsGroup:
        return StreamsGroup(group_id, touched_ms=self.turn.now_ms)

    def new_member(self, member_id: str) -> ConsumerMember:
        return StreamsMember(member_id)

    def encode(self, group: StreamsGroup) -> Mapping[str, bytes]:
        return encode_group(group)

    def decode(self, group_id: str, rows: Mapping[str, bytes]) -> tuple[StreamsGroup, str]:
        return decode_group(self.new_group(group_id), rows, self._matches)

    def state(self, group: StreamsGroup) -> str:
        if group.members and not self.configured(group).tasks:
            return NOT_READY
        return group.state.value

    def assignor(self, group: StreamsGroup) -> str:
        return STICKY

    def due_ms(self, group: StreamsGroup) -> int:
        if not group.gathers:
            return group.next_target_ms
        first, _ = group.requested_ms
        delay_ms = self.limits.initial_delay_ms(group.group_id)
        return max(group.next_target_ms, first + delay_ms)

    # -- topics and targets -----------------------------------------------------------------

    def _matches(self, topology: Topology) -> Mapping[str, frozenset[str]]:
        return matches(topology, self.topics)

    def configured(self, group: StreamsGroup) -> Configured:
        """Return the configuration of the group's topology by the current topics."""
        if group.topology is None:
            return group.configured
        current = group.look(self.topics)
        if group.configured_for != current:
            group.configured = configure(group.topology, group.matches, self.topics)
            group.configured_for = current
        return group.configured

    def topics_changed(self, event: NewTopics) -> None:
        """Match the regular expressions again, then request targets as for other groups."""
        self.topics = event.topics
        for group in list(self.groups.values()):
            if group.topology is not None and group.matches:
                found = self._matches(group.topology)
                if found != group.matches:
                    before = group.fingerprint
                    group.set_matches(found)
                    self.look_since(group, before)
                    self.finish_event(group)
        super().topics_changed(event)

    def work(self, group: StreamsGroup) -> Work:
        configured = self.configured(group)
        group.standbys = self.limits.standby_count(group.group_id)
        members = [
            TaskMember(
                member_id=member.member_id,
                process_id=member.process_id,
                assigned=member.target,
                held=member.held,
                takes_tasks=member.topology_epoch == group.topology_epoch,
            )
            for member in map(streams_member, group.members.values())
        ]
        return TaskWork(
            epoch=group.epoch,
            members=members,
            tasks=configured.tasks,
            stateful=configured.stateful,
            standbys=group.standbys,
        )

    # -- heartbeats -------------------------------------------------------------------------

    def heartbeat(self, event: StreamsHeartbeat, token: int) -> None:
        if event.shutdown and event.epoch < 0 and self.refuse_malformed(event) is None:
            group = self.groups.get(event.group_id)
            if group is not None and event.member_id in group.members:
                group.shutdown_by = event.member_id
        heartbeat(self, event, token)

    def refuse_malformed(self, event: StreamsHeartbeat) -> Refused | None:
        refusal = refuse_fields(event, event.process_id)
        if refusal is not None:
            return refusal
        missing = _missing(event)
        if missing:
            return invalid(missing)
        endpoint = event.endpoint or ("", 0)
        words = [event.process_id or "", endpoint[0], *[w for tag in event.tags or () for w in tag]]
        size = sum(map(len, words))
        if size > FIELD_CHARS_MAX:
            return invalid(
                f"ProcessId, UserEndpoint and ClientTags have {size} characters, at most"
                f" {FIELD_CHARS_MAX} are allowed."
            )
        if event.topology is None:
            return None
        problems = refuse_topology(event.topology)
        if problems:
            return Refused(error=STREAMS_INVALID_TOPOLOGY, message=problems)
        problems = refuse_regexes(event.topology)
        return Refused(error=INVALID_REGULAR_EXPRESSION, message=problems) if problems else None

    def refuse_update(self, group: StreamsGroup, event: StreamsHeartbeat) -> Refused | None:
        """Return the error of a topology that differs from the group's at the same epoch."""
        current, offered = group.topology, event.topology
        if current is None or offered is None or current == offered:
            return None
        others = group.members.keys() - {event.member_id}
        if not others or current.epoch != offered.epoch:
            return None
        return invalid(
            f"the topology differs from that of group {group.group_id!r}, and both have epoch"
            f" {offered.epoch}. Stop all members first, or send a greater topology epoch."
        )

    def delays(self, group: StreamsGroup) -> bool:
        return group.gathers and self.due_ms(group) > self.turn.now_ms

    def update(self, group: StreamsGroup, member: ConsumerMember, event: StreamsHeartbeat) -> bool:
        """Update group and member from a heartbeat; return whether a new target is needed."""
        member = streams_member(member)
        if event.shutdown or (len(group.members) == 1 and event.epoch == JOIN):
            group.shutdown_by = member.member_id if event.shutdown else ""
        before = _described_fields(member)
        differs = self._update_topology(group, member, event)
        if event.rack_id is not None:
            member.rack_id = event.rack_id
        if event.rebalance_timeout_ms != UNCHANGED:
            member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.client_id, member.client_host = event.client_id, event.client_host
        if event.endpoint is not None and event.endpoint != member.endpoint:
            member.endpoint = event.endpoint
            group.endpoint_epoch += 1
        if event.tags is not None:
            member.tags = event.tags
        if event.held is not None:
            member.held = event.held
        if event.epoch == JOIN and event.process_id not in (None, member.process_id):
            group.set_process(member, event.process_id)
        changed = _described_fields(member) != before
        if changed or not member.rows:
            outdate(member, "member")
            self.changed(group)
        standbys = self.limits.standby_count(group.group_id)
        if group.standbys is None:
            group.standbys = standbys
        return differs or changed or group.standbys != standbys

    def _update_topology(
        self, group: StreamsGroup, member: StreamsMember, event: StreamsHeartbeat
    ) -> bool:
        offered, current = event.topology, group.topology
        if offered is None:
            return False
        member.topology_epoch = offered.epoch
        alone = len(group.members) == 1
        if current == offered or (
            current is not None and not alone and offered.epoch <= current.epoch
        ):
            return False
        group.set_topology(offered, self._matches(offered))
        self.changed(group)
        return True

    def answer(
        self,
        group: StreamsGroup,
        member: ConsumerMember,
        beat: Beat[StreamsHeartbeat],
        token: int,
    ) -> None:
        event, member = beat.event, streams_member(member)
        step(self, group, member, event.owned)
        configured = self.configured(group)
        statuses = self._statuses(group, member, configured)
        changed = event.epoch == JOIN or event.owned is not None or member.assigned != beat.before
        stale = event.endpoint_epoch != group.endpoint_epoch
        response = StreamsResponse(
            member_id=member.member_id,
            epoch=member.epoch,
            heartbeat_interval_ms=self._interval_ms(group, member, configured),
            assigned=member.assigned if changed else None,
            statuses=statuses,
            endpoint_epoch=group.endpoint_epoch,
            endpoints=_endpoints(group) if stale else None,
            configured=configured,
        )
        self.saver.answer(group, token, response)

    def _interval_ms(
        self, group: StreamsGroup, member: StreamsMember, configured: Configured
    ) -> int:
        """Return the heartbeat interval, which is shorter while a member waits for tasks."""
        usual = interval_ms(self, group, member)
        soon = waiting_interval_ms(group)
        if self.delays(group):
            return min(usual, max(soon, self.due_ms(group) - self.turn.now_ms))
        return min(usual, soon) if configured.missing else usual

    def _statuses(
        self, group: StreamsGroup, member: StreamsMember, configured: Configured
    ) -> tuple[tuple[Status, str], ...]:
        statuses = []
        if member.topology_epoch < group.topology_epoch:
            detail = (
                f"The member's topology epoch {member.topology_epoch} is behind the group's"
                f" topology epoch {group.topology_epoch}."
            )
            statuses.append((Status.STALE_TOPOLOGY, detail))
        if self.delays(group):
            left_ms = self.due_ms(group) - self.turn.now_ms
            detail = f"Assignment delayed by {left_ms} ms, until more members have joined."
            statuses.append((Status.ASSIGNMENT_DELAYED, detail))
        if configured.status is not None:
            statuses.append((configured.status, configured.detail))
        if group.shutdown_by:
            detail = (
                f"Streams group member {group.shutdown_by} encountered a fatal error and requested"
                " a shutdown for the entire application."
            )
            statuses.append((Status.SHUTDOWN_APPLICATION, detail))
        return tuple(statuses)

    # -- queries ----------------------------------------------------------------------------

    def check_offset_delete(self, event: OffsetDeleteCheck, token: int) -> None:
        group = self.groups.get(event.group_id)
        if group is not None and not group.members:
            self.turn.reply(token, OffsetsDeletable(subscribed=frozenset()))
        else:
            super().check_offset_delete(event, token)

    def describe(self, event: DescribeGroup, token: int) -> None:
        group = self.groups[event.group_id]
        response = DescribedStreamsGroup(
            group_id=group.group_id,
            state=self.state(group),
            epoch=group.epoch,
            assignment_epoch=group.assignment_epoch,
            assignor=STICKY,
            members=tuple([_described(streams_member(m)) for m in group.members.values()]),
            topology=group.topology,
            configured=self.configured(group),
        )
        self.turn.reply(token, response)


def _described_fields(member: StreamsMember) -> tuple[object, ...]:
    return (
        member.rack_id, member.rebalance_timeout_ms, member.client_id, member.client_host,
        member.process_id, member.topology_epoch, member.endpoint, member.tags,
    )  # fmt: skip


def _described(member: StreamsMember) -> DescribedStreamsMember:
    return DescribedStreamsMember(
        **{**asdict(described(member)), "assigned": NOTHING, "target": NOTHING},
        process_id=member.process_id,
        topology_epoch=member.topology_epoch,
        endpoint=member.endpoint,
        tags=member.tags,
        tasks=member.assigned,
        target_tasks=member.target,
    )


def _endpoints(group: StreamsGroup) -> tuple[tuple[tuple[str, int], Partitions], ...]:
    members = map(streams_member, group.members.values())
    return tuple(
        [(member.endpoint, member.assigned) for member in members if member.endpoint is not None]
    )


def _missing(event: StreamsHeartbeat) -> str:
    """Return the error if a field that a join requires is missing or invalid; else empty."""
    if event.epoch != JOIN:
        given = event.topology is not None
        return "Topology can only be provided when (re-)joining." if given else ""
    if event.topology is None:
        return "Topology must be non-null when (re-)joining."
    if event.owned is None or event.owned:
        return "ActiveTasks, StandbyTasks and WarmupTasks must be empty when (re-)joining."
    return "" if event.process_id is not None else "ProcessId must be non-null when (re-)joining."
