"""Bugs to plant in consumer groups, each of which some seed must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from penstock.base.errors import BugError
from penstock.broker.groups.consumer import ConsumerGroups
from penstock.broker.groups.consumer import group as reconciliation
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.runtime.assignors import overlap
from sim.consumer_groups.world import Violation

Plant = Callable[[ConsumerGroups], None]
Planted = tuple[object, str, Any] | Plant
"""A function that is replaced by another, or what is done to the core."""


def _answers_at_once(groups: ConsumerGroups) -> None:
    groups.saver.answer = (  # type: ignore[method-assign]
        lambda group, token, response: groups.turn.reply(token, response)
    )


def _expelled_quietly(groups: ConsumerGroups) -> None:
    expel = groups.expel

    def quiet(group: ConsumerGroup, member: Any) -> None:
        expel(group, member)
        if group.assignment_epoch == group.epoch - 1:
            group.epoch -= 1

    groups.expel = quiet  # type: ignore[method-assign]


def _topics_unseen(groups: ConsumerGroups) -> None:
    def changed(event: Any) -> None:
        groups.topics = event.topics

    groups.topics_changed = changed  # type: ignore[method-assign]


def _any_target(groups: ConsumerGroups) -> None:
    """A target is taken as one for the epoch of now, whatever changed since it was begun."""
    take = groups._take_target

    def taken(group: ConsumerGroup, target: Any) -> None:
        take(group, target)
        group.assignment_epoch = group.epoch

    groups._take_target = taken  # type: ignore[method-assign]


def _no_sessions_after_loading(groups: ConsumerGroups) -> None:
    groups.watch = lambda group, member: None  # type: ignore[method-assign]


def _never_expires(groups: ConsumerGroups) -> None:
    groups.expire = lambda group, member: None  # type: ignore[method-assign]


def _parks_in_silence(groups: ConsumerGroups) -> None:
    groups.unpark = lambda member, error, message: None  # type: ignore[method-assign]


PLANTS: Final[Mapping[str, Planted]] = {
    "two owners of one partition": (ConsumerGroup, "taken", lambda self, partitions: {}),
    "revocation not awaited": (reconciliation, "_has_any", lambda owned, partitions: False),
    "silence taken for revocation": (
        reconciliation,
        "_has_any",
        lambda owned, partitions: owned is not None and overlap(owned, partitions),
    ),
    "answered before it is saved": _answers_at_once,
    "epoch not raised for who has left": _expelled_quietly,
    "epoch not raised for topics": _topics_unseen,
    "an old target taken for a new one": _any_target,
    "no sessions after loading": _no_sessions_after_loading,
    "members never expire": _never_expires,
    "a parked heartbeat is forgotten": _parks_in_silence,
}


def find(run: Callable[[int, Plant], object], bug: Planted, seeds: int) -> str:
    """Return the violation in the first seed that finds a planted bug; empty if none does."""
    with planted(bug) as plant:
        for seed in range(seeds):
            try:
                run(seed, plant)
            except (Violation, BugError) as found:
                return str(found)
    return ""


@contextmanager
def planted(bug: Planted) -> Iterator[Plant]:
    """What is to be done to a core; functions are replaced meanwhile."""
    if isinstance(bug, tuple):
        with patch.object(*bug):
            yield lambda groups: None
    else:
        yield bug
