"""Consumer groups of this broker: their rows, timers and regular expressions.

Source: Kafka's `GroupMetadataManager`, consumer protocol; KIP-848.
"""

from __future__ import annotations

from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

from msgspec import Struct

from penstock.broker.configuration.groups import GroupConfigs
from penstock.broker.groups.classic import Protocol
from penstock.broker.groups.consumer.events import Beat, ConsumerHeartbeat, E
from penstock.broker.groups.consumer.group import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
)
from penstock.broker.groups.modern.core import ModernGroups
from penstock.broker.groups.modern.group import (
    Parked,
    decode_partitions,
    decode_rows,
    encode_partitions,
    encode_rows,
    row_of,
)
from penstock.broker.groups.runtime.core import Compute, Computed, Refused
from penstock.broker.groups.runtime.kinds import NewTopics, Turn
from penstock.broker.groups.runtime.topic_regex import compile_regex

# Stored rows of a consumer group: one for the group, and one for each member.
#
# Rows are JSON. The group's own row has the empty member id:
#
#     {"kind": "consumer", "format": 1, "epoch": int, "assignment_epoch": int, "assignor": text,
#      "topics": text (fingerprint of the topics that members read)}
#
# A member's row, under its id:
#
#     {"member": {"instance": text | null, "rack": text | null, "client": text, "host": text,
#                 "rebalance_timeout_ms": int, "topics": [text, …], "regex": text, "assignor": text,
#                 "classic": {"session_timeout_ms": int, "protocols": [[name, base64], …]} | null},
#      "current": {"state": text, "epoch": int, "previous_epoch": int,
#                  "assigned": partitions, "revoking": partitions},
#      "target": partitions}
#
# Partitions are {topic id in hexadecimal: [int, …], …}.


KIND: Final = "consumer"
FORMAT: Final = 1


def encode_group(group: ConsumerGroup) -> dict[str, bytes]:
    return encode_rows(group, kind=KIND, row_format=FORMAT, member=_member, current=encode_current)


def _member(member: ConsumerMember) -> bytes:
    return row_of(
        {
            **common_fields(member),
            "topics": sorted(member.topics),
            "regex": member.regex,
            "assignor": member.assignor,
            "classic": None if member.classic is None else _classic(member.classic),
        }
    )


def common_fields(member: ConsumerMember) -> dict[str, Any]:
    """Return the fields that members of consumer and streams groups have."""
    return {
        "instance": member.instance_id,
        "rack": member.rack_id,
        "client": member.client_id,
        "host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
    }


def _classic(side: ClassicSide) -> dict[str, Any]:
    return {
        "session_timeout_ms": side.session_timeout_ms,
        "protocols": [[p.name, b64encode(p.metadata).decode()] for p in side.protocols],
    }


def encode_current(member: ConsumerMember) -> bytes:
    return b'{"state":"%s","epoch":%d,"previous_epoch":%d,"assigned":%s,"revoking":%s}' % (
        member.state.value.encode(),
        member.epoch,
        member.previous_epoch,
        encode_partitions(member.assigned),
        encode_partitions(member.revoking),
    )


def decode_group(group_id: str, rows: Mapping[str, bytes]) -> tuple[ConsumerGroup, str]:
    """Return the group of stored rows, and the fingerprint that its topics had when it was saved.

    The timers of its members are not started.

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    empty = ConsumerGroup(group_id, touched_ms=0)
    return decode_rows(empty, rows, row_format=FORMAT, member=_decode_member)


def _decode_member(member_id: str, saved: Mapping[str, Any]) -> ConsumerMember:
    member = ConsumerMember(member_id)
    fields = saved["member"]
    member.topics, member.regex = frozenset(fields["topics"]), str(fields["regex"])
    member.assignor = str(fields["assignor"])
    if fields["classic"] is not None:
        member.classic = ClassicSide(
            session_timeout_ms=int(fields["classic"]["session_timeout_ms"]),
            protocols=tuple(
                Protocol(name=name, metadata=b64decode(metadata, validate=True))
                for name, metadata in fields["classic"]["protocols"]
            ),
        )
    decode_common(member, saved)
    return member


def decode_common(member: ConsumerMember, saved: Mapping[str, Any]) -> None:
    """Set a member's common fields, reconciliation state and target from the parts of its row."""
    fields, current = saved["member"], saved["current"]
    member.instance_id, member.rack_id = fields["instance"], fields["rack"]
    member.client_id, member.client_host = fields["client"], fields["host"]
    member.rebalance_timeout_ms = int(fields["rebalance_timeout_ms"])
    member.state = MemberState(current["state"])
    member.epoch, member.previous_epoch = int(current["epoch"]), int(current["previous_epoch"])
    member.assigned = decode_partitions(current["assigned"])
    member.revoking = decode_partitions(current["revoking"])
    member.target = decode_partitions(saved["target"])


# Resolution of the regular expressions by which members subscribe to topics.
#
# A background computation resolves all expressions of a group together: when a member uses a new
# expression, after topics were created or deleted, and periodically. The first target is computed
# once every expression has been resolved.
#
# Source: Kafka's `GroupMetadataManager.maybeUpdateRegularExpressions`; KIP-848.


REGEX_RETRY_MS: Final = 10_000
"""Minimum interval between resolutions of a group's regular expressions; Kafka's value."""

_STEPS_PER_TOPIC: Final = 20
"""Cost of matching one topic, in units of `Work.size`."""


class Resolved(Struct, frozen=True, kw_only=True):
    topics: Mapping[str, frozenset[str]]


class RegexWork(Struct, frozen=True, kw_only=True):
    regexes: Sequence[str]
    topics: Sequence[str]

    @property
    def size(self) -> int:
        return len(self.regexes) * len(self.topics) * _STEPS_PER_TOPIC

    def __call__(self) -> Resolved:
        found = {}
        for text in self.regexes:
            matches = compile_regex(text)
            found[text] = frozenset([name for name in self.topics if matches(name)])
        return Resolved(topics=found)


G = TypeVar("G", bound=ConsumerGroup)


class Regexes(Generic[G]):
    def __init__(
        self,
        turn: Turn,
        *,
        refresh_ms: int,
        topics: Callable[[], Collection[str]],
        resolved: Callable[[G, str | None], None],
    ) -> None:
        """Create the resolver, which finds the topics that match members' regular expressions.

        `topics` returns the names of all topics. `resolved` is called when the matches of a group
        are known, with the group and the former fingerprint of its topics.
        """
        self._turn = turn
        self._refresh_ms = refresh_ms
        self._topics = topics
        self._resolved = resolved
        self._ticket = 0

    def in_use(self, group: G) -> frozenset[str]:
        return frozenset([m.regex for m in group.members.values() if m.regex])

    def ready(self, group: G) -> bool:
        return self.in_use(group) <= group.resolved.keys()

    def look(self, group: G) -> None:
        """Find the topics of new expressions, and drop unused ones, after subscriptions changed."""
        if not group.resolved and not any(m.regex for m in group.members.values()):
            return
        used = self.in_use(group)
        for regex in group.resolved.keys() - used:
            group.resolve(regex, None)
        if used - group.resolved.keys():
            self._start(group)

    def seen_by(self, group: G, visible: Callable[[str], bool]) -> None:
        """Limit the matches of a group to topics that the requesting member may describe.

        No limit is known after the group was loaded; matches found since then are computed again.
        """
        unasked, group.visible = group.visible is None, visible
        if unasked:
            self.refresh(group)

    def refresh(self, group: G) -> None:
        """Match all expressions again, at the earliest `REGEX_RETRY_MS` after the last time."""
        if group.regex_ticket:
            group.regex_stale = True
        elif not group.resolved:
            return
        elif group.next_regex_ms <= self._turn.now_ms:
            self._start(group)
        else:
            self._plan(group, group.next_regex_ms)

    def _start(self, group: G) -> None:
        used = self.in_use(group)
        if group.regex_ticket or not used:
            return
        self._ticket -= 1
        group.regex_ticket = self._ticket
        topics, visible = self._topics(), group.visible
        seen = topics if visible is None else filter(visible, topics)
        work = RegexWork(regexes=sorted(used), topics=tuple(seen))
        self._turn.effects.append(Compute(key=group.group_id, ticket=group.regex_ticket, work=work))

    def _plan(self, group: G, at_ms: int) -> None:
        group.regex_timer.fire = partial(self._start, group)
        self._turn.timers.start(group.regex_timer, at_ms)

    def resolved(self, group: G, event: Computed) -> None:
        now_ms = self._turn.now_ms
        group.regex_ticket = 0
        group.next_regex_ms = now_ms + REGEX_RETRY_MS
        failed = not isinstance(event.result, Resolved)
        again = failed or group.regex_stale
        self._plan(group, group.next_regex_ms if again else now_ms + self._refresh_ms)
        group.regex_stale = False
        if failed:
            return
        used, before = self.in_use(group), group.fingerprint
        for regex, topics in event.result.topics.items():
            if regex in used and group.resolved.get(regex) != topics:
                group.resolve(regex, topics)
        self.look(group)
        self._resolved(group, before)


class MigrationPolicy(Enum):
    """Allowed conversions of groups with members: to consumer (upgrade), to classic (downgrade)."""

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


class ConsumerLimits(Struct, frozen=True, kw_only=True):
    """Limits of consumer groups; times in ms. `configs` returns the settings of a single group."""

    groups_max: int = 100_000
    max_size: int = 2_147_483_647
    session_timeout: int = 45_000
    heartbeat_interval: int = 5_000
    assignment_interval: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    regex_refresh_ms: int = 600_000
    configs: Callable[[str], GroupConfigs] | None = None

    def session_timeout_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.session_timeout
        return self.configs(group_id).consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.heartbeat_interval
        return self.configs(group_id).consumer_heartbeat_interval_ms

    def assignment_interval_ms(self, group_id: str) -> int:
        if self.configs is None:
            return self.assignment_interval
        return self.configs(group_id).consumer_assignment_interval_ms


class ConsumerState(ModernGroups[G, ConsumerMember], Generic[G, E]):
    """Base of consumer and streams groups: everything except the handlers of requests.

    `G` are the groups, `E` the heartbeats of their members.
    """

    name: ClassVar[str] = KIND
    protocol_type: ClassVar[str] = "consumer"

    def __init__(self, turn: Turn, limits: ConsumerLimits | None = None) -> None:
        self.limits: ConsumerLimits = limits or ConsumerLimits()
        super().__init__(turn, self.limits)
        self.may_be_classic: Callable[[G], bool] = lambda group: False
        """Called after each event: converts a group whose members all use the classic protocol to a
        classic group, and returns whether it did."""
        self.regexes = Regexes(
            turn,
            refresh_ms=self.limits.regex_refresh_ms,
            topics=lambda: self.topics,
            resolved=self._resolved,
        )

    def resume(self, group: G, parked: Parked) -> None:
        beat: Beat[E] = parked.event
        member = group.members[beat.event.member_id or beat.event.fresh_id]
        self.answer(group, member, beat, parked.token)

    def finish_event(self, group: G) -> None:
        there = self.groups.get(group.group_id) is group
        if not (there and self.may_be_classic(group)):
            super().finish_event(group)

    def create(self, group_id: str) -> G:
        group = self.groups[group_id] = self.new_group(group_id)
        return group

    # -- kind-specific parts ----------------------------------------------------------------

    @abstractmethod
    def new_group(self, group_id: str) -> G: ...

    @abstractmethod
    def new_member(self, member_id: str) -> ConsumerMember: ...

    @abstractmethod
    def refuse_malformed(self, event: E) -> Refused | None:
        """Return the error of a heartbeat that is invalid for every group; None if it is valid."""

    def refuse_update(self, group: G, event: E) -> Refused | None:
        """Return the error of a valid heartbeat that contradicts the group's state; else None."""
        return None

    @abstractmethod
    def update(self, group: G, member: ConsumerMember, event: E) -> bool:
        """Update a member from its heartbeat; return whether the group needs a new target."""

    def delays(self, group: G) -> bool:
        """Whether heartbeats are answered before the first target, which waits for members."""
        return False

    @abstractmethod
    def answer(self, group: G, member: ConsumerMember, beat: Beat[E], token: int) -> None:
        """Reconcile a member with its target, and answer its heartbeat."""

    def ready(self, group: G) -> bool:
        return self.regexes.ready(group)

    def prepare(self, group: G) -> None:
        self.regexes.look(group)

    def computed(self, event: Computed, token: int) -> None:
        group = self.groups.get(event.key)
        if group is not None and group.regex_ticket == event.ticket:
            self.regexes.resolved(group, event)
        else:
            super().computed(event, token)

    def _resolved(self, group: G, before: str | None) -> None:
        if self.ready(group):
            self.look_since(group, before)
        self.finish_event(group)

    def topics_changed(self, event: NewTopics) -> None:
        before = self.topics
        super().topics_changed(event)
        if event.changed is None or any(
            (name in before) != (name in event.topics) for name in event.changed
        ):
            for group in self.groups.values():
                self.regexes.refresh(group)

    # -- timers -----------------------------------------------------------------------------

    def watch(self, group: G, member: ConsumerMember) -> None:
        member.timer.fire = partial(self.expire, group, member)
        self.start_session(group, member)
        if member.state is MemberState.UNREVOKED_PARTITIONS:
            self.await_revocation(group, member)

    def start_session(self, group: G, member: ConsumerMember) -> None:
        timeout_ms = self.limits.session_timeout_ms(group.group_id)
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self.turn.timers.start(member.timer, self.turn.now_ms + timeout_ms)

    def await_revocation(self, group: G, member: ConsumerMember) -> None:
        timer = member.rebalance_timer
        timer.fire = partial(self.expire, group, member)
        self.turn.timers.start(timer, self.turn.now_ms + member.rebalance_timeout_ms)

    def stop_timers(self, member: ConsumerMember) -> None:
        super().stop_timers(member)
        self.turn.timers.stop(member.rebalance_timer)

    def expire(self, group: G, member: ConsumerMember) -> None:
        if group.members.get(member.member_id) is member:
            self.expel(group, member)
            self.regexes.look(group)
            self.finish_event(group)


Consumers = ConsumerState[ConsumerGroup, ConsumerHeartbeat]
"""State of consumer groups alone."""
