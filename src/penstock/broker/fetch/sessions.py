"""Incremental fetch sessions: partitions of a consumer, stored between its requests.

A consumer sends its partitions once. Later requests contain only changes, and responses contain
only new results. `FetchSessions` returns a `Plan` for each request: the partitions to read.

| session id | epoch | meaning                                                            |
|-----------:|------:|--------------------------------------------------------------------|
| 0          | -1    | no session, the request is complete                                |
| n          | -1    | close session n; the request is complete                           |
| any        | 0     | open a new session with these partitions; close session n          |
| n          | > 0   | continue session n; the epoch must be the next one                 |

Partitions are identified by the topic's name or id, depending on the version of the request. A
partition that returned records moves to the end of its session's order. A session belongs to the
principal that opened it; others get FETCH_SESSION_ID_NOT_FOUND.

If all slots are in use, a new session replaces the least recently used one if that has been idle
for two minutes. Otherwise the new request is served without a session (id 0).

A request of a session reads only its *active* partitions. A partition without new records rests,
once the client knows its offsets, until its source gets records, a request contains it, or the
metadata or the isolation level changes. So idle partitions cost a request nothing. Every
`LOOK_SECONDS` a request reads all partitions, to report log start offsets that retention has moved.

A complete request that a connection repeats is read as a session too, although its response names
all partitions: librdkafka has no sessions, and polls idle partitions with the same request. When
all partitions rest, the response is that of the request before.

A partition remembers the error of its last response as long as the client fetches the same
position. Such an error is not new and does not end a wait. Without a session the connection
remembers these errors (`reported`).

Source: KIP-227; Kafka's `FetchSession.scala`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.wire.kafka.fetch import (
    Buffer,
    FetchRequest,
    PartitionRequest,
    RepeatedRows,
    decode_request,
)

if TYPE_CHECKING:
    from penstock.partitions import Partition

FETCH_SESSION_IDLE_SECONDS: Final = 120.0
"""Idle time after which a fetch session may be evicted for a new one (as in Kafka)."""

LOOK_SECONDS: Final = 10.0
"""Interval at which a request reads all partitions of its session."""
REPEATED_PARTITIONS_MIN: Final = 16
"""Smallest number of partitions of a complete request that is compared with the next one."""
REPEATED_PARTITIONS_MAX: Final = 100_000
"""Partitions in remembered complete requests of all connections, at most."""
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

Place = tuple[bytes, int]
"""Topic name or id as in the request, and partition."""
Reported = Mapping[Place, tuple[int, int, int]]
"""Errors in a connection's last response to a complete request, by partition: the leader epoch and
offset that were requested, and the error number."""
_NOTHING: Final[Reported] = {}


class FetchPartition(Struct, eq=False):
    """Partition of a request or session.

    `source` is the `Partition` object to read from, cached between requests. It is valid while
    `generation` equals that of the partition registry.
    """

    key: bytes
    index: int
    leader_epoch: int
    offset: int
    last_epoch: int
    max_bytes: int
    source: Partition | None = None
    generation: int = -1
    sent_error: int = 0
    sent_high_watermark: int = -1
    sent_log_start_offset: int = -1

    def update(self, row: PartitionRequest) -> None:
        """Apply a later request. If its position differs, the last error is forgotten."""
        _, epoch, offset, self.last_epoch, self.max_bytes = row
        if (epoch, offset) != (self.leader_epoch, self.offset):
            self.sent_error = 0
            self.leader_epoch, self.offset = epoch, offset


class FetchSession:
    __slots__ = (
        "active", "by_id", "closed", "epoch", "last_used", "looked", "owner", "partitions",
        "read_as", "response", "resting", "session_id", "topics", "waiting", "watched",
    )  # fmt: skip

    def __init__(
        self, session_id: int, owner: object, *, by_id: bool, watched: WatchedSources
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.by_id = by_id
        self.closed = False
        self.epoch = 1
        self.last_used = 0.0
        self.partitions: dict[Place, FetchPartition] = {}
        self.topics: dict[bytes, int] = {}
        """Topic names or ids, each with its number of partitions."""
        self.active: dict[FetchPartition, None] = {}
        """Partitions that a request reads, in the order of reading."""
        self.resting: dict[object, FetchPartition] = {}
        """Partitions without anything new, by their sources."""
        self.watched = watched
        self.looked = 0.0
        """Time of the last request that read all partitions, in monotonic seconds."""
        self.read_as = (-1, False)
        """Generation of the partition registry and isolation level (whether `read_committed`) with
        which the resting partitions were read."""
        self.waiting: dict[Any, None] = {}
        """Requests of this session that wait for records (`Waiter`)."""
        self.response: tuple[Sequence[Buffer], int] | None = None
        """Body of a response to a repeated request, and its size, while all partitions rest."""

    @property
    def complete(self) -> bool:
        """Whether each response contains all partitions, because the client has no session."""
        return not self.session_id

    def update(self, request: FetchRequest, reported: Reported = _NOTHING) -> None:
        """Add, change and remove the partitions that the request contains."""
        partitions = self.partitions
        for key, rows in request.topics:
            for row in rows:
                known = partitions.get((key, row[0]))
                if known is None:
                    known = partitions[key, row[0]] = _requested(key, row, reported)
                    self.topics[key] = self.topics.get(key, 0) + 1
                else:
                    known.update(row)
                    self._unwatch(known)
                self.active[known] = None
        for key, indexes in request.forgotten:
            for index in indexes:
                gone = partitions.pop((key, index), None)
                if gone is not None:
                    self._unwatch(gone)
                    self.active.pop(gone, None)
                    self.topics[key] -= 1
                    if not self.topics[key]:
                        del self.topics[key]

    def move_to_end(self, partition: FetchPartition) -> None:
        """Read a partition after all others from now on, if it is active."""
        if partition in self.active:
            del self.active[partition]
            self.active[partition] = None

    def rest(self, partition: FetchPartition, source: object) -> None:
        """Stop reading a partition until its source gets records."""
        del self.active[partition]
        self.resting[source] = partition
        self.watched.setdefault(source, {})[self] = None

    def compact(self) -> None:
        """Free the slots of partitions that rest now, because each iteration visits them."""
        self.active = dict.fromkeys(self.active)

    def wake(self, source: object) -> None:
        """Read the partition of `source` again; the caller has removed the watch of `source`."""
        self.response = None
        self.active[self.resting.pop(source)] = None

    def look_at_all(self) -> None:
        """Read all partitions again."""
        self.response = None
        for source, partition in self.resting.items():
            self._drop_watch(source)
            self.active[partition] = None
        self.resting.clear()

    def _unwatch(self, partition: FetchPartition) -> None:
        if self.resting.pop(partition.source, None) is not None:
            self._drop_watch(partition.source)

    def _drop_watch(self, source: object) -> None:
        watching = self.watched[source]
        del watching[self]
        if not watching:
            del self.watched[source]

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == _EPOCH_MAX else self.epoch + 1


WatchedSources = dict[object, dict[FetchSession, None]]
"""Sources of resting partitions, with the sessions to notify once when a source gets records."""


class Plan(Struct):
    """Partitions to read for a request, and its session.

    `incremental` means that the response may omit unchanged partitions. `error` is the name of a
    Kafka error for the whole request, or empty.
    """

    partitions: Collection[FetchPartition]
    session: FetchSession | None = None
    incremental: bool = False
    error: str = ""

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.session_id

    @property
    def topics(self) -> Iterable[bytes]:
        """Topic names or ids of the partitions."""
        if self.session is not None:
            return self.session.topics
        return {partition.key for partition in self.partitions}


class Repeated(Struct):
    """Last complete request of a connection, and its session if it was repeated."""

    version: int
    rows: RepeatedRows
    count: int
    request: FetchRequest | None = None
    session: FetchSession | None = None


class FetchSessions:
    """Fetch sessions of a broker, least recently used first."""

    def __init__(self, slots: int, new_id: Callable[[], int], watched: WatchedSources) -> None:
        """`watched` are the `FetchHub`'s sources of resting partitions."""
        self._slots = slots
        self._new_id = new_id
        self._watched = watched
        self._sessions: dict[int, FetchSession] = {}
        self._repeated: dict[object, Repeated] = {}
        self._repeated_partitions = 0

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
        """Find, open or close the session of a request, and return the partitions to read.

        `owner` is the client's principal. `by_id`: the request has topic ids instead of names.
        `now` is monotonic seconds.
        """
        session = self._sessions.get(request.session_id)
        if session is not None and session.owner != owner:
            session = None
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if session is not None:
                self._close(session)
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
        self._look(session, now)
        self._touch(session, now)
        return Plan(session.partitions.values(), session, incremental=True)

    def repeated(
        self,
        connection: object,
        frame: memoryview,
        offset: int,
        *,
        version: int,
        now: float,
        reported: Reported = _NOTHING,
    ) -> tuple[FetchRequest, Plan] | None:
        """Return the request and plan of a complete request that its connection repeats."""
        known = self._repeated.get(connection)
        if known is None or known.version != version or not known.rows.equal(frame, offset):
            return None
        if known.request is None or known.session is None:
            known.request = decode_request(frame, offset, version)
            known.session = FetchSession(0, None, by_id=False, watched=self._watched)
            known.session.looked = now
            known.session.update(known.request, reported)
            known.request.topics = []
        request, session = known.request, known.session
        if len(session.partitions) < known.count:  # it names a partition twice
            self.forget(connection)
            return None
        self._look(session, now)
        return request, Plan(session.partitions.values(), session)

    def remember(
        self,
        connection: object,
        request: FetchRequest,
        frame: memoryview,
        offset: int,
        version: int,
    ) -> None:
        """Remember the last complete request of a connection, unless one before it still waits."""
        known = self._repeated.get(connection)
        if known is not None and known.session is not None and known.session.waiting:
            return
        self.forget(connection)
        count = len(request.topics[0][1]) if len(request.topics) == 1 else 0
        if (
            count < REPEATED_PARTITIONS_MIN
            or self._repeated_partitions + count > REPEATED_PARTITIONS_MAX
        ):
            return
        rows = RepeatedRows.of(frame, offset, version, count)
        if rows is not None:
            self._repeated[connection] = Repeated(version, rows, count)
            self._repeated_partitions += count

    def forget(self, connection: object) -> None:
        """Forget the last complete request of a connection, and close its session."""
        known = self._repeated.pop(connection, None)
        if known is not None:
            self._repeated_partitions -= known.count
            if known.session is not None:
                known.session.closed = True
                known.session.look_at_all()  # watches nothing any more

    @staticmethod
    def _look(session: FetchSession, now: float) -> None:
        if now >= session.looked + LOOK_SECONDS:
            session.looked = now
            session.look_at_all()

    def _open(
        self, request: FetchRequest, reported: Reported, owner: object, *, by_id: bool, now: float
    ) -> Plan:
        if not self._make_room(now):
            return Plan(_complete(request, reported))
        session_id = self._new_id()
        while session_id in self._sessions or session_id == 0:
            session_id = self._new_id()
        session = FetchSession(session_id, owner, by_id=by_id, watched=self._watched)
        session.looked = now
        session.update(request, reported)
        self._touch(session, now)
        return Plan(session.partitions.values(), session)

    def _make_room(self, now: float) -> bool:
        if len(self._sessions) < self._slots:
            return True
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < FETCH_SESSION_IDLE_SECONDS:
            return False
        self._close(oldest)
        return True

    def _close(self, session: FetchSession) -> None:
        session.closed = True
        session.look_at_all()  # watches nothing any more
        del self._sessions[session.session_id]

    def _touch(self, session: FetchSession, now: float) -> None:
        session.last_used = now
        self._sessions.pop(session.session_id, None)
        self._sessions[session.session_id] = session


def errors_reported(partitions: Iterable[FetchPartition]) -> Reported:
    """Return the errors in a response, so that the connection's next request can repeat them.

    An error that was reported before does not end the wait of a request.
    """
    return {
        (item.key, item.index): (item.leader_epoch, item.offset, item.sent_error)
        for item in partitions
        if item.sent_error
    }


def _complete(request: FetchRequest, reported: Reported) -> list[FetchPartition]:
    if not reported:
        return [FetchPartition(key, *row) for key, rows in request.topics for row in rows]
    return [_requested(key, row, reported) for key, rows in request.topics for row in rows]


def _requested(key: bytes, row: PartitionRequest, reported: Reported) -> FetchPartition:
    """Return a new partition, with the error that was already reported for its position."""
    partition = FetchPartition(key, *row)
    epoch, offset, error = reported.get((key, partition.index), (-1, -1, 0))
    if (epoch, offset) == (partition.leader_epoch, partition.offset):
        partition.sent_error = error
    return partition
