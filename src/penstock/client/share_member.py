"""Core of a share group member: builds its requests and processes responses, without I/O.

    heartbeat ─▶ epoch, partitions ─▶ a share session with each broker that leads some of them
                                         fetch: added and removed partitions, limits
                                         acknowledge: results by ranges of offsets

| response                                   | action of the member                           |
|--------------------------------------------|------------------------------------------------|
| unknown member, fenced epoch               | joins again; its records stay locked           |
| unknown session, wrong epoch, no connection| opens the session again                        |
| another broker leads                       | refreshes its metadata                         |

Times are monotonic milliseconds.

Source: KIP-932, KIP-1206 (no more records than requested), KIP-1222 (renew).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from msgspec import Struct, field

from penstock.client.errors import broker_error, code_name
from penstock.client.metadata import TopicAndPartition, TopicMetadata

LEAVE: Final = -1
INITIAL: Final = 0
FINAL: Final = -1
RECORD_LIMIT: Final = 1
UNASSIGNED_MS: Final = 500.0
"""Heartbeat interval in milliseconds of a member to which no partition is assigned."""
_EPOCH_MAX: Final = 2**31 - 1
_REJOIN: Final = frozenset({"unknown_member_id", "fenced_member_epoch"})
SESSION_ERRORS: Final = frozenset(
    {"share_session_not_found", "invalid_share_session_epoch", "share_session_limit_reached"}
)


class AckRange(NamedTuple):
    """Acknowledgement of all offsets from `first` to `last`, with one `Kind`."""

    first: int
    last: int
    kind: int


class Acquired(NamedTuple):
    """Range of acquired offsets, with the number of times they have been delivered."""

    first: int
    last: int
    deliveries: int


class _Session(Struct):
    """Share session with a broker: the epoch of its next request, and its partitions."""

    epoch: int = INITIAL
    partitions: set[TopicAndPartition] = field(default_factory=set)


class ShareMember:
    """State machine of a share group member: membership, leaders and share sessions."""

    def __init__(self, group: str, member_id: str, topics: Sequence[str]) -> None:
        self.group = group
        self.member_id = member_id
        self.topics = tuple(topics)
        self.epoch = 0
        self.assigned: set[TopicAndPartition] = set()
        self._assignment: tuple[tuple[UUID, tuple[int, ...]], ...] = ()
        self._ids: dict[str, UUID] = {}
        self._leaders: dict[TopicAndPartition, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._due_ms = float("-inf")
        self._turn = 0

    # The group

    def due_in_ms(self, now_ms: float) -> float:
        """Return the milliseconds until the next heartbeat; 0 or less means now."""
        return self._due_ms - now_ms

    def heartbeat(self, *, leave: bool = False) -> dict[str, Any]:
        """Return the body of the next heartbeat; the first one includes the topics."""
        joins = self.epoch == 0 and not leave
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": LEAVE if leave else self.epoch,
            "rack_id": None,
            "subscribed_topic_names": self.topics if joins else None,
        }

    def heartbeat_answered(self, answer: Any, now_ms: float) -> bool:
        """Process the response to a heartbeat; return whether the assignment changed.

        Raises:
            PenstockError: the coordinator returned an error. After an unknown member id or a fenced
                epoch the member joins again instead.
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

    # Leaders

    def learn(self, topics: Iterable[TopicMetadata]) -> None:
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

    def leader(self, partition: TopicAndPartition) -> int:
        return self._leaders.get(partition, -1)

    def nodes(self) -> list[int]:
        nodes = sorted({self.leader(partition) for partition in self.assigned} - {-1})
        self._turn += 1
        start = self._turn % len(nodes) if nodes else 0
        return nodes[start:] + nodes[:start]

    @property
    def leaderless(self) -> bool:
        return any(self.leader(partition) < 0 for partition in self.assigned)

    # Sessions

    def opened(self, node: int) -> bool:
        return node in self._sessions and self._sessions[node].epoch != INITIAL

    def sessions(self) -> list[int]:
        return [node for node in self._sessions if self.opened(node)]

    def fetch(
        self, node: int, *, max_records: int, max_wait_ms: int, max_bytes: int
    ) -> dict[str, Any]:
        """Return the body of a broker's next fetch; `max_records` 0 only opens the session."""
        session = self._sessions.setdefault(node, _Session())
        mine = {partition for partition in self.assigned if self.leader(partition) == node}
        come, gone = mine - session.partitions, session.partitions - mine
        session.partitions = mine
        return {
            **self._head(session),
            "max_wait": max_wait_ms,
            "min_bytes": 1,
            "max_bytes": max_bytes,
            "max_records": max_records,
            "batch_size": max(max_records, 1),
            "share_acquire_mode": RECORD_LIMIT,
            "is_renew_ack": False,
            "topics": self._topics({partition: () for partition in come}),
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": indexes}
                for topic_id, indexes in self._by_topic(gone).items()
            ],
        }

    def acknowledge(
        self,
        node: int,
        ranges: Mapping[TopicAndPartition, Sequence[AckRange]],
        *,
        renews: bool,
        last: bool = False,
    ) -> dict[str, Any]:
        """Return the body of a request with acknowledgements; the broker's session must be open."""
        session = self._sessions[node]
        head = self._head(session)
        if last:
            head["share_session_epoch"] = FINAL
        return {**head, "is_renew_ack": renews, "topics": self._topics(ranges)}

    def answered(self, node: int) -> None:
        """Advance the epoch of a broker's session after a response."""
        session = self._sessions[node]
        session.epoch = 1 if session.epoch >= _EPOCH_MAX else session.epoch + 1

    def lost(self, node: int) -> None:
        self._sessions.pop(node, None)

    def name(self, topic_id: UUID) -> str:
        return next((name for name, known in self._ids.items() if known == topic_id), "")

    def _head(self, session: _Session) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": session.epoch,
        }

    def _by_topic(self, partitions: Iterable[TopicAndPartition]) -> dict[UUID, list[int]]:
        found: dict[UUID, list[int]] = {}
        for topic, index in sorted(partitions):
            found.setdefault(self._ids[topic], []).append(index)
        return found

    def _topics(
        self, ranges: Mapping[TopicAndPartition, Sequence[AckRange]]
    ) -> list[dict[str, Any]]:
        topics: dict[UUID, list[dict[str, Any]]] = {}
        for (topic, index), acks in sorted(ranges.items()):
            batches = [
                {
                    "first_offset": ack.first,
                    "last_offset": ack.last,
                    "acknowledge_types": (ack.kind,),
                }
                for ack in acks
            ]
            topics.setdefault(self._ids[topic], []).append(
                {"partition_index": index, "acknowledgement_batches": batches}
            )
        return [
            {"topic_id": topic_id, "partitions": partitions}
            for topic_id, partitions in topics.items()
        ]
