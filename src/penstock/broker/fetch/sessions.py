"""Incremental fetch sessions: partitions of a consumer, stored between its requests.

A consumer sends its partitions once; later requests contain only changes, and responses only new
results. The core below turns each request into a `Plan`.

| session id | epoch | meaning                                                            |
|-----------:|------:|--------------------------------------------------------------------|
| 0          | -1    | no session, the request is complete                                |
| n          | -1    | close session n; the request is complete                           |
| any        | 0     | open a new session with these partitions; close session n          |
| n          | > 0   | continue session n; the epoch must be the next one                 |

Partitions are keyed by the topic's name or id, as the request's version has it. Partitions of a
session that returned records move to the end of its order. A session belongs to the principal that
opened it; others get FETCH_SESSION_ID_NOT_FOUND.

The least recently used session is evicted for a new one if it was idle for two minutes; otherwise
the new request is served without a session (id 0).

A partition stores the error of its last response while the client fetches the same position, in a
session or by complete requests on one connection (`reported`), so that it is not new.

Source: KIP-227; Kafka's `FetchSession.scala`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.wire.kafka.fetch import FetchRequest, PartitionRequest

if TYPE_CHECKING:
    from penstock.partitions import Partition

FETCH_SESSION_IDLE_SECONDS: Final = 120.0
"""Idle time after which a fetch session may be evicted for a new one (as in Kafka)."""

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

Place = tuple[bytes, int]
"""Topic of a partition, by name or id as in the request, and its index."""
Reported = Mapping[Place, tuple[int, int, int]]
"""Leader epoch, offset and error of the partitions with an error in a connection's last response to
a complete request."""
_NOTHING: Final[Reported] = {}


class FetchPartition:
    """Partition of a request or session; `source` is valid while `generation` is."""

    __slots__ = (
        "generation", "index", "key", "last_epoch", "leader_epoch", "max_bytes", "offset",
        "sent_error", "sent_high_watermark", "sent_log_start_offset", "source",
    )  # fmt: skip

    def __init__(self, key: bytes, row: PartitionRequest) -> None:
        self.key = key
        self.sent_error = 0
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.index, self.leader_epoch, self.offset, self.last_epoch, self.max_bytes = row
        self.source: Partition | None = None
        self.generation = -1

    def update(self, row: PartitionRequest) -> None:
        """Apply a later request; at another position an error is new again."""
        _, epoch, offset, self.last_epoch, self.max_bytes = row
        if (epoch, offset) != (self.leader_epoch, self.offset):
            self.sent_error = 0
            self.leader_epoch, self.offset = epoch, offset


class FetchSession:
    __slots__ = ("by_id", "epoch", "last_used", "owner", "partitions", "session_id")

    def __init__(self, session_id: int, owner: object, *, by_id: bool) -> None:
        self.session_id = session_id
        self.owner = owner
        self.by_id = by_id
        self.epoch = 1
        self.last_used = 0.0
        self.partitions: dict[Place, FetchPartition] = {}

    def update(self, request: FetchRequest, reported: Reported = _NOTHING) -> None:
        """Add, change and remove partitions as the request says."""
        partitions = self.partitions
        for key, rows in request.topics:
            for row in rows:
                known = partitions.get((key, row[0]))
                if known is None:
                    partitions[key, row[0]] = _requested(key, row, reported)
                else:
                    known.update(row)
        for key, indexes in request.forgotten:
            for index in indexes:
                partitions.pop((key, index), None)

    def move_to_end(self, partition: FetchPartition) -> None:
        place = (partition.key, partition.index)
        if self.partitions.pop(place, None) is not None:
            self.partitions[place] = partition

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


class Plan(Struct):
    """Partitions to fetch. `error` is a Kafka error name, empty without an error."""

    partitions: Collection[FetchPartition]
    session: FetchSession | None = None
    incremental: bool = False
    error: str = ""

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.session_id


class FetchSessions:
    """Sessions of a broker, least recently used first."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(
        self,
        request: FetchRequest,
        *,
        owner: object,
        by_id: bool,
        now: float,
        reported: Reported = _NOTHING,
    ) -> Plan:
        """Find or open the request's session for principal `owner`; `now` is monotonic seconds."""
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None:
                del self._sessions[session.session_id]
            if request.session_epoch == FINAL_EPOCH:
                return Plan(_complete(request, reported))
            return self._open(request, reported, owner, by_id=by_id, now=now)
        if session is None:
            return Plan((), error="fetch_session_id_not_found")
        if session.by_id != by_id:
            return Plan((), error="fetch_session_topic_id_error")
        if session.epoch != request.session_epoch:
            return Plan((), error="invalid_fetch_session_epoch")
        session.advance()
        session.update(request)
        self._touch(session, now)
        return Plan(session.partitions.values(), session, incremental=True)

    def _open(
        self, request: FetchRequest, reported: Reported, owner: object, *, by_id: bool, now: float
    ) -> Plan:
        if not self._make_room(now):
            return Plan(_complete(request, reported))
        session_id = self._new_id()
        while session_id in self._sessions or session_id == 0:
            session_id = self._new_id()
        session = FetchSession(session_id, owner, by_id=by_id)
        session.update(request, reported)
        self._touch(session, now)
        return Plan(session.partitions.values(), session)

    def _make_room(self, now: float) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < FETCH_SESSION_IDLE_SECONDS:
            return False
        del self._sessions[oldest.session_id]
        return True

    def _touch(self, session: FetchSession, now: float) -> None:
        session.last_used = now
        self._sessions.pop(session.session_id, None)
        self._sessions[session.session_id] = session


def errors_reported(partitions: Iterable[FetchPartition]) -> Reported:
    """Return the errors that the connection's next complete request has already seen."""
    return {
        (item.key, item.index): (item.leader_epoch, item.offset, item.sent_error)
        for item in partitions
        if item.sent_error
    }


def _complete(request: FetchRequest, reported: Reported) -> list[FetchPartition]:
    if not reported:
        return [FetchPartition(key, row) for key, rows in request.topics for row in rows]
    return [_requested(key, row, reported) for key, rows in request.topics for row in rows]


def _requested(key: bytes, row: PartitionRequest, reported: Reported) -> FetchPartition:
    """Return a requested partition, with its last error if that was at this position."""
    partition = FetchPartition(key, row)
    epoch, offset, error = reported.get((key, partition.index), (-1, -1, 0))
    if (epoch, offset) == (partition.leader_epoch, partition.offset):
        partition.sent_error = error
    return partition
