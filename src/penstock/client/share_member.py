"""A member of a share group: what it asks for and says, and what answers make of it. No I/O here.

    heartbeat ─▶ epoch, partitions ─▶ a share session with each broker that leads some of them
                                         fetch: partitions that came and went, how much
                                         acknowledge: what was done with which offsets

| answer                                     | the member                                     |
|--------------------------------------------|------------------------------------------------|
| unknown member, fenced epoch               | joins again; what it has stays locked          |
| unknown session, wrong epoch, no connection| opens the session anew                         |
| another broker leads                       | is to learn who does                           |

Times are monotonic milliseconds.

Source: KIP-932, KIP-1206 (no more records than asked for), KIP-1222 (renew).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.client.errors import broker_error, code_name
from penstock.client.metadata import TopicMetadata

LEAVE: Final = -1
INITIAL: Final = 0
FINAL: Final = -1
RECORD_LIMIT: Final = 1
UNASSIGNED_MS: Final = 500.0
"""How often a member without partitions asks whether it has got some."""
_EPOCH_MAX: Final = 2**31 - 1
_REJOIN: Final = frozenset({"unknown_member_id", "fenced_member_epoch"})
SESSION_ERRORS: Final = frozenset(
    {"share_session_not_found", "invalid_share_session_epoch", "share_session_limit_reached"}
)

Place = tuple[str, int]
"""A topic and a partition."""


class Said(NamedTuple):
    """The same said of all offsets from `first` to `last`."""

    first: int
    last: int
    kind: int


class Acquired(NamedTuple):
    """Records that the member has, and how often they were delivered."""

    first: int
    last: int
    deliveries: int


@dataclass(slots=True)
class _Session:
    """What a broker knows of the member: the next request's epoch, and its partitions."""

    epoch: int = INITIAL
    places: set[Place] = field(default_factory=set)


class ShareMember:
    """See the module's text."""

    def __init__(self, group: str, member_id: str, topics: Sequence[str]) -> None:
        self.group = group
        self.member_id = member_id
        self.topics = tuple(topics)
        self.epoch = 0
        self.assigned: set[Place] = set()
        self._assignment: tuple[tuple[UUID, tuple[int, ...]], ...] = ()
        self._ids: dict[str, UUID] = {}
        self._leaders: dict[Place, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._due_ms = float("-inf")
        self._turn = 0

    # The group

    def due_in_ms(self, now_ms: float) -> float:
        """How long until the next heartbeat; 0 or less: now."""
        return self._due_ms - now_ms

    def heartbeat(self, *, leave: bool = False) -> dict[str, Any]:
        """The body of the next heartbeat; topics are told when the member joins."""
        joins = self.epoch == 0 and not leave
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": LEAVE if leave else self.epoch,
            "rack_id": None,
            "subscribed_topic_names": self.topics if joins else None,
        }

    def heard(self, answer: Any, now_ms: float) -> bool:
        """Take a heartbeat's answer; whether partitions came or went.

        Raises:
            PenstockError: the coordinator's refusal, but of an epoch: then the member joins again.
        """
        code = int(answer.error_code)
        if code:
            if code_name(code) in _REJOIN:
                self.epoch, self._due_ms = 0, now_ms
                return False
            raise broker_error(code, f"share group {self.group!r}", answer.error_message)
        self.epoch = int(answer.member_epoch)
        interval_ms = answer.heartbeat_interval.total_seconds() * 1000
        changed = False
        if answer.assignment is not None:
            found = tuple(
                (topic_partition.topic_id, tuple(map(int, topic_partition.partitions)))
                for topic_partition in answer.assignment.topic_partitions
            )
            changed, self._assignment = found != self._assignment, found
        self._due_ms = now_ms + (
            interval_ms if self._assignment else min(interval_ms, UNASSIGNED_MS)
        )
        return changed

    # Who leads what

    def learn(self, topics: Iterable[TopicMetadata]) -> None:
        """Take who leads the partitions of the member's topics."""
        self._leaders.clear()
        for topic in topics:
            if topic.topic_id is not None:
                self._ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                self._leaders[topic.name, partition.index] = partition.leader
        names = {topic_id: name for name, topic_id in self._ids.items()}
        self.assigned = {
            (names[topic_id], index)
            for topic_id, indexes in self._assignment
            if topic_id in names
            for index in indexes
        }

    def leader(self, place: Place) -> int:
        """The broker that leads a partition; -1 where nobody is known to."""
        return self._leaders.get(place, -1)

    def nodes(self) -> list[int]:
        """The brokers that lead partitions of the member, another one first each time."""
        nodes = sorted({self.leader(place) for place in self.assigned} - {-1})
        self._turn += 1
        start = self._turn % len(nodes) if nodes else 0
        return nodes[start:] + nodes[:start]

    @property
    def leaderless(self) -> bool:
        """Whether a partition of the member has nobody to ask."""
        return any(self.leader(place) < 0 for place in self.assigned)

    # Sessions

    def opened(self, node: int) -> bool:
        """Whether a broker knows the member's session."""
        return node in self._sessions and self._sessions[node].epoch != INITIAL

    def sessions(self) -> list[int]:
        return [node for node in self._sessions if self.opened(node)]

    def fetch(
        self, node: int, *, max_records: int, max_wait_ms: int, max_bytes: int
    ) -> dict[str, Any]:
        """The next fetch from a broker; without `max_records` it only opens the session."""
        session = self._sessions.setdefault(node, _Session())
        mine = {place for place in self.assigned if self.leader(place) == node}
        come, gone = mine - session.places, session.places - mine
        session.places = mine
        return {
            **self._head(session),
            "max_wait": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "max_records": max_records,
            "batch_size": max(max_records, 1),
            "share_acquire_mode": RECORD_LIMIT,
            "is_renew_ack": False,
            "topics": self._topics({place: () for place in come}),
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": indexes}
                for topic_id, indexes in self._by_topic(gone).items()
            ],
        }

    def acknowledge(
        self, node: int, said: Mapping[Place, Sequence[Said]], *, renews: bool, last: bool = False
    ) -> dict[str, Any]:
        """What to tell a broker with an open session of records that the member has."""
        session = self._sessions[node]
        head = self._head(session)
        if last:
            head["share_session_epoch"] = FINAL
        return {**head, "is_renew_ack": renews, "topics": self._topics(said)}

    def answered(self, node: int) -> None:
        """A broker has taken a request of its session."""
        session = self._sessions[node]
        session.epoch = 1 if session.epoch >= _EPOCH_MAX else session.epoch + 1

    def lost(self, node: int) -> None:
        """A broker does not know the session, or cannot be asked."""
        self._sessions.pop(node, None)

    def name(self, topic_id: UUID) -> str:
        """The topic of an id that an answer has; empty if the member has none such."""
        return next((name for name, known in self._ids.items() if known == topic_id), "")

    def _head(self, session: _Session) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": session.epoch,
        }

    def _by_topic(self, places: Iterable[Place]) -> dict[UUID, list[int]]:
        found: dict[UUID, list[int]] = {}
        for topic, index in sorted(places):
            found.setdefault(self._ids[topic], []).append(index)
        return found

    def _topics(self, said: Mapping[Place, Sequence[Said]]) -> list[dict[str, Any]]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic, index), runs in sorted(said.items()):
            batches = [
                {
                    "first_offset": run.first,
                    "last_offset": run.last,
                    "acknowledge_types": (run.kind,),
                }
                for run in runs
            ]
            topics.setdefault(self._ids[topic], []).append(
                {"partition_index": index, "acknowledgement_batches": batches}
            )
        return [
            {"topic_id": topic_id, "partitions": partitions}
            for topic_id, partitions in topics.items()
        ]
