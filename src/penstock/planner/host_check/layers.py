"""Rules of layers, and the layers of a process's resources, its data directory and the clock.

    found, needed ──> judged(rule, …) ──> Layer: ok | note | warn | fail, cause, fix, fixes

A rule describes a layer, and states the severity of a shortage. An unknown fact gives a note with
the reason.

**Resources.** The kernel ends a process that exceeds the memory limit of its control group. It
stops all threads of a group that has used its CPU quota (`cpu.max`) until the period ends. With all
CPUs busy, the quota of a period is used up after quota ÷ CPUs.

**Data directory.** With `log.flush.policy = group`, each produce request waits for a sync. If the
median time of a sync exceeds the interval in which an object collects data, syncs limit the rate.

Source: cgroups(7), the kernel's cgroup-v2 and sched-bwc; proc(5); fdatasync(2), statvfs(3),
mount(8); Linux: sysctl/vm, dirty_ratio; adjtimex(2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal

from penstock.planner.host_check.inputs import (
    UNLIMITED,
    CheckHostInputs,
    Configured,
    Disk,
    HostFacts,
    Need,
    broker_disk,
    sync_wanted_ms,
)
from penstock.planner.quantities import format_quantity, significant
from penstock.planner.receive_path.inputs import ARTICLE
from penstock.planner.results import Number, Severity

RECEIVE: Final = "Receive path, from the wire inwards"
BROKER: Final = "The broker, from its sockets to its disk and clock"
AGENT: Final = "The host agent, on its Unix socket"
CHAINS: Final = (RECEIVE, BROKER, AGENT)

RANKS: Final[Mapping[Severity, int]] = {"ok": 0, "note": 1, "warn": 2, "fail": 3}

FixKind = Literal["sysctl", "ethtool", "ulimit", "systemd"]


@dataclass(frozen=True, slots=True)
class Fix:
    """Command line of a fix; for equal `key` the plan shows only the fix with the largest value."""

    kind: FixKind
    key: str
    value: int
    rest: str = ""

    @property
    def line(self) -> str:
        if self.kind == "sysctl":
            middle = f"'{self.rest} {self.value}'" if self.rest else str(self.value)
            return f"sysctl -w {self.key}={middle}"
        if self.kind == "ethtool":
            return f"ethtool {self.key} {self.value}"
        if self.kind == "ulimit":
            return f"ulimit {self.key} {self.value}"
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True)
class Rule:
    """Description of a layer.

    `formula` explains the need. `reading` explains the found number if the label does not. `short`
    is the severity of a shortage.
    """

    name: str
    label: str
    chain: str
    formula: str
    source: str
    _: KW_ONLY
    unit: str = ""
    setting: str = ""
    short: Severity = "fail"
    reading: str = ""
    most: bool = False
    """Whether the need is an upper limit, as for a latency, instead of a minimum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    rule: Rule
    found: Number | str | None
    needed: Number | None
    severity: Severity
    cause: str
    fix: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Found value as a multiple of the need, inverted for an upper limit.

        None if the found value is unknown, a text or unlimited, or if there is no need.
        """
        found, needed = self.found, self.needed
        if found is None or isinstance(found, str) or needed is None or found >= UNLIMITED:
            return None
        if self.rule.most:
            found, needed = needed, found
        return found / needed if needed > 0 else None


def text(value: Number, unit: str) -> str:
    """Return a number for display, with its unit."""
    return "unlimited" if value >= UNLIMITED else format_quantity(value, unit)


def judged(
    rule: Rule,
    found: Number | None,
    needed: Number,
    *,
    unread: str = "",
    cause: str = "",
    fix: str = "",
    fixes: tuple[Fix, ...] = (),
    short: Severity | None = None,
    detail: str = "",
) -> Layer:
    """Compare `found` with `needed` by a rule, and return the result as a layer.

    A shortage has `cause`, `fix` or `fixes`, and the severity `short`, by default that of the rule.
    `detail` is added to the text of any result. `unread` is the reason why `found` is None.
    """
    if found is None:
        return unknown(rule, unread, needed)
    enough = found <= needed if rule.most else found >= needed
    bound = "allowed at most" if rule.most else "needed"
    compared = f"found {text(found, rule.unit)}, {bound} {text(needed, rule.unit)}"
    compared += f" ({detail})" if detail else ""
    if enough:
        return Layer(rule=rule, found=found, needed=needed, severity="ok", cause=compared)
    return Layer(
        rule=rule, found=found, needed=needed, severity=short or rule.short,
        cause=f"{compared}: {cause}" if cause else compared,
        fix=fix or "; ".join([fix.line for fix in fixes]), fixes=fixes,
    )  # fmt: skip


def sysctl_layer(facts: HostFacts, rule: Rule, needed: int, cause: str = "") -> Layer:
    """Return a layer that compares the rule's kernel setting with `needed`."""
    return judged(
        rule, facts.sysctl(rule.setting), needed, unread=facts.why(rule.setting), cause=cause,
        fixes=(Fix("sysctl", rule.setting, needed),),
    )  # fmt: skip


def unknown(rule: Rule, unread: str, needed: Number | None = None) -> Layer:
    return Layer(
        rule=rule, found=None, needed=needed, severity="note", cause=f"not known: {unread}"
    )


def counted(rule: Rule, count: int | None, *, unread: str, cause: str, fix: str) -> Layer:
    """Return a layer for a counter of losses; any value above 0 gets the rule's severity."""
    if count is None:
        return unknown(rule, unread)
    if count == 0:
        return Layer(rule=rule, found=0, needed=None, severity="ok", cause="none counted")
    return Layer(rule=rule, found=count, needed=None, severity=rule.short, cause=cause, fix=fix)


def informed(rule: Rule, found: Number | str | None, severity: Severity, cause: str, fix: str = "",
) -> Layer:  # fmt: skip
    return Layer(rule=rule, found=found, needed=None, severity=severity, cause=cause, fix=fix)


def first_broken(layers: tuple[Layer, ...]) -> Layer | None:
    """Return the outermost layer that fails, or else the outermost with a warning, or None."""
    for severity in ("fail", "warn"):
        for layer in layers:
            if layer.severity == severity:
                return layer
    return None


def tightest(layers: tuple[Layer, ...]) -> Layer | None:
    """Return the layer with the smallest ratio, without layers whose shortage is only a note."""
    measured = [
        (layer.ratio, place)
        for place, layer in enumerate(layers)
        if layer.ratio is not None and layer.rule.short != "note"
    ]
    return layers[min(measured)[1]] if measured else None


STEAL_WARN_RATIO: Final = 0.01
"""Share of stolen CPU time that causes a warning."""

MAPS: Final = 1_024
"""Memory mappings that a process needs: libraries, receive buffers, rings, payload files."""


def memory_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    group, memory = facts.group, facts.memory
    limits = [limit for limit in (group.memory_max_bytes, memory.total_bytes) if limit is not None]
    grouped = group.memory_max_bytes is not None and group.memory_max_bytes == min(limits)
    limit = Rule(
        f"{who}_memory_bytes", f"memory of the {who}", chain, need.formula,
        "cgroups(7): the kernel ends a process that exceeds its limit; settings of buffers",
        unit="bytes", setting="memory.max" if grouped else "",
    )  # fmt: skip
    free = Rule(
        f"{who}_memory_available_bytes", f"available memory, {who}", chain, need.formula,
        "proc(5), MemAvailable", unit="bytes", short="warn",
    )  # fmt: skip
    lower = "or lower the settings in the formula, or raise --memory of the container"
    where = "of the host"
    if grouped:
        used = group.memory_used_bytes
        where = "of the control group"
        where += "" if used is None else f", which uses {format_quantity(used, 'bytes')}"
    return (
        judged(
            limit, min(limits) if limits else None, need.value,
            unread=facts.why("memory", "meminfo"), detail=where,
            cause="the kernel may end the process although it uses no more than configured",
            fix=f"set memory.max to {need.value} or more, {lower}",
            fixes=(Fix("systemd", "MemoryMax", need.value),) if grouped else (),
        ),
        judged(
            free, memory.available_bytes, need.value, unread=facts.why("meminfo"),
            cause="other processes use the rest",
            fix="stop other processes, or move them to another host",
        ),
    )  # fmt: skip


def pressure_layers(facts: HostFacts, chain: str) -> tuple[Layer, ...]:
    kills = Rule(
        "memory_kills", "kills for memory", chain, "oom_kill of memory.events (v1:"
        " memory.oom_control)", "cgroups(7)", short="warn",
    )  # fmt: skip
    swap = Rule(
        "swap_used_bytes", "swap in use", chain, "SwapTotal − SwapFree", "proc(5), meminfo",
        unit="bytes",
    )  # fmt: skip
    pages = Rule(
        "huge_pages", "transparent huge pages", chain,
        "/sys/kernel/mm/transparent_hugepage/enabled", "Linux: transhuge",
    )  # fmt: skip
    found = facts.group.kills
    return (
        counted(
            kills, found, unread=facts.why("kills", "memory"),
            cause=f"the kernel ended {found} processes of this control group since it was created",
            fix="raise the group's memory limit, or lower the settings of buffers",
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
        f"{format_quantity(used, 'bytes')} of {size} are in use; reading a page back from swap"
        " stalls the process",
        "sysctl -w vm.swappiness=1, or swapoff -a if there is enough memory",
    )  # fmt: skip


def _huge_pages(facts: HostFacts, rule: Rule) -> Layer:
    mode = facts.memory.huge_pages
    if mode is None:
        return unknown(rule, facts.why("transparent_hugepage"))
    if mode != "always":
        return informed(rule, mode, "ok", f"{mode}: used only for processes that request them")
    return informed(
        rule, mode, "note", "always: the kernel may stop a process while it merges pages",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip


def task_layers(facts: HostFacts, need: Need, chain: str, who: str) -> tuple[Layer, ...]:
    limits = [
        limit for limit in (facts.group.tasks_max, facts.limits.processes) if limit is not None
    ]
    tasks = Rule(
        f"{who}_threads", f"threads of the {who}", chain, need.formula,
        "cgroups(7), pids.max; getrlimit(2)", setting="pids.max, RLIMIT_NPROC",
    )  # fmt: skip
    maps = Rule(
        f"{who}_mappings", f"memory mappings of the {who}", chain, "libraries, buffers and rings",
        "Linux: sysctl/vm, max_map_count", setting="vm.max_map_count",
    )  # fmt: skip
    running = "" if facts.group.tasks is None else f"the group runs {facts.group.tasks} threads"
    return (
        judged(
            tasks, min(limits) if limits else None, need.value,
            unread=facts.why("pids", "limits"), detail=running,
            cause="the process stops if it cannot start a thread",
            fix=f"set pids.max (TasksMax=) and ulimit -u to {need.value} or more",
            fixes=(Fix("ulimit", "-u", need.value),),
        ),
        sysctl_layer(facts, maps, MAPS),
    )  # fmt: skip


def cpu_layers(facts: HostFacts, inputs: CheckHostInputs, chain: str) -> tuple[Layer, ...]:
    quota = Rule(
        "cpu_quota_stall_ms", "stall caused by the CPU quota", chain, "stall",
        f"Linux: sched-bwc; {ARTICLE}, stalls", unit="ms", setting="cpu.max",
        reading="period − quota ÷ CPUs", short="warn", most=True,
    )  # fmt: skip
    throttled = Rule(
        "cpu_throttled_periods", "throttled periods", chain, "nr_throttled of cpu.stat",
        "Linux: sched-bwc", unit="periods", short="warn",
    )  # fmt: skip
    steal = Rule(
        "cpu_steal_ratio", "stolen CPU time", chain, "0.01", "proc(5), stat", short="warn",
        most=True, reading="steal ÷ all time of /proc/stat since boot",
    )  # fmt: skip
    return (
        judged(
            quota, _quota_stall_ms(facts), inputs.stall_ms, unread=facts.why("cpu"),
            cause="if all CPUs are busy, the kernel stops the group until the end of the period",
            fix="set a larger quota (CPUQuota=, --cpus), or use CPU shares instead of a quota",
        ),
        _throttled(facts, throttled),
        judged(
            steal, facts.processors.steal_ratio, STEAL_WARN_RATIO, unread=facts.why("stat"),
            cause="the hypervisor gives the CPUs to other instances; no setting of this host can"
            " prevent that",
            fix="use an instance with dedicated CPUs",
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
            f"{significant(count)} of {significant(group.periods or count)} periods were"
            f" throttled, {away} in total"
        )
    return counted(
        rule, count, unread=facts.why("cpu"), cause=cause,
        fix="set a larger quota (CPUQuota=, --cpus), or use fewer threads",
    )  # fmt: skip


TAIL: Final = 4
"""Maximum 99th percentile of a sync, as a multiple of the maximum median."""

NETWORK_FILE_SYSTEMS: Final = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre")
VOLATILE_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
SLOW_CLOCKS: Final = ("acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit")
UNSAFE_OPTIONS: Final[Mapping[str, str]] = {
    "nobarrier": "a sync does not reach the disk",
    "barrier=0": "a sync does not reach the disk",
    "data=writeback": "a file may contain old bytes after a crash",
}

_MEDIAN: Final = "sync of the data directory"
_TAIL: Final = Rule(
    "sync_p99_ms", "slowest syncs (p99)", BROKER, f"{TAIL} × the maximum median",
    "fdatasync(2), measured", unit="ms", most=True, short="warn",
)  # fmt: skip
_INODES: Final = Rule(
    "free_inodes", "free inodes", BROKER, "open.files.max, the maximum number of open files",
    "statvfs(3); StorageSettings", short="warn",
)  # fmt: skip
_KIND: Final = Rule(
    "file_system", "file system", BROKER, "type and options of the mount",
    "mount(8), proc(5), mountinfo",
)  # fmt: skip
_DIRTY: Final = Rule(
    "dirty_bytes", "maximum of unwritten pages", BROKER, "log.checkpoint.bytes",
    "Linux: sysctl/vm, dirty_ratio; StorageSettings", unit="bytes", short="warn",
    setting="vm.dirty_ratio", reading="dirty_bytes, or dirty_ratio × available memory",
)  # fmt: skip
_IO: Final = Rule("io_limits", "I/O limits", BROKER, "io.max (v1: blkio.throttle)", "cgroups(7)")
_SOURCE: Final = Rule(
    "clock_source", "clock source", BROKER, "clocksource0/current_clocksource", "Linux: timekeeping"
)
_ERROR: Final = Rule(
    "clock_error_ms", "clock error", BROKER, "clock-error",
    "adjtimex(2): STA_UNSYNC, esterror, offset", unit="ms", short="warn",
    reading="the larger of the estimated error and the offset", most=True,
)  # fmt: skip


def disk_layers(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    wanted_ms, reason = sync_wanted_ms(configured, inputs)
    median = Rule(
        "sync_p50_ms", _MEDIAN, BROKER, reason, "fdatasync(2) after 4 KiB, measured; settings",
        unit="ms", most=True,
    )  # fmt: skip
    disk, why = facts.disk or Disk(directory=""), facts.why("sync", "disk")
    policy = configured.storage.log_flush_policy
    at = disk.measured_in or disk.directory
    detail = f"of {disk.syncs} in {at}" if disk.syncs else ""
    if disk.syncs and at != disk.directory:
        detail += f", because {disk.directory} does not exist"
    fix = "use a faster disk, a disk with a protected write cache, or another log.flush.policy"
    return (
        judged(
            median, disk.sync_p50_ms, wanted_ms, unread=why, detail=detail, fix=fix,
            cause=f"with log.flush.policy = {policy}, writes wait for a sync",
        ),
        judged(
            _TAIL, disk.sync_p99_ms, TAIL * wanted_ms, unread=why, detail=detail, fix=fix,
            cause="the slowest acknowledgements wait this long",
        ),
        *_space(facts, configured),
        _file_system(facts),
        _dirty(facts, configured),
        _io_limits(facts),
    )  # fmt: skip


def _space(facts: HostFacts, configured: Configured) -> tuple[Layer, ...]:
    need = broker_disk(configured)
    space = Rule(
        "free_disk_bytes", "free disk", BROKER, need.formula,
        "statvfs(3); StorageSettings, log.segment.bytes", unit="bytes",
    )  # fmt: skip
    disk, why = facts.disk or Disk(directory=""), facts.why("disk")
    return (
        judged(
            space, disk.free_bytes, need.value, unread=why,
            cause="the broker stops if it cannot write the journal or a segment",
            fix="free disk space, or lower retention.bytes and retention.ms",
        ),
        judged(
            _INODES, disk.free_inodes, configured.storage.open_files_max, unread=why,
            cause="the broker needs inodes to create segments and indexes",
            fix="use larger segments (segment.bytes), or a file system with more inodes",
        ),
    )  # fmt: skip


def _file_system(facts: HostFacts) -> Layer:
    disk = facts.disk
    if disk is None or disk.file_system is None:
        return unknown(_KIND, facts.why("mount", "disk"))
    kind = disk.file_system
    where = f"{kind} at {disk.mount_point}"
    flaws = [why for option, why in UNSAFE_OPTIONS.items() if option in disk.options]
    if "ro" in disk.options:
        return informed(_KIND, kind, "fail", f"{where} is mounted read-only", "mount it read-write")
    if kind in VOLATILE_FILE_SYSTEMS:
        return informed(
            _KIND, kind, "warn", f"{where} is in memory; acknowledged records are lost after a"
            " restart of the host",
            "put log.dirs on a disk",
        )  # fmt: skip
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return informed(
            _KIND, kind, "warn", f"{where} is a network file system; locks and syncs depend on"
            " the network",
            "put log.dirs on a local disk of this host",
        )  # fmt: skip
    if flaws:
        return informed(
            _KIND, kind, "warn", f"{where}: {'; '.join(flaws)}", "mount it without this option"
        )
    if kind == "overlay":
        return informed(
            _KIND, kind, "note", f"{where} is the container's own layer, which is removed with"
            " the container",
            "put log.dirs on a volume",
        )  # fmt: skip
    return informed(_KIND, kind, "ok", where)


def _dirty(facts: HostFacts, configured: Configured) -> Layer:
    needed = configured.storage.log_checkpoint_bytes
    return judged(
        _DIRTY, _dirty_bytes(facts), needed, unread=facts.why("vm.dirty_ratio", "meminfo"),
        cause="the kernel blocks writers before a checkpoint syncs the pages",
        fixes=(Fix("sysctl", "vm.dirty_bytes", needed),),
    )  # fmt: skip


def _dirty_bytes(facts: HostFacts) -> int | None:
    """Return the number of dirty bytes at which the kernel blocks writers.

    It is `vm.dirty_bytes` if set, or else `vm.dirty_ratio` of the available memory.
    """
    given, percent = facts.sysctl("vm.dirty_bytes"), facts.sysctl("vm.dirty_ratio")
    if given:
        return given
    available = facts.memory.available_bytes
    if percent is None or available is None:
        return None
    return available * percent // 100


def _io_limits(facts: HostFacts) -> Layer:
    limits = facts.group.io_limits
    if not limits:
        version = facts.group.version
        if not version:
            return unknown(_IO, facts.why("cgroup"))
        return informed(_IO, "none", "ok", "none set")
    return informed(
        _IO, "; ".join(limits), "note",
        f"{'; '.join(limits)}; the kernel delays syncs that exceed these limits",
        "measure the latency of syncs under load, and raise io.max if they are slow",
    )  # fmt: skip


def clock_layers(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    return _clock_source(facts), _clock_error(facts, inputs)


def _clock_source(facts: HostFacts) -> Layer:
    source = facts.clock.source
    if source is None:
        return unknown(_SOURCE, facts.why("clocksource"))
    if source in SLOW_CLOCKS:
        return informed(
            _SOURCE, source, "warn", f"{source} is slow; each read of the clock is a system call",
            "use tsc or the hypervisor's clock (kernel option clocksource=)",
        )  # fmt: skip
    return informed(_SOURCE, source, "ok", source)


def _clock_error(facts: HostFacts, inputs: CheckHostInputs) -> Layer:
    clock = facts.clock
    if clock.synchronised is None:
        return unknown(_ERROR, facts.why("adjtimex"), inputs.clock_error_ms)
    if not clock.synchronised:
        return Layer(
            rule=_ERROR, found=None, needed=inputs.clock_error_ms, severity="warn",
            cause="the kernel's clock is not synchronised; timestamps and retention by time"
            " become wrong",
            fix="run chrony or systemd-timesyncd",
        )  # fmt: skip
    error_ms = max(abs(clock.offset_ms or 0.0), clock.error_ms or 0.0)
    return judged(
        _ERROR, error_ms, inputs.clock_error_ms, detail="synchronised",
        cause="timestamps and retention by time are wrong by this amount",
        fix="check `chronyc tracking`, or the servers of systemd-timesyncd",
    )  # fmt: skip
