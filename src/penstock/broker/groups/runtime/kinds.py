"""Dispatcher of events to the kinds of groups (classic, consumer, share), and what they share.

All kinds share one set of group ids; a group has one kind at a time.

    stored group              its own row contains the kind; in classic groups it may be missing
    request to a known group  its kind handles or refuses the request
    request to a new id       the first kind that serves such requests handles it

Source: Kafka's `Group.GroupType` and `GroupMetadataManager`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from msgspec import Struct, field

from penstock.base.errors import CorruptError
from penstock.broker.groups.runtime.core import (
    NO_TOKEN,
    Effect,
    Refused,
    Reply,
    Stored,
    Tick,
    Timers,
)

if TYPE_CHECKING:
    from penstock.control import Topic


# Requests that are common to all kinds of groups, and their responses.
#
# Requests are already decoded and authorised. A core answers a request with a `Reply` effect, which
# contains the token that was passed with the request.


COORDINATOR_NOT_AVAILABLE: Final = "coordinator_not_available"
GROUP_ID_NOT_FOUND: Final = "group_id_not_found"
NOT_COORDINATOR: Final = "not_coordinator"


class CommitCheck(Struct, frozen=True, kw_only=True):
    """Request to check whether a client may commit offsets.

    `generation` is -1 for a client that is not a member; in consumer groups it is the member epoch.
    `knows_epochs` is true if the request's version supports member epochs. `transactional` offsets
    belong to a transaction: the client need not be a member, and rebalances do not delay it.
    """

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None = None
    knows_epochs: bool = True
    transactional: bool = False


class FetchCheck(Struct, frozen=True, kw_only=True):
    """Request to check whether a client may fetch offsets.

    A client that is not a member has `member_id` None and `epoch` -1.
    """

    group_id: str
    member_id: str | None
    epoch: int


class DescribeGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class ListGroups(Struct, frozen=True, kw_only=True):
    """Request to list groups; an empty filter matches all groups."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class DeleteGroup(Struct, frozen=True, kw_only=True):
    group_id: str


class OffsetDeleteCheck(Struct, frozen=True, kw_only=True):
    group_id: str
    topics: tuple[str, ...]


class Prune(Struct, frozen=True, kw_only=True):
    """Event: delete empty groups without offsets. `with_offsets` are the groups with offsets."""

    with_offsets: Collection[str]


class Accepted(Struct, frozen=True, kw_only=True):
    """Positive response to heartbeats, commit checks and deletions."""


class DescribedMember(Struct, frozen=True, kw_only=True):
    """Member of a described group, with `metadata` and `assignment` only if the group is stable."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedGroup(Struct, frozen=True, kw_only=True):
    """Description of a classic group; `protocol` is empty unless the group is stable."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(Struct, frozen=True, kw_only=True):
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class ListedGroups(Struct, frozen=True, kw_only=True):
    groups: tuple[ListedGroup, ...]


class OffsetsDeletable(Struct, frozen=True, kw_only=True):
    subscribed: frozenset[str]


class Turn:
    """Effects and time of the event being handled, and the timers of all groups."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.effects: list[Effect] = []
        self.now_ms = 0
        self.count: Callable[[], int] = _none
        """Number of groups of all kinds."""

    def begin(self, now_ms: int) -> list[Effect]:
        """Begin to handle an event; return the list to which its effects are added."""
        self.now_ms = now_ms
        self.effects = []
        return self.effects

    def reply(self, token: int, response: Any) -> None:
        self.effects.append(Reply(token, response))

    def refuse(self, token: int, error: str, message: str = "") -> None:
        self.reply(token, Refused(error=error, message=message))


def _none() -> int:
    return 0


HASH_BYTES = 16


class NewTopics(Struct, frozen=True, kw_only=True):
    """Event: topics or racks changed.

    `topics` are all current topics. `changed` are the names of changed topics; None means that any
    topic may have changed. `racks` are the racks of brokers by id.
    """

    topics: Mapping[str, Topic]
    changed: Collection[str] | None = None
    racks: Mapping[int, str] = field(default_factory=dict)


def racks_of(topic: Topic, racks: Mapping[int, str]) -> list[frozenset[str]]:
    known: dict[tuple[int, ...], frozenset[str]] = {}
    found = []
    for row in topic.partitions:
        replica_racks = known.get(row.replicas)
        if replica_racks is None:
            replica_racks = frozenset([racks[broker] for broker in row.replicas if broker in racks])
            known[row.replicas] = replica_racks
        found.append(replica_racks)
    return found


def fingerprint(topics: Mapping[str, Topic], names: Collection[str]) -> str:
    """Return a hash that changes when a topic is created, deleted, extended or recreated."""
    digest = blake2b(digest_size=HASH_BYTES)
    for name in sorted(names):
        topic = topics.get(name)
        if topic is not None:
            digest.update(b"%s %d " % (topic.topic_id.bytes, len(topic.partitions)))
    return digest.hexdigest()


Handler = Callable[[Any, int], None]
"""Function that handles an event, with the token of its request."""

KIND_FIELD: Final = "kind"
GROUP_ROW: Final = ""


class CorruptGroup(CorruptError):
    code: ClassVar[str] = "coordinator_not_available"


class Kind(Protocol):
    """Core of the groups of one kind; methods named as in `Core` have the same meaning."""

    name: ClassVar[str]

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Handlers of events of a single group, including the runtime's reports; by event type."""
        ...

    @property
    def foreign(self) -> Mapping[type, Handler]:
        """Handlers of another kind's requests to a group of this kind; they may convert it."""
        ...

    @property
    def ids(self) -> Collection[str]: ...

    def refuse(self, event: Any, token: int) -> None:
        """Refuse a request that groups of this kind do not serve."""
        ...

    def load(self, stored: Stored) -> None:
        """Load the stored rows of a group of this kind, or a group that only has offsets.

        Raises:
            CorruptGroup: the rows cannot be decoded; nothing has changed.
        """
        ...

    def hand_over(self, group_id: str, reason: str) -> None:
        """Drop a group that another broker or kind owns now, and refuse its waiting requests."""
        ...

    def listed(self) -> Iterable[ListedGroup]: ...

    def prune(self, event: Prune) -> None:
        """Delete empty groups without offsets some time after their last use."""
        ...

    def topics_changed(self, event: NewTopics) -> None: ...


class Groups:
    def __init__(
        self,
        turn: Turn,
        kinds: Sequence[Kind],
        late: Mapping[str, Callable[[], Kind]] | None = None,
    ) -> None:
        """Create the dispatcher; `kinds` begins with the classic kind.

        `late` has constructors by name of kinds that are constructed at their first use.
        """
        self._turn = turn
        self._kinds = list(kinds)
        self._by_name = {kind.name: kind for kind in kinds}
        self._late = dict(late or {})
        turn.count = lambda: sum(len(kind.ids) for kind in self._kinds)

    def handle(self, event: Any, now_ms: int, token: int = NO_TOKEN) -> list[Effect]:
        effects = self._turn.begin(now_ms)
        if isinstance(event, Tick):
            for timer in self._turn.timers.due(now_ms):
                timer.fire()
        elif isinstance(event, ListGroups):
            self._turn.reply(token, self._listed(event))
        elif isinstance(event, Prune):
            for kind in self._kinds:
                kind.prune(event)
        elif isinstance(event, NewTopics):
            for kind in self._kinds:
                kind.topics_changed(event)
        else:
            self._handle_one(event, token)
        return effects

    def _handle_one(self, event: Any, token: int) -> None:
        key = event.group_id if token else event.key
        known = self._kind_of(key)
        if known is None or type(event) not in known.handlers:
            self._construct_late(type(event))
        kind = known or self._serving(type(event))
        handler = kind.handlers.get(type(event))
        if handler is None and known is not None:
            handler = known.foreign.get(type(event))
        if handler is not None:
            handler(event, token)
        elif token:
            kind.refuse(event, token)

    def _kind_of(self, key: str) -> Kind | None:
        for kind in self._kinds:
            if key in kind.ids:
                return kind
        return None

    def _construct_late(self, event: type) -> None:
        """Construct the late kinds if no other kind serves a request."""
        if self._late and not any([event in kind.handlers for kind in self._kinds]):
            for name in [*self._late]:
                self._make(name)

    def _serving(self, event: type) -> Kind:
        return next((kind for kind in self._kinds if event in kind.handlers), self._kinds[0])

    def _make(self, name: str) -> None:
        kind = self._by_name[name] = self._late.pop(name)()
        self._kinds.append(kind)

    def _listed(self, event: ListGroups) -> ListedGroups:
        states = {state.lower() for state in event.states}
        types = {group_type.lower() for group_type in event.types}
        groups = [
            group
            for kind in self._kinds
            if not types or kind.name in types
            for group in kind.listed()
            if not states or group.state.lower() in states
        ]
        return ListedGroups(groups=tuple(sorted(groups, key=lambda group: group.group_id)))

    def load(self, stored: Stored, now_ms: int) -> list[Effect]:
        effects = self._turn.begin(now_ms)
        holder = self._kind_of(stored.key)
        if stored.rows is None:
            (holder or self._kinds[0]).load(stored)
            return effects
        kind = self._stored_kind(stored.key, stored.rows)
        kind.load(stored)
        if holder is not None and holder is not kind:
            holder.hand_over(stored.key, f"another broker has coordinated group {stored.key!r}")
        return effects

    def _stored_kind(self, key: str, rows: Mapping[str, bytes]) -> Kind:
        row = rows.get(GROUP_ROW)
        if row is None:
            return self._kinds[0]
        try:
            name = json.loads(row).get(KIND_FIELD, self._kinds[0].name)
            if name in self._late:
                self._make(name)
            return self._by_name[name]
        except (ValueError, KeyError, AttributeError) as error:
            raise CorruptGroup(f"the saved group {key!r} cannot be read: {error!r}") from error

    def forget(self, key: str) -> list[Effect]:
        effects = self._turn.begin(self._turn.now_ms)
        kind = self._kind_of(key)
        if kind is not None:
            kind.hand_over(key, f"another broker coordinates group {key!r} now")
        return effects

    def keys(self) -> Collection[str]:
        return {key for kind in self._kinds for key in kind.ids}

    def next_deadline_ms(self) -> int | None:
        return self._turn.timers.next_deadline_ms()
