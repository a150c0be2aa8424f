"""State of a consumer or share group and its members: epochs, subscriptions and targets.

    group epoch       rises with every change that needs a new target
    assignment epoch  group epoch for which the target was computed
    member epoch      assignment epoch whose target the member has, or is reconciling to

The state has queries, but handles no events and has no effects.

Source: Kafka's `ModernGroup` and `ModernGroupMember`; KIP-848.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import Struct

from penstock.base.errors import BugError
from penstock.broker.groups.runtime.assignors import (
    ASSIGNORS,
    NOTHING,
    GroupSpec,
    MemberSpec,
    Partitions,
)
from penstock.broker.groups.runtime.core import Save, Timer
from penstock.broker.groups.runtime.kinds import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ROW,
    KIND_FIELD,
    Accepted,
    CorruptGroup,
    Turn,
    fingerprint,
    racks_of,
)
from penstock.broker.metadata.leaders import is_diskless

if TYPE_CHECKING:
    from penstock.control import Topic


NO_TOPICS: Final[frozenset[str]] = frozenset()


def idle() -> None:
    """Do nothing; the callback of a timer before its first start."""


class ModernMember:
    """Member of a consumer or share group.

    `rows` caches the encoded parts of its stored row; a part is removed when it changes.
    """

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


def encode_partitions(partitions: Partitions) -> bytes:
    """Encode partitions as JSON: sorted numbers by topic id in hexadecimal."""
    numbers = {topic.hex(): sorted(partitions[topic]) for topic in sorted(partitions)}
    return json.dumps(numbers, separators=(",", ":")).encode()


def decode_partitions(saved: Mapping[str, list[int]]) -> Partitions:
    """Decode partitions from the JSON of `encode_partitions`.

    Raises:
        ValueError, TypeError, AttributeError: the JSON has another form.
    """
    return {bytes.fromhex(topic): frozenset(map(int, n)) for topic, n in saved.items() if n}


class Target(Struct, frozen=True, kw_only=True):
    epoch: int
    assignor: str
    members: Mapping[str, tuple[Partitions, bytes | None]]
    """Target of each member by id: partitions, and their encoding; None if they are unchanged."""


class TargetWork(Struct, frozen=True, kw_only=True):
    epoch: int
    assignor: str
    spec: GroupSpec

    @property
    def size(self) -> int:
        return len(self.spec.members) + sum(self.spec.partitions.values())

    def __call__(self) -> Target:
        assigned = ASSIGNORS[self.assignor](self.spec)
        members: dict[str, tuple[Partitions, bytes | None]] = {}
        for member in self.spec.members:
            target = assigned.get(member.member_id) or {}
            same = target == member.assigned
            row = None if same else encode_partitions(target)
            members[member.member_id] = (member.assigned if same else target), row
        return Target(epoch=self.epoch, assignor=self.assignor, members=members)


# Saver of consumer and share groups, and of the responses that wait for saves.
#
# The changes of a group are numbered. A group has at most one save under way, which stores all
# changes made before it. A response waits until all earlier changes of its group are durable; a
# crash can therefore not undo a change that a client has seen. While saves fail, members get
# COORDINATOR_NOT_AVAILABLE and the group does not change.
#
# Source: Kafka's `CoordinatorRuntime`, whose responses wait for earlier writes to its log.


SAVE_RETRY_MS: Final = 1_000
_REMOVAL: Final = -1

G = TypeVar("G", bound=ModernGroup[Any])
Rows = Mapping[str, bytes]


class GroupSaver(Generic[G]):
    """Saver of the groups of one kind, which sends the responses that depend on its saves."""

    def __init__(
        self,
        turn: Turn,
        groups: dict[str, G],
        *,
        rows: Callable[[G], Rows],
        gone: Callable[[G], None],
    ) -> None:
        """Create the saver; `rows` encodes a group, `gone` is called after its removal."""
        self._turn = turn
        self._groups = groups
        self._rows = rows
        self._gone = gone

    def answer(self, group: G, token: int, response: Any) -> None:
        """Send a response once all changes so far are durable."""
        if group.saved == group.version:
            self._turn.reply(token, response)
        else:
            group.pending_responses.append(PendingResponse(group.version, token, response))

    def save(self, group: G) -> None:
        """Save changes, unless a save is under way or must be retried first."""
        if group.saving is not None or group.failing:
            return
        if group.removal_tokens is not None:
            group.saving = _REMOVAL
            self._turn.effects.append(Save(key=group.group_id, rows={}, deletes_offsets=True))
        elif group.saved < group.version:
            self._start(group)

    def _start(self, group: G) -> None:
        group.saving = group.version
        self._turn.effects.append(Save(key=group.group_id, rows=self._rows(group)))

    def remove(self, group: G, tokens: list[int]) -> None:
        """Delete a group with its offsets, once no other save is under way."""
        if group.removal_tokens is None:
            group.removal_tokens = []
        group.removal_tokens += tokens
        self.save(group)

    def saved(self, group: G) -> None:
        done, group.saving, group.failing = group.saving, None, ""
        if done == _REMOVAL:
            self._gone(group)
            for token in group.removal_tokens or ():
                self._turn.reply(token, Accepted())
            return
        group.saved = group.saved if done is None else done
        waiting, group.pending_responses = group.pending_responses, []
        for pending in waiting:
            if pending.version <= group.saved:
                self._turn.reply(pending.token, pending.response)
            else:
                group.pending_responses.append(pending)

    def failed(self, group: G, reason: str) -> None:
        """Handle a failed save or removal of a group, or one whose outcome is unknown.

        Waiting requests are refused; a save is retried after `SAVE_RETRY_MS`.
        """
        done, group.saving = group.saving, None
        if done == _REMOVAL:
            tokens, group.removal_tokens = group.removal_tokens or [], None
        else:
            tokens, group.pending_responses = (
                [pending.token for pending in group.pending_responses],
                [],
            )
            group.failing = reason or "the group could not be saved"
            group.save_timer.fire = partial(self._again, group)
            self._turn.timers.start(group.save_timer, self._turn.now_ms + SAVE_RETRY_MS)
        for token in tokens:
            self._turn.refuse(token, COORDINATOR_NOT_AVAILABLE, reason)

    def _again(self, group: G) -> None:
        if self._groups.get(group.group_id) is group and group.saving is None:
            self._start(group)


def member_row(member: ModernMember, parts: Mapping[str, Callable[[], bytes]]) -> bytes:
    """Return a member's row, which consists of named parts; encode only changed parts again."""
    known = member.rows
    row = known.get("")
    if row is None:
        for name, encode in parts.items():
            if name not in known:
                known[name] = encode()
        row = known[""] = b"{%s}" % b",".join(
            [b'"%s":%s' % (name.encode(), known[name]) for name in parts]
        )
    return row


def outdate(member: ModernMember, part: str) -> None:
    member.rows.pop(part, None)
    member.rows.pop("", None)


# Stored rows of consumer and share groups.
#
# A group has one row for itself and one for each member. The row of a member has three parts, which
# `broker/groups/consumer/state.py` and `groups/share.py` define.


def row_of(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def encode_rows(
    group: ModernGroup[M],
    *,
    kind: str,
    row_format: int,
    member: Callable[[M], bytes],
    current: Callable[[M], bytes],
) -> dict[str, bytes]:
    """Return the rows of a group; `member` and `current` encode parts of a member's row."""
    rows = {
        GROUP_ROW: row_of(
            {
                KIND_FIELD: kind,
                "format": row_format,
                "epoch": group.epoch,
                "assignment_epoch": group.assignment_epoch,
                "assignor": group.assignor,
                "topics": group.fingerprint or "",
            }
        )
    }
    for member_id, item in group.members.items():
        rows[member_id] = member_row(
            item,
            {
                "member": partial(member, item),
                "current": partial(current, item),
                "target": partial(encode_partitions, item.target),
            },
        )
    return rows


def decode_rows(
    group: G,
    rows: Mapping[str, bytes],
    *,
    row_format: int,
    member: Callable[[str, Mapping[str, Any]], Any],
) -> tuple[G, str]:
    """Fill a group from its rows; return the group and the fingerprint of its topics.

    No timers run. `member` decodes a member from its id and row.

    Raises:
        CorruptGroup: the rows do not have the format of their kind.
    """
    try:
        saved = json.loads(rows[GROUP_ROW])
        if saved["format"] != row_format:
            raise ValueError(f"format {saved['format']!r} is not {row_format}")
        group.epoch = int(saved["epoch"])
        group.assignment_epoch = int(saved["assignment_epoch"])
        group.assignor = str(saved["assignor"])
        seen = str(saved["topics"])
        for member_id, row in rows.items():
            if member_id != GROUP_ROW:
                group.add(member(member_id, json.loads(row)))
    except (ValueError, TypeError, KeyError, AttributeError, BugError) as error:
        raise CorruptGroup(
            f"the saved group {group.group_id!r} cannot be read: {error!r}"
        ) from None
    return group, seen
