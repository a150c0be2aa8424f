"""Limits of a process by its control groups, version 2 or 1.

A limit applies to a group and all of its descendants. Of all groups from that of the process up to
the mount, the tightest limit therefore counts.

Source: cgroups(7); the kernel's cgroup-v2 and cgroup-v1 documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from penstock.apps.host_reading.files import Mount, Tree, mounts, numbers, whole
from penstock.planner.host_check import UNLIMITED, ControlGroup

DEPTH_MAX: Final = 64
"""Most groups from that of a process up to the mount."""

_V1_UNLIMITED: Final = 1 << 62
"""Smallest value that means no limit; version 1 writes a number near 2**63 in that case."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders with one controller's files: that of the process's group, then those of its
    parents.
    """

    version: str
    folders: tuple[str, ...]


def read_group(tree: Tree) -> ControlGroup:
    table = tree.text(tree.of_process("cgroup"), "cgroup")
    if table is None:
        for fact in ("memory", "cpu", "pids"):
            tree.missing(fact, tree.unread["cgroup"])
        return ControlGroup()
    controllers = {name: _place(tree, table, name) for name in ("memory", "cpu", "pids", "io")}
    for name, controller in controllers.items():
        if controller is None:
            tree.missing(name, f"no control group with the controller {name} is mounted")
    memory, cpu, tasks, io = (controllers[name] for name in ("memory", "cpu", "pids", "io"))
    quota_us, period_us = _quota(tree, cpu)
    periods = _statistics(tree, cpu)
    if not periods and quota_us == UNLIMITED:
        periods = {"nr_periods": 0, "nr_throttled": 0}
    return ControlGroup(
        version=next((controller.version for controller in controllers.values() if controller), ""),
        memory_max_bytes=_least(tree, memory, "memory.max", "memory.limit_in_bytes"),
        memory_used_bytes=_own(tree, memory, "memory.current", "memory.usage_in_bytes"),
        kills=_kills(tree, memory),
        quota_us=quota_us,
        period_us=period_us,
        periods=periods.get("nr_periods"),
        throttled_periods=periods.get("nr_throttled"),
        throttled_us=periods.get("throttled_usec", periods.get("throttled_time", 0) // 1000)
        if periods
        else None,
        tasks_max=_least(tree, tasks, "pids.max", "pids.max"),
        tasks=_own(tree, tasks, "pids.current", "pids.current"),
        io_limits=_throttles(tree, io),
    )


def _place(tree: Tree, table: str, controller: str) -> _Place | None:
    """Return a controller's folders: of version 1 if it is mounted, else of version 2, else
    None.
    """
    rows = [line.split(":", 2) for line in table.splitlines() if line.count(":") >= 2]
    old = {"io": "blkio"}.get(controller, controller)
    for _, names, path in rows:
        if old in names.split(","):
            mount = _mount(tree, lambda one: one.kind == "cgroup" and old in one.super_options)
            if mount is not None:
                return _Place("v1", tuple(_upwards(tree, mount, path)))
    for _, names, path in rows:
        mount = None if names else _mount(tree, lambda one: one.kind == "cgroup2")
        if mount is not None:
            folders = tuple(_upwards(tree, mount, path))
            if _controls(tree, folders, controller):
                return _Place("v2", folders)
    return None


def _controls(tree: Tree, folders: tuple[str, ...], controller: str) -> bool:
    """Return whether version 2 has this controller, which version 1 then does not have."""
    listed = tree.text(f"{folders[-1]}/cgroup.controllers") if folders else None
    return listed is not None and controller in listed.split()


def _mount(tree: Tree, fits: Callable[[Mount], bool]) -> Mount | None:
    return next((mount for mount in mounts(tree) if fits(mount)), None)


def _upwards(tree: Tree, mount: Mount, path: str) -> Iterator[str]:
    """Yield the existing folders of a group and its parents.

    In a container only a part of the group's path may be visible.
    """
    inside = PurePosixPath(path)
    if mount.root != "/" and inside.is_relative_to(mount.root):
        inside = PurePosixPath("/") / inside.relative_to(mount.root)
    for level in [inside, *inside.parents][:DEPTH_MAX]:
        folder = mount.point.rstrip("/") + str(level).rstrip("/")
        if ".." not in level.parts and tree.path(folder).is_dir():
            yield folder


def _limit(text: str | None) -> int | None:
    if text == "max":
        return UNLIMITED
    value = None if text is None else whole(text)
    return UNLIMITED if value is not None and value >= _V1_UNLIMITED else value


def _least(tree: Tree, place: _Place | None, new: str, old: str) -> int | None:
    """Return the tightest value of a limit; UNLIMITED if no group sets one.

    `new` and `old` are the names of its file in versions 2 and 1.
    """
    if place is None:
        return None
    name = new if place.version == "v2" else old
    found = [_limit(tree.text(f"{folder}/{name}")) for folder in place.folders]
    return min([value for value in found if value is not None], default=UNLIMITED)


def _own(tree: Tree, place: _Place | None, new: str, old: str) -> int | None:
    """Return the number in a file of the process's own group, by its name in versions 2 and 1."""
    if place is None or not place.folders:
        return None
    return tree.number(f"{place.folders[0]}/{new if place.version == 'v2' else old}")


def _kills(tree: Tree, place: _Place | None) -> int | None:
    if place is None or not place.folders:
        return None
    name = "memory.events" if place.version == "v2" else "memory.oom_control"
    found = numbers(tree.text(f"{place.folders[0]}/{name}") or "").get("oom_kill")
    if found is None:
        tree.missing("kills", f"{place.folders[0]}/{name} counts none")
    return found


def _quota(tree: Tree, place: _Place | None) -> tuple[int | None, int | None]:
    """Return CPU quota and period, in microseconds, of the group with the smallest share of a
    CPU.
    """
    if place is None:
        return None, None
    found = [_one_quota(tree, place.version, folder) for folder in place.folders]
    shares = [(quota / period, quota, period) for quota, period in found if quota and period]
    if not shares:
        return UNLIMITED, None
    _, quota, period = min(shares)
    return quota, period


def _one_quota(tree: Tree, version: str, folder: str) -> tuple[int | None, int | None]:
    if version == "v2":
        words = (tree.text(f"{folder}/cpu.max") or "").split()
        both = [whole(word) for word in words]
        return (both[0], both[1]) if len(both) == 2 else (None, None)
    quota = tree.number(f"{folder}/cpu.cfs_quota_us")
    if quota is None or quota < 0:
        return None, None
    return quota, tree.number(f"{folder}/cpu.cfs_period_us")


def _statistics(tree: Tree, place: _Place | None) -> dict[str, int]:
    """Return the CPU statistics of the group that was throttled most often."""
    if place is None:
        return {}
    found = [numbers(tree.text(f"{folder}/cpu.stat") or "") for folder in place.folders]
    rows = [row for row in found if "nr_throttled" in row]
    return max(rows, key=lambda row: row["nr_throttled"], default={})


def _throttles(tree: Tree, place: _Place | None) -> tuple[str, ...]:
    """Return the lines of I/O limits of all groups, each behind the name of its file."""
    if place is None:
        return ()
    names = ("io.max",) if place.version == "v2" else _V1_THROTTLES
    found = []
    for folder in place.folders:
        for name in names:
            text = tree.text(f"{folder}/{name}") or ""
            found += [f"{name} {line}" for line in text.splitlines()[:_THROTTLES_MAX] if line]
    return tuple(found)


_V1_THROTTLES: Final = ("blkio.throttle.write_bps_device", "blkio.throttle.write_iops_device")
_THROTTLES_MAX: Final = 16
