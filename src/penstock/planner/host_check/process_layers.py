"""Resources of a process: memory, tasks, CPU time.

A limit of a control group ends a process that exceeds it (memory) or keeps it off its CPUs for the
rest of a period (`cpu.max`), which is a stall: with all CPUs busy the quota is used up after
quota ÷ CPUs of the period.

Source: cgroups(7), the kernel's cgroup-v2 and sched-bwc; proc(5).
"""

from __future__ import annotations

from typing import Final

from penstock.planner.host_check.facts import UNLIMITED, HostFacts
from penstock.planner.host_check.inputs import CheckHostInputs, Need
from penstock.planner.host_check.layers import Fix, Layer, Rule, counted, informed, judged, unknown
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.receive_path.limits import ARTICLE

STEAL_WARN_RATIO: Final = 0.01
"""Share of stolen CPU time that causes a warning."""

MAPS: Final = 1_024
"""Mappings of a process: libraries, receive buffers and rings, payload files."""


def memory_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    group, memory = facts.group, facts.memory
    limits = [limit for limit in (group.memory_max_bytes, memory.total_bytes) if limit is not None]
    grouped = group.memory_max_bytes is not None and group.memory_max_bytes == min(limits)
    limit = Rule(
        name=f"{who}_memory_bytes", label=f"memory of the {who}", chain=chain, unit="bytes",
        setting="memory.max" if grouped else "", formula=need.formula,
        source="cgroups(7): the kernel ends a process that grows beyond; settings of buffers",
    )  # fmt: skip
    free = Rule(
        name=f"{who}_memory_available_bytes", label=f"memory available to the {who}", chain=chain,
        unit="bytes", formula=need.formula, source="proc(5), MemAvailable", short="warn",
    )  # fmt: skip
    lower = "or lower the settings in the formula, or --memory of the container above it"
    where = "of the host"
    if grouped:
        used = group.memory_used_bytes
        where = "of the control group"
        where += "" if used is None else f", which uses {format_quantity(used, 'bytes')}"
    return (
        judged(
            limit, min(limits) if limits else None, need.value,
            unread=facts.why("memory", "meminfo"), detail=where,
            cause="within its own bounds the process may be ended for want of memory",
            fix=f"memory.max of {need.value} or more, {lower}",
            fixes=(Fix(kind="systemd", key="MemoryMax", value=need.value),) if grouped else (),
        ),
        judged(
            free, memory.available_bytes, need.value, unread=facts.why("meminfo"),
            cause="other processes hold the rest",
            fix="stop or move what else runs here",
        ),
    )  # fmt: skip


def pressure_layers(facts: HostFacts, chain: str) -> tuple[Layer, ...]:
    kills = Rule(
        name="memory_kills", label="kills for memory", chain=chain, short="warn",
        formula="oom_kill of memory.events (v1: memory.oom_control)", source="cgroups(7)",
    )  # fmt: skip
    swap = Rule(
        name="swap_used_bytes", label="swap in use", chain=chain, unit="bytes",
        formula="SwapTotal − SwapFree", source="proc(5), meminfo",
    )  # fmt: skip
    pages = Rule(
        name="huge_pages", label="transparent huge pages", chain=chain,
        formula="/sys/kernel/mm/transparent_hugepage/enabled", source="Linux: transhuge",
    )  # fmt: skip
    found = facts.group.kills
    return (
        counted(
            kills, found, unread=facts.why("kills", "memory"),
            cause=f"{found} processes of this group were ended since it was made",
            fix="give it more memory, or lower the buffers' settings",
        ),
        _swap(facts, swap),
        _huge_pages(facts, pages),
    )  # fmt: skip


def _swap(facts: HostFacts, rule: Rule) -> Layer:
    used = facts.memory.swap_used_bytes
    if used is None:
        return unknown(rule, facts.why("meminfo"))
    if not facts.memory.swap_bytes:
        return informed(rule, 0, "ok", "there is none")
    size = format_quantity(facts.memory.swap_bytes, "bytes")
    if not used:
        return informed(rule, 0, "ok", f"none of {size}")
    return informed(
        rule, used, "note",
        f"{format_quantity(used, 'bytes')} of {size}: a page that comes back is a stall",
        "sysctl -w vm.swappiness=1, or swapoff -a where memory suffices",
    )  # fmt: skip


def _huge_pages(facts: HostFacts, rule: Rule) -> Layer:
    mode = facts.memory.huge_pages
    if mode is None:
        return unknown(rule, facts.why("transparent_hugepage"))
    if mode != "always":
        return informed(rule, mode, "ok", f"{mode}: only for processes that request them")
    return informed(
        rule, mode, "note", "always: the kernel may stop a process to join its pages",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip


def task_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    limits = [
        limit for limit in (facts.group.tasks_max, facts.limits.processes) if limit is not None
    ]
    tasks = Rule(
        name=f"{who}_threads", label=f"threads of the {who}", chain=chain,
        setting="pids.max, RLIMIT_NPROC",
        formula=need.formula, source="cgroups(7), pids.max; getrlimit(2)",
    )  # fmt: skip
    maps = Rule(
        name=f"{who}_mappings", label=f"memory mappings of the {who}", chain=chain,
        setting="vm.max_map_count",
        formula="for libraries, buffers, rings", source="Linux: sysctl/vm, max_map_count",
    )  # fmt: skip
    name = "vm.max_map_count"
    running = "" if facts.group.tasks is None else f"the group runs {facts.group.tasks}"
    return (
        judged(
            tasks, min(limits) if limits else None, need.value,
            unread=facts.why("pids", "limits"), detail=running,
            cause="a thread that cannot start stops the process",
            fix=f"pids.max (TasksMax=) and ulimit -u of {need.value} or more",
            fixes=(Fix(kind="ulimit", key="-u", value=need.value),),
        ),
        judged(
            maps, facts.sysctl(name), MAPS, unread=facts.why(name),
            fixes=(Fix(kind="sysctl", key=name, value=MAPS),),
        ),
    )  # fmt: skip


def cpu_layers(facts: HostFacts, inputs: CheckHostInputs, chain: str) -> tuple[Layer, ...]:
    quota = Rule(
        name="cpu_quota_stall_ms", label="stall by the CPU quota", chain=chain, unit="ms",
        setting="cpu.max", formula="stall", reading="period − quota ÷ CPUs",
        short="warn", most=True,
        source=f"Linux: sched-bwc; {ARTICLE}, stalls",
    )  # fmt: skip
    throttled = Rule(
        name="cpu_throttled_periods", label="throttled periods", chain=chain, unit="periods",
        formula="nr_throttled of cpu.stat", source="Linux: sched-bwc", short="warn",
    )  # fmt: skip
    steal = Rule(
        name="cpu_steal_ratio", label="stolen CPU time", chain=chain, short="warn", most=True,
        formula="a hundredth", source="proc(5), stat",
        reading="steal ÷ all time of /proc/stat since boot",
    )  # fmt: skip
    return (
        judged(
            quota, _quota_stall_ms(facts), inputs.stall_ms, unread=facts.why("cpu"),
            cause="when all its CPUs are busy the group stands still until the period is over",
            fix="a larger quota (CPUQuota=, --cpus), or none with shares instead",
        ),
        _throttled(facts, throttled),
        judged(
            steal, facts.processors.steal_ratio, STEAL_WARN_RATIO, unread=facts.why("stat"),
            cause="the hypervisor keeps the CPUs for others: a stall that nothing here can fix",
            fix="an instance with CPUs of its own",
        ),
    )  # fmt: skip


def _quota_stall_ms(facts: HostFacts) -> float | None:
    group = facts.group
    if group.quota_us is None:
        return None
    if group.quota_us >= UNLIMITED or not group.period_us:
        return 0.0
    cpus = facts.processors.count or 1
    return max(0.0, group.period_us - group.quota_us / cpus) / 1000


def _throttled(facts: HostFacts, rule: Rule) -> Layer:
    group = facts.group
    count = group.throttled_periods
    cause = ""
    if count:
        away = format_quantity((group.throttled_us or 0) / 1000, "ms")
        cause = (
            f"{significant(count)} of {significant(group.periods or count)} periods, {away} away"
        )
    return counted(
        rule, count, unread=facts.why("cpu"), cause=cause,
        fix="a larger quota (CPUQuota=, --cpus), or fewer threads",
    )  # fmt: skip
