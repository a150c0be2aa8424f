"""Facts of a host: kernel, processors, memory, process limits, clock, and its data directory.

A sync is timed as a log does it: 4 KiB are appended to a file without a name, and synced.

Source: proc(5), sysfs, adjtimex(2).
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.apps.host_reading.files import (
    Mount,
    Tree,
    cpu_list,
    mount_of,
    mounts,
    numbers,
    pairs,
    whole,
)
from penstock.apps.host_reading.network import (
    Ask,
    Request,
    ask_ethtool,
    read_datagrams,
    read_grants,
    read_interface,
    read_softirq,
)
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.planner.host_check import (
    UNLIMITED,
    ClockState,
    ControlGroup,
    Disk,
    HostFacts,
    Memory,
    ProcessLimits,
    Processors,
)

# Limits of a process by its control groups, version 2 or 1.
#
# A limit applies to a group and all of its descendants. Of all groups from that of the process up
# to the mount, the tightest limit therefore counts.
#
# Source: cgroups(7); the kernel's cgroup-v2 and cgroup-v1 documents.


DEPTH_MAX: Final = 64
"""Most groups from that of a process up to the mount."""

_V1_UNLIMITED: Final = 1 << 62
"""Smallest value that means no limit; version 1 writes a number near 2**63 in that case."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders of a cgroup controller: that of the process's control group, then of its parents."""

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
    """Return the folders of a cgroup controller; None if it is not found.

    These are folders of cgroup version 1 if the controller is mounted there, else of version 2.
    `table` is the content of /proc/PID/cgroup.
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
    """Return whether cgroup version 2 has a controller; each controller is in one version only."""
    listed = tree.text(f"{folders[-1]}/cgroup.controllers") if folders else None
    return listed is not None and controller in listed.split()


def _mount(tree: Tree, fits: Callable[[Mount], bool]) -> Mount | None:
    return next((mount for mount in mounts(tree) if fits(mount)), None)


def _upwards(tree: Tree, mount: Mount, path: str) -> Iterator[str]:
    """Yield the existing folders of a control group and its parents, upwards.

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
    """Return the lowest value of a limit in the process's control group and its parents.

    UNLIMITED if none of them sets it; None if their folders are unknown. `new` and `old` are the
    names of the limit's file in cgroup versions 2 and 1.
    """
    if place is None:
        return None
    name = new if place.version == "v2" else old
    found = [_limit(tree.text(f"{folder}/{name}")) for folder in place.folders]
    return min([value for value in found if value is not None], default=UNLIMITED)


def _own(tree: Tree, place: _Place | None, new: str, old: str) -> int | None:
    """Return the number in a file of the process's own control group.

    `new` and `old` are the names of the file in cgroup versions 2 and 1.
    """
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
    """Return CPU quota and period, in microseconds, of the tightest control group.

    This is the process's group or the parent whose quota is the smallest share of a CPU.
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
    """Return the CPU statistics of the group, or its parent, that was throttled most often."""
    if place is None:
        return {}
    found = [numbers(tree.text(f"{folder}/cpu.stat") or "") for folder in place.folders]
    rows = [row for row in found if "nr_throttled" in row]
    return max(rows, key=lambda row: row["nr_throttled"], default={})


def _throttles(tree: Tree, place: _Place | None) -> tuple[str, ...]:
    """Return the I/O limits of the process's control group and its parents.

    Each is a line of a limit file, behind the file's name.
    """
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Scope of a reading: the directory, process, interface and socket to examine.

    `root` takes the place of `/`. `process` is a process id, or `self`. An empty `interface` means
    that of the default route. `sync_rounds` syncs are timed. `requests` are buffer sizes to
    request.
    """

    data_directory: Path
    root: Path = Path("/")
    process: str = "self"
    interface: str = ""
    socket_path: str = ""
    sync_rounds: int = 100
    requests: tuple[Request, ...] = ()


def read_host(reading: Reading, ask: Ask = ask_ethtool) -> HostFacts:
    """Read all facts of a host; nothing is written except a temporary file for timing syncs.

    Raises:
        NoInterface: the named interface does not exist.
    """
    tree = Tree(root=reading.root, process=reading.process)
    requests: Iterable[Request] = reading.requests
    return HostFacts(
        kernel=tree.text("/proc/sys/kernel/osrelease", "kernel"),
        page_bytes=page_bytes(),
        sysctls=read_sysctls(tree),
        interface=read_interface(tree, reading.interface, ask if tree.is_here else None),
        softirq=read_softirq(tree),
        datagrams=read_datagrams(tree),
        group=read_group(tree),
        limits=read_limits(tree),
        processors=read_processors(tree),
        memory=read_memory(tree),
        disk=read_disk(tree, reading.data_directory, reading.sync_rounds),
        socket_file_system=file_system(tree, reading.socket_path) if reading.socket_path else None,
        clock=read_clock(tree),
        grants=read_grants(tree, requests),
        unread=tree.unread,
    )


SYSCTLS: Final = (
    "net.core.rmem_max",
    "net.core.rmem_default",
    "net.core.wmem_max",
    "net.core.netdev_max_backlog",
    "net.core.somaxconn",
    "net.unix.max_dgram_qlen",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.udp_mem",
    "vm.max_map_count",
    "vm.dirty_ratio",
    "vm.dirty_bytes",
    "vm.dirty_background_ratio",
    "vm.dirty_background_bytes",
    "fs.file-max",
    "fs.nr_open",
)
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_CACHES_MAX: Final = 16


def read_sysctls(tree: Tree) -> dict[str, tuple[int, ...]]:
    """Return the values of the kernel settings in `SYSCTLS` that can be read."""
    found: dict[str, tuple[int, ...]] = {}
    for name in SYSCTLS:
        path = "/proc/sys/" + name.replace(".", "/")
        text = tree.text(path, name)
        if text is None:
            continue
        values = [whole(word) for word in text.split()]
        numbers = tuple([min(value, UNLIMITED) for value in values if value is not None])
        if numbers and len(numbers) == len(values):
            found[name] = numbers
        else:
            tree.missing(name, f"{path}: {text[:40]!r} is no number")
    return found


def read_limits(tree: Tree) -> ProcessLimits:
    """Return the resource limits of the examined process."""
    text = tree.text(tree.of_process("limits"), "limits")
    if text is None:
        return ProcessLimits()
    rows = {line[:26].strip(): line[26:].split() for line in text.splitlines()}
    files = _limits(rows.get("Max open files"))
    return ProcessLimits(
        files=files[0],
        files_hard=files[1],
        locked_bytes=_limits(rows.get("Max locked memory"))[0],
        processes=_limits(rows.get("Max processes"))[0],
    )


def _limits(words: list[str] | None) -> tuple[int | None, int | None]:
    if words is None or len(words) < 2:
        return None, None
    soft, hard = [UNLIMITED if word == "unlimited" else whole(word) for word in words[:2]]
    return soft, hard


def read_processors(tree: Tree) -> Processors:
    """Return the process's CPUs, the last-level cache of the first one, and the stolen time."""
    cpus = _cpus(tree)
    cache_bytes, shared_by = _last_cache(tree, cpus[0] if cpus else 0)
    return Processors(
        count=len(cpus) or None,
        cache_bytes=cache_bytes,
        cache_shared_by=shared_by,
        steal_ratio=_steal(tree),
    )


def _cpus(tree: Tree) -> list[int]:
    status = dict(pairs(tree.text(tree.of_process("status")) or "", ":"))
    allowed = status.get("Cpus_allowed_list")
    if allowed is None:
        allowed = tree.text("/sys/devices/system/cpu/online", "cpus")
    return cpu_list(allowed or "")


def _last_cache(tree: Tree, cpu: int) -> tuple[int | None, int | None]:
    best: tuple[int, int | None, int | None] = (0, None, None)
    for index in range(_CACHES_MAX):
        place = f"/sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
        level, size = tree.number(f"{place}/level"), tree.text(f"{place}/size")
        if level is None or size is None:
            break
        if level > best[0]:
            sharers = cpu_list(tree.text(f"{place}/shared_cpu_list") or "")
            best = level, _sized(size), len(sharers) or None
    if best[1] is None:
        tree.missing("cache", f"/sys/devices/system/cpu/cpu{cpu}/cache has no sizes")
    return best[1], best[2]


def _sized(text: str) -> int | None:
    value = whole(text[:-1]) if text[-1:] in _UNITS else whole(text)
    return None if value is None else value * _UNITS.get(text[-1:], 1)


def _steal(tree: Tree) -> float | None:
    text = tree.text("/proc/stat", "stat")
    if not text:
        return None
    times = [whole(word) or 0 for word in text.splitlines()[0].split()[1:9]]
    if len(times) < 8 or not sum(times):
        tree.missing("stat", "/proc/stat does not report stolen time")
        return None
    return times[7] / sum(times)


def read_memory(tree: Tree) -> Memory:
    """Return the sizes of memory and swap, and the setting of transparent huge pages."""
    rows = dict(pairs(tree.text("/proc/meminfo", "meminfo") or "", ":"))
    sizes = {name: _kilobytes(text) for name, text in rows.items()}
    swap, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
    return Memory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=sizes.get("MemAvailable"),
        swap_bytes=swap,
        swap_used_bytes=None if swap is None or free is None else swap - free,
        huge_pages=_chosen(
            tree.text("/sys/kernel/mm/transparent_hugepage/enabled", "transparent_hugepage")
        ),
    )


def _kilobytes(text: str) -> int | None:
    value = whole(text.removesuffix("kB").strip())
    return None if value is None else value << 10


def _chosen(text: str | None) -> str | None:
    """Return the word in brackets, as `madvise` of `always [madvise] never`."""
    if text is None or "[" not in text:
        return None
    return text.partition("[")[2].partition("]")[0]


def read_clock(tree: Tree) -> ClockState:
    """Return the clock's source and, on this host, whether it is synchronised and its error."""
    source = tree.text(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource", "clocksource"
    )
    if not tree.is_here:
        tree.missing("adjtimex", "only a running host reports it")
        return ClockState(source=source)
    state = ask_clock()
    if state is None:
        tree.missing("adjtimex", "the kernel does not support adjtimex")
        return ClockState(source=source)
    synchronised, offset_ms, error_ms = state
    return ClockState(
        source=source, synchronised=synchronised, offset_ms=offset_ms, error_ms=error_ms
    )


class _Timex(ctypes.Structure):
    """`struct timex` of 64-bit Linux up to the last field that is read, and padding for the
    rest.
    """

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("largest_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 32),
    )


_UNSYNCHRONISED: Final = 0x0040
_NANOSECONDS: Final = 0x2000
_TIME_ERROR: Final = 5


def ask_clock() -> tuple[bool, float, float] | None:
    """Return whether the clock is synchronised, its offset and its estimated error in ms.

    None means that the kernel does not report it. adjtimex(2) changes nothing, since no mode is
    set.
    """
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    answer = _Timex()
    state = ask(ctypes.byref(answer))
    if state < 0:
        return None
    synchronised = state != _TIME_ERROR and not answer.status & _UNSYNCHRONISED
    per_ms = 1e6 if answer.status & _NANOSECONDS else 1e3
    return synchronised, answer.offset / per_ms, answer.estimated_error / 1e3


def page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


SYNC_BYTES: Final = 4096
SYNC_ROUNDS_MAX: Final = 1_000
SYNC_SECONDS_MAX: Final = 5.0
"""Longest duration of all rounds; a slow disk gets fewer rounds."""


def existing(directory: Path) -> Path:
    """Return a directory as an absolute path, or its nearest parent that exists."""
    path = directory.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path


def sync_times_ms(directory: Path, rounds: int, clock: Clock = SYSTEM_CLOCK) -> list[float]:
    """Measure up to `rounds` syncs of 4 KiB in a directory; return their milliseconds, sorted.

    Stops after `SYNC_SECONDS_MAX`.

    Raises:
        OSError: the directory is not writable.
    """
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        until = clock.monotonic() + SYNC_SECONDS_MAX
        while len(times) < min(rounds, SYNC_ROUNDS_MAX) and (
            not times or clock.monotonic() < until
        ):
            os.write(file.fileno(), b"x" * SYNC_BYTES)
            begun = clock.monotonic()
            os.fdatasync(file.fileno())
            times.append((clock.monotonic() - begun) * 1000)
    return sorted(times)


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest of sorted values that `share` of all values do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def read_disk(tree: Tree, directory: Path, sync_rounds: int) -> Disk:
    """Return the facts about a data directory, or about its nearest parent that exists."""
    at = existing(directory)
    times = _measured(tree, at, sync_rounds)
    mount = mount_of(tree, str(at.resolve()))
    free_bytes, free_inodes = _free(tree, at)
    return Disk(
        directory=str(directory.expanduser().absolute()),
        measured_in=str(at),
        file_system=mount.kind if mount else None,
        mount_point=mount.point if mount else None,
        options=(*mount.options, *mount.super_options) if mount else (),
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        syncs=len(times),
        sync_p50_ms=quantile(times, 0.5) if times else None,
        sync_p99_ms=quantile(times, 0.99) if times else None,
    )


def file_system(tree: Tree, path: str) -> str | None:
    """Return the type of the file system that has a file, or would have it."""
    mount = mount_of(tree, str(existing(Path(path).parent).resolve()))
    return mount.kind if mount else None


def _measured(tree: Tree, at: Path, rounds: int) -> list[float]:
    if rounds < 1:
        tree.missing("sync", "not measured, since 0 rounds were requested")
        return []
    try:
        return sync_times_ms(at, rounds)
    except OSError as error:
        tree.missing("sync", f"{at}: {error.strerror}")
        return []


def _free(tree: Tree, at: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(at)
    except OSError as error:
        tree.missing("disk", f"{at}: {error.strerror}")
        return None, None
    inodes = found.f_favail if found.f_files else None
    return found.f_bavail * found.f_frsize, inodes
