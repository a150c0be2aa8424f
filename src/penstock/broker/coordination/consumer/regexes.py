"""Resolution of the regular expressions by which members subscribe to topics.

A background computation resolves all expressions of a group together: when a member uses a new
expression, after topics were created or deleted, and periodically. The first target is computed
once every expression has been resolved.

Source: Kafka's `GroupMetadataManager.maybeUpdateRegularExpressions`; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from penstock.broker.coordination.consumer.group import ConsumerGroup
from penstock.broker.coordination.core import Compute, Computed
from penstock.broker.coordination.topic_regex import compile_regex
from penstock.broker.coordination.turn import Turn

REGEX_RETRY_MS: Final = 10_000
"""Minimum interval between resolutions of a group's regular expressions; Kafka's value."""

_STEPS_PER_TOPIC: Final = 20
"""Cost of matching one topic, in units of `Work.size`."""


class Resolved(Struct, frozen=True, kw_only=True):
    topics: Mapping[str, frozenset[str]]


class RegexWork(Struct, frozen=True, kw_only=True):
    regexes: Sequence[str]
    topics: Sequence[str]

    @property
    def size(self) -> int:
        return len(self.regexes) * len(self.topics) * _STEPS_PER_TOPIC

    def __call__(self) -> Resolved:
        found = {}
        for text in self.regexes:
            matches = compile_regex(text)
            found[text] = frozenset([name for name in self.topics if matches(name)])
        return Resolved(topics=found)


class Regexes:
    def __init__(
        self,
        turn: Turn,
        *,
        refresh_ms: int,
        topics: Callable[[], Collection[str]],
        resolved: Callable[[ConsumerGroup, str | None], None],
    ) -> None:
        """Create the resolver; `topics` returns the names of all topics.

        `resolved` is called after a resolution, with the group and the fingerprint that its topics
        had before.
        """
        self._turn = turn
        self._refresh_ms = refresh_ms
        self._topics = topics
        self._resolved = resolved
        self._ticket = 0

    def in_use(self, group: ConsumerGroup) -> frozenset[str]:
        return frozenset([m.regex for m in group.members.values() if m.regex])

    def ready(self, group: ConsumerGroup) -> bool:
        return self.in_use(group) <= group.resolved.keys()

    def look(self, group: ConsumerGroup) -> None:
        """Resolve new expressions, and drop unused ones, after subscriptions changed."""
        if not group.resolved and not any(m.regex for m in group.members.values()):
            return
        used = self.in_use(group)
        for regex in group.resolved.keys() - used:
            group.resolve(regex, None)
        if used - group.resolved.keys():
            self._start(group)

    def seen_by(self, group: ConsumerGroup, visible: Callable[[str], bool]) -> None:
        """Limit the matches of a group to topics that the requesting member may describe.

        After a load no limit is known. Expressions that were resolved then are resolved again.
        """
        unasked, group.visible = group.visible is None, visible
        if unasked:
            self.refresh(group)

    def refresh(self, group: ConsumerGroup) -> None:
        """Resolve all expressions again: now, or `REGEX_RETRY_MS` after the last resolution."""
        if group.regex_ticket:
            group.regex_stale = True
        elif not group.resolved:
            return
        elif group.next_regex_ms <= self._turn.now_ms:
            self._start(group)
        else:
            self._plan(group, group.next_regex_ms)

    def _start(self, group: ConsumerGroup) -> None:
        used = self.in_use(group)
        if group.regex_ticket or not used:
            return
        self._ticket -= 1
        group.regex_ticket = self._ticket
        topics, visible = self._topics(), group.visible
        seen = topics if visible is None else filter(visible, topics)
        work = RegexWork(regexes=sorted(used), topics=tuple(seen))
        self._turn.effects.append(Compute(key=group.group_id, ticket=group.regex_ticket, work=work))

    def _plan(self, group: ConsumerGroup, at_ms: int) -> None:
        group.regex_timer.fire = partial(self._start, group)
        self._turn.timers.start(group.regex_timer, at_ms)

    def resolved(self, group: ConsumerGroup, event: Computed) -> None:
        now_ms = self._turn.now_ms
        group.regex_ticket = 0
        group.next_regex_ms = now_ms + REGEX_RETRY_MS
        failed = not isinstance(event.result, Resolved)
        again = failed or group.regex_stale
        self._plan(group, group.next_regex_ms if again else now_ms + self._refresh_ms)
        group.regex_stale = False
        if failed:
            return
        used, before = self.in_use(group), group.fingerprint
        for regex, topics in event.result.topics.items():
            if regex in used and group.resolved.get(regex) != topics:
                group.resolve(regex, topics)
        self.look(group)
        self._resolved(group, before)
