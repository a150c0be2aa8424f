"""State of a classic group and its members, with queries. It handles no events and has no clock.

Only `add`, `remove` and `replace_static` change the membership. They also update the counts of
supported protocols, the leader, and the member ids of static members.

Source: Kafka's `ClassicGroup` and `ClassicGroupMember`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from penstock.base.errors import BugError
from penstock.broker.groups.classic.states import (
    FENCED_INSTANCE_ID,
    NONE,
    PREVIOUS,
    UNKNOWN_MEMBER_ID,
    GroupState,
    JoinedMember,
    JoinGroup,
    Protocol,
)
from penstock.broker.groups.runtime.core import Timer
from penstock.broker.groups.runtime.kinds import GROUP_ROW, CorruptGroup

# Decoder of the topics in a classic member's subscription. The other fields are not read.
#
#     ┌─────────┬───────────────┬──────────────────────────────┬───────────────────────────┐
#     │ version │ topics: count │ count × (length int16, text) │ user data, owned, … unread│
#     │ int16   │ int32         │                              │                           │
#     └─────────┴───────────────┴──────────────────────────────┴───────────────────────────┘
#
# All versions begin with these fields. Integers are big-endian.
#
# Source: Kafka's `ConsumerProtocolSubscription.json`.


_PREFIX: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the topics in a member's subscription; None if the bytes are no valid subscription."""
    try:
        version, count = _PREFIX.unpack_from(metadata, 0)
        if version < 0 or count < 0 or count * _LENGTH.size > len(metadata):
            return None
        position = _PREFIX.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            text = metadata[position : position + length]
            if length < 0 or len(text) != length:
                return None
            topics.append(text.decode())
            position += length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


CONSUMER_PROTOCOL_TYPE: Final = "consumer"


class Purpose(Enum):
    ASSIGNMENT = "the leader's assignment"
    REJOIN = "the return of a static member"
    EMPTINESS = "the last member has left"


class SaveWaiter(Struct, frozen=True, kw_only=True):
    """Reason for saving a group, with what its responses need once the save is durable.

    The last three fields are only for the reason `REJOIN`: the new id of the returning static
    member, the leader before its return, and whether its client can skip the assignment (KIP-814).
    """

    purpose: Purpose
    generation: int
    member_id: str = ""
    previous_leader: str = ""
    skip_assignment_known: bool = False


_STATE_OF_PURPOSE: Final = {
    Purpose.ASSIGNMENT: GroupState.COMPLETING_REBALANCE,
    Purpose.REJOIN: GroupState.STABLE,
    Purpose.EMPTINESS: GroupState.EMPTY,
}


def _idle() -> None:
    """Do nothing; the callback of a timer before its first start."""


class Member:
    """Member of a classic group.

    `join_token` and `sync_token` identify its JoinGroup and SyncGroup requests while these wait for
    a response. `number` rises in the order of joining; members are stored, listed and elected as
    leader in that order.
    """

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "join_token",
        "member_id",
        "number",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "size_bytes",
        "sync_token",
        "timer",
    )

    def __init__(
        self,
        *,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[Protocol, ...],
        assignment: bytes = b"",
        number: int = 0,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.size_bytes = protocols_bytes(protocols)
        self.assignment = assignment
        self.number = number
        self.is_new = False
        self.join_token: int | None = None
        self.sync_token: int | None = None
        self.timer = Timer(_idle)

    @classmethod
    def of(cls, event: JoinGroup, member_id: str) -> Member:
        return cls(
            member_id=member_id,
            group_instance_id=event.group_instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=event.session_timeout_ms,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            protocols=event.protocols,
        )

    @property
    def waits(self) -> bool:
        """Whether a JoinGroup or SyncGroup of the member waits for a response."""
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the subscription for a protocol; empty if the member does not support it."""
        for candidate in self.protocols:
            if candidate.name == protocol:
                return candidate.metadata
        return b""


def protocols_bytes(protocols: tuple[Protocol, ...]) -> int:
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


class Group:
    def __init__(self, group_id: str, *, touched_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.EMPTY
        self.generation = 0
        self.generation_gap = 1
        self.epoch = 0
        self.protocol_type = ""
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.last_number = 0
        self.static: dict[str, str] = {}
        self.pending: dict[str, Timer] = {}
        self.pending_sync: dict[str, None] = {}
        self.proposed: dict[str, bytes] | None = None
        self.initial_until_ms = 0
        self.joined_count = 0
        self.size_bytes = 0
        self.touched_ms = touched_ms
        self.has_offsets = False
        self.join_timer = Timer(_idle)
        self.sync_timer = Timer(_idle)
        self.save_timer = Timer(_idle)
        self.store_busy = False
        self.removing = False
        self.save_waiters: list[SaveWaiter] = []
        self.next_waiters: list[SaveWaiter] = []
        self.removal_tokens: list[int] | None = None
        self._supporters: dict[str, int] = {}
        self._subscribed: frozenset[str] | None = None
        self._subscribed_generation = -1

    # -- the state machine ------------------------------------------------------------------

    def enter(self, state: GroupState) -> None:
        """Change the state.

        Raises:
            BugError: the table of states does not allow the transition.
        """
        if self.state not in PREVIOUS[state]:
            raise BugError(
                f"group {self.group_id!r} cannot go from {self.state.value} to {state.value}"
            )
        self.previous_state = self.state
        self.state = state

    def begin_generation(self, epoch: int) -> None:
        self.epoch = epoch
        self.generation += self.generation_gap
        self.generation_gap = 1
        self.pending_sync.clear()
        self.proposed = None
        if self.members:
            self.protocol = self.select_protocol()
            self.enter(GroupState.COMPLETING_REBALANCE)
        else:
            self.protocol = ""
            self.enter(GroupState.EMPTY)

    def is_current(self, waiter: SaveWaiter) -> bool:
        if self.state is not _STATE_OF_PURPOSE[waiter.purpose]:
            return False
        if self.generation != waiter.generation:
            return False
        if waiter.purpose is Purpose.REJOIN:
            member = self.members.get(waiter.member_id)
            return member is not None and member.join_token is not None
        return waiter.purpose is not Purpose.ASSIGNMENT or self.proposed is not None

    # -- members ----------------------------------------------------------------------------

    def validate(self, member_id: str, group_instance_id: str | None) -> str:
        """Return the error for this member id and instance id; empty if they identify a member."""
        if group_instance_id is not None:
            owner = self.static.get(group_instance_id)
            if owner is None:
                return UNKNOWN_MEMBER_ID
            if owner != member_id:
                return FENCED_INSTANCE_ID
        return NONE if member_id in self.members else UNKNOWN_MEMBER_ID

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The first member sets the protocol type and becomes the leader."""
        if not self.members:
            self.protocol_type = protocol_type
        if not self.leader:
            self.leader = member.member_id
        self.last_number = member.number = member.number or self.last_number + 1
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        self._count(member, 1)

    def remove(self, member_id: str) -> Member:
        """Remove a member. If it was the leader, the next member becomes the leader."""
        member = self.members.pop(member_id)
        self._count(member, -1)
        if member.join_token is not None:
            self.joined_count -= 1
        instance = member.group_instance_id
        if instance is not None and self.static.get(instance) == member_id:
            del self.static[instance]
        self.pending_sync.pop(member_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), "")
        return member

    def update(self, member: Member, event: JoinGroup) -> None:
        self._count(member, -1)
        member.protocols = event.protocols
        member.size_bytes = protocols_bytes(event.protocols)
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.client_id = event.client_id
        member.client_host = event.client_host
        self._count(member, 1)

    def replace_static(self, old_id: str, new_id: str) -> Member:
        """Change the id of a static member, which keeps its order, leadership and assignment."""
        member = self.members[old_id]
        member.member_id = new_id
        self.members = {other.member_id: other for other in self.members.values()}
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            del self.pending_sync[old_id]
            self.pending_sync[new_id] = None
        return member

    def park_join(self, member: Member, token: int) -> int | None:
        """Record a waiting JoinGroup; return the token of the JoinGroup that it replaces."""
        replaced = member.join_token
        if replaced is None:
            self.joined_count += 1
        member.join_token = token
        return replaced

    def take_join(self, member: Member) -> int | None:
        """Remove a waiting JoinGroup and return its token; None if there is none."""
        token = member.join_token
        if token is not None:
            self.joined_count -= 1
            member.join_token = None
        return token

    @property
    def is_gathering(self) -> bool:
        """Whether the group, which was empty, waits for its first members."""
        preparing = self.state is GroupState.PREPARING_REBALANCE
        return preparing and self.previous_state is GroupState.EMPTY

    @property
    def all_joined(self) -> bool:
        return self.joined_count == len(self.members) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def not_rejoined(self) -> list[Member]:
        return [member for member in self.members.values() if member.join_token is None]

    def elect_joined_leader(self) -> bool:
        """Make a member that has rejoined the leader; return False if no member has rejoined."""
        leader = self.members.get(self.leader)
        if leader is not None and leader.join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def member_list(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(self.protocol),
            )
            for member in self.members.values()
        )

    # -- protocols --------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: tuple[Protocol, ...]) -> bool:
        """Whether a member with these protocols is compatible with all members."""
        if not self.members:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        return any(self._supporters.get(protocol.name, 0) == count for protocol in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes.

        Each member votes for the first of its protocols that all members support. In a tie, the
        protocol with the earliest first vote wins.

        Raises:
            BugError: the members have no common protocol, which `supports` should have prevented.
        """
        votes: dict[str, int] = {}
        for member in self.members.values():
            for candidate in self._common(member):
                votes[candidate] = votes.get(candidate, 0) + 1
                break
        if not votes:
            raise BugError(f"the members of group {self.group_id!r} have no protocol in common")
        return max(votes, key=votes.__getitem__)

    def _common(self, member: Member) -> Iterator[str]:
        count = len(self.members)
        for protocol in member.protocols:
            if self._supporters[protocol.name] == count:
                yield protocol.name

    def _count(self, member: Member, sign: int) -> None:
        self.size_bytes += sign * member.size_bytes
        supporters = self._supporters
        for name in {protocol.name: None for protocol in member.protocols}:
            count = supporters.get(name, 0) + sign
            if count:
                supporters[name] = count
            else:
                del supporters[name]

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribes(self, topic: str) -> bool:
        """Whether a member reads a topic, whose offsets must then be kept.

        True if a subscription cannot be decoded, or while no protocol is selected.
        """
        if not self.is_consumer or not self.members:
            return False
        if not self.protocol:
            return True
        if self._subscribed_generation != self.generation:
            self._subscribed_generation = self.generation
            self._subscribed = self._subscriptions()
        return self._subscribed is None or topic in self._subscribed

    def _subscriptions(self) -> frozenset[str] | None:
        topics: set[str] = set()
        for member in self.members.values():
            found = subscribed_topics(member.metadata(self.protocol))
            if found is None:
                return None
            topics.update(found)
        return frozenset(topics)


# Stored rows of a classic group: one for the group, and one for each member.
#
# Rows are JSON. The group's own row has the empty member id:
#
#     {"format": 2, "generation": int, "protocol_type": text, "protocol": text,
#      "epoch": int, "leader": text}
#
# A member's row, under its id:
#
#     {"number": int, "instance": text | null, "client": text, "host": text,
#      "session_timeout_ms": int, "rebalance_timeout_ms": int,
#      "protocols": [[name, base64], …], "assignment": base64}
#
# Format 1 is read but not written. Its group row also contains the members, in order and without
# numbers: `"members": [{"id": text, …}, …]`.
#
# A group is saved when it becomes stable, when a static member returns, and when it becomes empty.
# A stored group with members is therefore stable. `epoch` is the epoch of the coordinating broker
# when the generation began.


GENERATIONS_PER_EPOCH: Final = 100
"""Number of generations that a loaded group skips for each broker epoch since it was saved.

Members receive a generation before it is saved. If a crash loses it, its number must not be reused:
the assignment of its old leader could otherwise be accepted in the new generation.
"""

FORMAT: Final = 2
FORMAT_OF_ONE_ROW: Final = 1


def encode_group(group: Group) -> dict[str, bytes]:
    """Return the rows to save, by member id.

    They contain the assignments that the leader has just proposed, if these are not yet in effect.
    """
    proposed = group.proposed or {}
    completing = group.state is GroupState.COMPLETING_REBALANCE
    rows = {
        GROUP_ROW: _row(
            format=FORMAT,
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            epoch=group.epoch,
            leader=group.leader,
        )
    }
    for member_id, member in group.members.items():
        assignment = proposed.get(member_id, b"") if completing else member.assignment
        rows[member_id] = _row(
            number=member.number,
            instance=member.group_instance_id,
            client=member.client_id,
            host=member.client_host,
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            protocols=[[p.name, b64encode(p.metadata).decode()] for p in member.protocols],
            assignment=b64encode(assignment).decode(),
        )
    return rows


def _row(**fields: Any) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_group(group_id: str, rows: Mapping[str, bytes], *, epoch: int, now_ms: int) -> Group:
    """Return the group of stored rows; the session timers of its members are not started.

    Its next generation is above all that an earlier coordinator may have sent to members without
    saving them (`GENERATIONS_PER_EPOCH`).

    Raises:
        CorruptGroup: the rows do not have the format above.
    """
    group = Group(group_id, touched_ms=now_ms)
    try:
        saved = json.loads(rows[GROUP_ROW])
        group.epoch = int(saved["epoch"])
        group.generation = int(saved["generation"])
        protocol_type, protocol = str(saved["protocol_type"]), str(saved["protocol"])
        for member in _members(saved, rows):
            group.add(member, protocol_type)
        if group.members and saved["leader"] not in group.members:
            raise ValueError(f"the leader {saved['leader']!r} is not a member")
        if group.members and not group.supports(
            protocol_type, (Protocol(name=protocol, metadata=b""),)
        ):
            raise ValueError(f"not all members support the protocol {protocol!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptGroup(f"the saved group {group_id!r} cannot be read: {error}") from None
    group.generation_gap = max(1, epoch - group.epoch) * GENERATIONS_PER_EPOCH
    group.protocol_type = protocol_type
    if group.members:
        group.leader = saved["leader"]
        group.protocol = protocol
        group.state = GroupState.STABLE
    return group


def _members(saved: dict[str, Any], rows: Mapping[str, bytes]) -> list[Member]:
    if saved["format"] == FORMAT_OF_ONE_ROW:
        return [_member(member["id"], member, number=0) for member in saved["members"]]
    if saved["format"] != FORMAT:
        raise ValueError(f"format {saved['format']!r} is not {FORMAT}")
    members = []
    for member_id, row in rows.items():
        if member_id != GROUP_ROW:
            member = json.loads(row)
            members.append(_member(member_id, member, number=int(member["number"])))
    return sorted(members, key=lambda member: member.number)


def _member(member_id: str, saved: dict[str, Any], *, number: int) -> Member:
    return Member(
        member_id=member_id,
        group_instance_id=saved["instance"],
        client_id=saved["client"],
        client_host=saved["host"],
        session_timeout_ms=int(saved["session_timeout_ms"]),
        rebalance_timeout_ms=int(saved["rebalance_timeout_ms"]),
        protocols=tuple(
            Protocol(name=name, metadata=b64decode(metadata, validate=True))
            for name, metadata in saved["protocols"]
        ),
        assignment=b64decode(saved["assignment"], validate=True),
        number=number,
    )
