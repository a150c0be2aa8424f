"""Share sessions, which store the partitions that a member fetches, between its requests.

| epoch | ShareFetch                                    | ShareAcknowledge          |
|------:|-----------------------------------------------|---------------------------|
| 0     | opens a new session with the named partitions | refused                   |
| > 0   | next request; adds and removes partitions     | next request              |
| -1    | last request; remaining records are released  | last request as well      |

A session is identified by group and member. It belongs to the principal that opened it; requests of
other principals do not find it. It ends with its last request, when its connection closes, or when
it is idle and another session needs its slot. Its records are then released. If the member opens
its session again, it keeps its records.

Source: KIP-932; Kafka's `ShareSessionCache` and `SharePartitionManager.newContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, Final
from uuid import UUID

from penstock.base.errors import InvalidError, RetriableError

SESSION_IDLE_SECONDS: Final = 120.0
"""Idle time after which a share session may be replaced by a new one."""

FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

Place = tuple[UUID, int]
"""Topic id and partition index."""
SessionKey = tuple[str, str]
"""Group id and member id."""


class ShareSessionNotFound(RetriableError):
    code: ClassVar[str] = "share_session_not_found"


class InvalidShareSessionEpoch(RetriableError):
    """The request does not have the next epoch of its session."""

    code: ClassVar[str] = "invalid_share_session_epoch"


class ShareSessionLimitReached(RetriableError):
    """The limit on share sessions is reached, and no session is idle."""

    code: ClassVar[str] = "share_session_limit_reached"


class InvalidShareRequest(InvalidError):
    code: ClassVar[str] = "invalid_request"


class ShareSession:
    """Session of one member; `connection` is the connection of its last request."""

    __slots__ = ("closed", "connection", "epoch", "key", "last_used", "owner", "partitions")

    def __init__(self, key: SessionKey, connection: object, owner: object) -> None:
        self.key = key
        self.owner = owner
        self.connection = connection
        self.epoch = 1
        self.last_used = 0.0
        self.closed = False
        self.partitions: dict[Place, None] = {}

    def update(self, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        self.partitions.update(dict.fromkeys(added))
        for place in forgotten:
            self.partitions.pop(place, None)

    def asked_last(self, place: Place) -> None:
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None


class ShareSessions:
    """Sessions of a broker, least recently used first."""

    def __init__(self, slots: int, ended: Callable[[ShareSession, bool], None]) -> None:
        """Create the cache of at most `slots` sessions.

        `ended` is called with each ended session, and whether its member requested that.
        """
        self._slots = slots
        self._ended = ended
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, key: SessionKey, connection: object, *, owner: object, now: float
    ) -> ShareSession:
        """Open a session, which replaces an open session of the same member.

        Raises:
            ShareSessionNotFound: another principal has a session of this member.
            ShareSessionLimitReached: the limit is reached and no session is idle.
        """
        old = self._sessions.get(key)
        if old is not None and old.owner != owner:
            raise _not_found(key)
        if old is not None:
            old.closed = True
            self._drop(old)
        elif len(self._sessions) >= self._slots:
            self._make_room(now)
        session = ShareSession(key, connection, owner)
        self._keep(session, connection, now)
        return session

    def next_request(
        self, key: SessionKey, epoch: int, connection: object, *, owner: object, now: float
    ) -> ShareSession:
        """Return the session of a request, and advance its epoch unless the request is the last.

        After the last request the caller must call `end`.

        Raises:
            ShareSessionNotFound: the member has no session, or another principal has it.
            InvalidShareSessionEpoch: the session expects another epoch.
        """
        session = self._sessions.get(key)
        if session is None or session.owner != owner:
            raise _not_found(key)
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                raise InvalidShareSessionEpoch(
                    f"member {key[1]!r} of group {key[0]!r} sent session epoch {epoch},"
                    f" expected {session.epoch}"
                )
            session.epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        self._drop(session)
        self._keep(session, connection, now)
        return session

    def end(self, session: ShareSession, *, said: bool = False) -> None:
        """End a session; `said` is true if its member requested that. Idempotent."""
        if not session.closed:
            session.closed = True
            self._drop(session)
            self._ended(session, said)

    def disconnected(self, connection: object) -> None:
        for key in list(self._by_connection.get(connection, ())):
            self.end(self._sessions[key])

    def _keep(self, session: ShareSession, connection: object, now: float) -> None:
        session.connection, session.last_used = connection, now
        self._sessions[session.key] = session
        self._by_connection.setdefault(connection, set()).add(session.key)

    def _drop(self, session: ShareSession) -> None:
        del self._sessions[session.key]
        keys = self._by_connection[session.connection]
        keys.discard(session.key)
        if not keys:
            del self._by_connection[session.connection]

    def _make_room(self, now: float) -> None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < SESSION_IDLE_SECONDS:
            raise ShareSessionLimitReached(
                f"there are {len(self._sessions)} share sessions, group.share.max.share.sessions"
                f" allows no more, and none was idle for {SESSION_IDLE_SECONDS:g} s"
            )
        self.end(oldest)


def _not_found(key: SessionKey) -> ShareSessionNotFound:
    return ShareSessionNotFound(
        f"member {key[1]!r} of group {key[0]!r} has no share session on this broker"
    )
