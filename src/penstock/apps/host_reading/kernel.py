"""Kernel settings, processors, memory, process limits, and clock.

Source: proc(5), sysfs, adjtimex(2).
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from penstock.apps.host_reading.files import Tree, cpu_list, pairs, whole
from penstock.planner.host_check import UNLIMITED, ClockState, Memory, ProcessLimits, Processors

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
    """Return the numbers of each readable kernel setting."""
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
    """Return the resource limits of the process."""
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
    """Return the process's CPUs, the last-level cache of the first, and stolen time."""
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
        tree.missing("stat", "/proc/stat has no time of the hypervisor")
        return None
    return times[7] / sum(times)


def read_memory(tree: Tree) -> Memory:
    """Return memory, swap, and the settings of huge pages."""
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
    """Return the word in brackets of `always [madvise] never`."""
    if text is None or "[" not in text:
        return None
    return text.partition("[")[2].partition("]")[0]


def read_clock(tree: Tree) -> ClockState:
    """Return the clock's source; on this host also its discipline."""
    source = tree.text(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource", "clocksource"
    )
    if not tree.is_here:
        tree.missing("adjtimex", "only the host itself can be asked")
        return ClockState(source=source)
    state = ask_clock()
    if state is None:
        tree.missing("adjtimex", "the kernel does not answer adjtimex")
        return ClockState(source=source)
    synchronised, offset_ms, error_ms = state
    return ClockState(
        source=source, synchronised=synchronised, offset_ms=offset_ms, error_ms=error_ms
    )


class _Timex(ctypes.Structure):
    """`struct timex` of 64-bit Linux up to the last field read; the rest is padding."""

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
    """Return whether the clock is synchronised, its offset and estimated error in ms; None: no
    answer.

    With no mode set, adjtimex(2) only reads.
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
