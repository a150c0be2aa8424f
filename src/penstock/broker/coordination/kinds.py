"""Dispatcher of events to the kinds of groups: classic, consumer and share.

All kinds share one set of group ids; a group has one kind at a time.

    stored group              its own row contains the kind; in classic groups it may be missing
    request to a known group  its kind handles or refuses the request
    request to a new id       the first kind that serves such requests handles it

Source: Kafka's `Group.GroupType` and `GroupMetadataManager`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol

from penstock.base.errors import CorruptError
from penstock.broker.coordination.core import NO_TOKEN, Effect, Stored, Tick
from penstock.broker.coordination.group_events import ListedGroup, ListedGroups, ListGroups, Prune
from penstock.broker.coordination.modern.topics import NewTopics
from penstock.broker.coordination.turn import Turn

Handler = Callable[[Any, int], None]
"""Function that handles an event, with the token of its request."""

KIND_FIELD: Final = "kind"
GROUP_ROW: Final = ""


class CorruptGroup(CorruptError):
    code: ClassVar[str] = "coordinator_not_available"


class Kind(Protocol):
    """Core of the groups of one kind; the methods have the same meaning as those of `Core`."""

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
    def __init__(self, turn: Turn, kinds: Sequence[Kind]) -> None:
        """Create the dispatcher; `kinds` begins with the classic kind."""
        self._turn = turn
        self._kinds = kinds
        self._by_name = {kind.name: kind for kind in kinds}
        turn.count = lambda: sum(len(kind.ids) for kind in kinds)

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

    def _serving(self, event: type) -> Kind:
        return next((kind for kind in self._kinds if event in kind.handlers), self._kinds[0])

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
            return self._by_name[json.loads(row).get(KIND_FIELD, self._kinds[0].name)]
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
