"""Bugs to plant in streams groups, each of which some seed must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.broker.groups.consumer.state import ConsumerState
from penstock.broker.groups.runtime.core import Work
from penstock.broker.groups.streams import StreamsGroups, assignor, core
from penstock.broker.groups.streams.group import StreamsGroup, encode_group
from penstock.broker.groups.streams.topology import Configured, configure
from sim.consumer_groups.plants import PLANTS as CONSUMER_PLANTS
from sim.consumer_groups.plants import Planted

COMMON: Final = frozenset(
    {
        "revocation not awaited",
        "silence taken for revocation",
        "answered before it is saved",
        "epoch not raised for who has left",
        "an old target taken for a new one",
        "no sessions after loading",
        "members never expire",
        "a parked heartbeat is forgotten",
    }
)
"""Bugs of consumer groups that streams groups can have too."""


def _only_active_tasks_wait(self: StreamsGroup, member: Any, partitions: Any) -> Any:
    return self.taken(partitions)


def _configured_once(self: StreamsGroups, group: StreamsGroup) -> Configured:
    if group.configured_for is None and group.topology is not None:
        group.configured = configure(group.topology, group.matches, self.topics)
        group.configured_for = "known"
    return group.configured


def _any_topology(self: StreamsGroups, group: Any) -> Work:
    for member in group.members.values():
        member.topology_epoch = group.topology.epoch
    return _work(self, group)


_work = StreamsGroups.work


def _without_topology(group: StreamsGroup) -> Mapping[str, bytes]:
    rows = encode_group(group)
    rows.pop(" ", None)
    return rows


def _first_member(self: Any, task: Any, member_id: str | None, room: Any) -> bool:
    if member_id is None:
        return False
    self._give(assignor.ACTIVE, task, member_id)
    return True


PLANTS: Final[Mapping[str, Planted]] = {
    **{name: bug for name, bug in CONSUMER_PLANTS.items() if name in COMMON},
    "two members of an active task": (StreamsGroup, "_taken_from", lambda self, member, tasks: {}),
    "two roles of a task in a process": (StreamsGroup, "_taken_from", _only_active_tasks_wait),
    "a static member keeps the tasks of its new process": (
        StreamsGroup,
        "set_process",
        lambda self, member, process_id: setattr(member, "process_id", process_id),
    ),
    "topics configured once": (StreamsGroups, "configured", _configured_once),
    "expressions matched once": (StreamsGroups, "topics_changed", ConsumerState.topics_changed),
    "tasks for an old topology": (StreamsGroups, "work", _any_topology),
    "topology not stored": (core, "encode_group", _without_topology),
    "no standby tasks": (assignor._Assignment, "copy", lambda self, tasks, count: None),
    "sticky beyond the quota": (assignor._Assignment, "_keep", _first_member),
}
