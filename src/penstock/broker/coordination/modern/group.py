"""State of a consumer or share group and its members: epochs, subscriptions and targets.

    group epoch       rises with every change that needs a new target
    assignment epoch  group epoch for which the target was computed
    member epoch      assignment epoch whose target the member has, or is reconciling to

The state has queries, but handles no events and has no effects.

Source: Kafka's `ModernGroup` and `ModernGroupMember`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import Struct

from penstock.broker.coordination.assignors import NOTHING, GroupSpec, MemberSpec, Partitions
from penstock.broker.coordination.modern.topics import fingerprint, racks_of
from penstock.broker.coordination.timers import Timer
from penstock.broker.diskless import is_diskless

if TYPE_CHECKING:
    from penstock.control import Topic

NO_TOPICS: Final[frozenset[str]] = frozenset()


def idle() -> None:
    """Do nothing; the callback of a timer before its first start."""


class ModernMember:
    """Member of a group. `rows` caches the encoded parts of its row; changed parts are removed."""

    __slots__ = (
        "client_host",
        "client_id",
        "epoch",
        "instance_id",
        "member_id",
        "parked",
        "previous_epoch",
        "rack_id",
        "regex",
        "rows",
        "target",
        "timer",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.instance_id: str | None = None
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.topics = NO_TOPICS
        self.regex = ""
        self.epoch = 0
        self.previous_epoch = 0
        self.target: Partitions = NOTHING
        self.timer = Timer(idle)
        self.parked: Parked | None = None
        self.rows: dict[str, bytes] = {}


class Parked(Struct, frozen=True, kw_only=True):
    """Heartbeat that waits for a target of this group epoch or a later one."""

    epoch: int
    token: int
    event: Any


class PendingResponse(Struct, frozen=True):
    """Response that waits until all changes up to `version` are durable."""

    version: int
    token: int
    response: Any


M = TypeVar("M", bound=ModernMember)


class ModernGroup(Generic[M]):
    """Base of consumer and share groups.

    `version` is the number of the last change, `saved` that of the last durable change. `readers`
    counts the members that read each topic. `resolved` maps each regex to the matching topics.
    """

    def __init__(self, group_id: str, *, touched_ms: int) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assignor = ""
        self.members: dict[str, M] = {}
        self.static: dict[str, str] = {}
        self.readers: dict[str, int] = {}
        self.resolved: dict[str, frozenset[str]] = {}
        self._subscriptions: dict[frozenset[str], frozenset[str]] = {}
        self.fingerprint: str | None = None
        """Fingerprint of the topics that members read; None if unknown."""
        self.touched_ms = touched_ms
        self.has_offsets = False
        self.version = 0
        self.saved = 0
        self.saving: int | None = None
        self.failing = ""
        """Reason why the last save failed; empty once a save succeeds."""
        self.pending_responses: list[PendingResponse] = []
        self.save_timer = Timer(idle)
        self.removal_tokens: list[int] | None = None
        """Tokens of requests that wait for the removal of the group; None if it is not removed."""
        self.ticket = 0
        self.target_timer = Timer(idle)
        self.next_target_ms = 0
        self.gathers = False
        """Whether the group was empty and has had no target since."""
        self.requested_ms = (0, 0)
        """Times of the first and the last request for a new target since the last target."""

    @property
    def timers(self) -> list[Timer]:
        return [self.save_timer, self.target_timer, *(m.timer for m in self.members.values())]

    # -- members ----------------------------------------------------------------------------

    def add(self, member: M) -> None:
        self.gathers = self.gathers or not self.members
        self.members[member.member_id] = member
        member.topics = self._same(member.topics)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self.count(member.topics, member.regex, 1)

    def remove(self, member: M) -> None:
        del self.members[member.member_id]
        if self.static.get(member.instance_id or "") == member.member_id:
            del self.static[member.instance_id or ""]
        self.count(member.topics, member.regex, -1)

    def subscribe(self, member: M, topics: frozenset[str], regex: str) -> bool:
        if topics == member.topics and regex == member.regex:
            return False
        self.count(member.topics, member.regex, -1)
        member.topics, member.regex = self._same(topics), regex
        self.count(topics, regex, 1)
        return True

    def _same(self, topics: frozenset[str]) -> frozenset[str]:
        if len(self._subscriptions) > 2 * len(self.members) + 16:
            self._subscriptions.clear()
        return self._subscriptions.setdefault(topics, topics)

    def count(self, topics: Collection[str], regex: str, sign: int) -> None:
        readers = self.readers
        for name in self._names(topics, regex):
            count = readers.get(name, 0) + sign
            if count:
                readers[name] = count
            else:
                del readers[name]
            if count == (sign > 0):
                self.fingerprint = None

    def _names(self, topics: Collection[str], regex: str) -> Collection[str]:
        found = self.resolved.get(regex) if regex else None
        return found.union(topics) if found else topics

    def names(self, member: M) -> Collection[str]:
        """Return the topics that a member reads, including matches of its regex."""
        return self._names(member.topics, member.regex)

    def resolve(self, regex: str, topics: frozenset[str] | None) -> None:
        """Set the topics that match a regex; None if the regex is not used any more."""
        users = [member for member in self.members.values() if member.regex == regex]
        for member in users:
            self.count(member.topics, regex, -1)
        if topics is None:
            self.resolved.pop(regex, None)
        else:
            self.resolved[regex] = topics
        for member in users:
            self.count(member.topics, regex, 1)

    # -- targets ----------------------------------------------------------------------------

    def look(self, topics: Mapping[str, Topic]) -> str:
        if self.fingerprint is None:
            self.fingerprint = fingerprint(topics, self.readers)
        return self.fingerprint

    def spec(self, topics: Mapping[str, Topic], racks: Mapping[int, str]) -> GroupSpec:
        """Return the input of an assignor; `racks` are the racks of brokers by id."""
        known = {name: topics[name] for name in self.readers if name in topics}
        ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}
        members = []
        for member in self.members.values():
            subscription = member.topics, member.regex
            found = ids.get(subscription)
            if found is None:
                found = ids[subscription] = frozenset(
                    [known[name].topic_id.bytes for name in self.names(member) if name in known]
                )
            members.append(
                MemberSpec(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    topics=found,
                    assigned=member.target,
                    rack_id=member.rack_id,
                )
            )
        partitions = {topic.topic_id.bytes: len(topic.partitions) for topic in known.values()}
        replica_racks: dict[bytes, list[frozenset[str]]] = {}
        if racks and any([member.rack_id is not None for member in members]):
            replica_racks = {
                topic.topic_id.bytes: racks_of(topic, racks)
                for topic in known.values()
                if not is_diskless(topic)  # every broker serves them
            }
        return GroupSpec(members=members, partitions=partitions, racks=replica_racks)
