"""Data directory: sync latency, free space, file system; and the clock.

With `log.flush.policy = group` no produce request is answered before a sync. A median above the
interval in which an object gathers means that syncs, not the interval, determine the pace.

Source: fdatasync(2), statvfs(3), mount(8); Linux: sysctl/vm, dirty_ratio; adjtimex(2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.planner.host_check.facts import Disk, HostFacts
from penstock.planner.host_check.inputs import (
    CheckHostInputs,
    Configured,
    broker_disk,
    sync_wanted_ms,
)
from penstock.planner.host_check.layers import BROKER, Fix, Layer, Rule, informed, judged, unknown

TAIL: Final = 4
"""Allowed 99th percentile, as a multiple of the allowed median."""

NETWORK_FILE_SYSTEMS: Final = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "lustre")
VOLATILE_FILE_SYSTEMS: Final = ("tmpfs", "ramfs")
SLOW_CLOCKS: Final = ("acpi_pm", "hpet", "jiffies", "refined-jiffies", "pit")
UNSAFE_OPTIONS: Final[Mapping[str, str]] = {
    "nobarrier": "a sync does not reach the disk",
    "barrier=0": "a sync does not reach the disk",
    "data=writeback": "after a crash a file may hold old bytes",
}

_MEDIAN: Final = "sync of the data directory"
_TAIL: Final = Rule(
    name="sync_p99_ms", label="slowest syncs (p99)", chain=BROKER, unit="ms", most=True,
    formula=f"{TAIL} × the allowed median", source="fdatasync(2), measured", short="warn",
)  # fmt: skip
_INODES: Final = Rule(
    name="free_inodes", label="free inodes", chain=BROKER, short="warn",
    formula="open.files.max: as many files as may be open", source="statvfs(3); StorageSettings",
)  # fmt: skip
_KIND: Final = Rule(
    name="file_system", label="file system", chain=BROKER, formula="type and options of the mount",
    source="mount(8), proc(5), mountinfo",
)  # fmt: skip
_DIRTY: Final = Rule(
    name="dirty_bytes", label="unwritten pages allowed", chain=BROKER, unit="bytes", short="warn",
    setting="vm.dirty_ratio",
    formula="log.checkpoint.bytes", reading="dirty_bytes, or dirty_ratio × available memory",
    source="Linux: sysctl/vm, dirty_ratio; StorageSettings",
)  # fmt: skip
_IO: Final = Rule(
    name="io_limits", label="I/O limits", chain=BROKER, formula="io.max (v1: blkio.throttle)",
    source="cgroups(7)",
)  # fmt: skip
_SOURCE: Final = Rule(
    name="clock_source", label="clock source", chain=BROKER,
    formula="clocksource0/current_clocksource", source="Linux: timekeeping",
)  # fmt: skip
_ERROR: Final = Rule(
    name="clock_error_ms", label="error of the clock", chain=BROKER, unit="ms", short="warn",
    formula="clock-error", reading="the larger of estimated error and offset", most=True,
    source="adjtimex(2): STA_UNSYNC, esterror, offset",
)  # fmt: skip


def disk_layers(
    facts: HostFacts, configured: Configured, inputs: CheckHostInputs
) -> tuple[Layer, ...]:
    wanted_ms, reason = sync_wanted_ms(configured, inputs)
    median = Rule(
        name="sync_p50_ms", label=_MEDIAN, chain=BROKER, unit="ms", most=True,
        formula=reason, source="fdatasync(2) after 4 KiB, measured; settings",
    )  # fmt: skip
    disk, why = facts.disk or Disk(directory=""), facts.why("sync", "disk")
    policy = configured.storage.log_flush_policy
    at = disk.measured_in or disk.directory
    detail = f"of {disk.syncs} in {at}" if disk.syncs else ""
    if disk.syncs and at != disk.directory:
        detail += f", since {disk.directory} does not exist"
    fix = "a faster disk, one with a protected write cache, or another log.flush.policy"
    return (
        judged(
            median, disk.sync_p50_ms, wanted_ms, unread=why, detail=detail, fix=fix,
            cause=f"with log.flush.policy = {policy} writes wait for it",
        ),
        judged(
            _TAIL, disk.sync_p99_ms, TAIL * wanted_ms, unread=why, detail=detail, fix=fix,
            cause="the slowest acknowledgements wait so long",
        ),
        *_space(facts, configured),
        _file_system(facts),
        _dirty(facts, configured),
        _io_limits(facts),
    )  # fmt: skip


def _space(facts: HostFacts, configured: Configured) -> tuple[Layer, ...]:
    need = broker_disk(configured)
    space = Rule(
        name="free_disk_bytes", label="free disk", chain=BROKER, unit="bytes",
        formula=need.formula, source="statvfs(3); StorageSettings, log.segment.bytes",
    )  # fmt: skip
    disk, why = facts.disk or Disk(directory=""), facts.why("disk")
    return (
        judged(
            space, disk.free_bytes, need.value, unread=why,
            cause="the broker stops when the journal or a segment cannot be written",
            fix="free some, or lower retention.bytes and retention.ms",
        ),
        judged(
            _INODES, disk.free_inodes, configured.storage.open_files_max, unread=why,
            cause="new segments and indexes cannot be made without inodes",
            fix="larger segments (segment.bytes), or a file system with more inodes",
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
            _KIND, kind, "warn", f"{where}: acknowledged records are lost after a restart",
            "put log.dirs on a disk",
        )  # fmt: skip
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return informed(
            _KIND, kind, "warn", f"{where}: locks and syncs go over a network",
            "put log.dirs on a disk of this host",
        )  # fmt: skip
    if flaws:
        return informed(_KIND, kind, "warn", f"{where}: {'; '.join(flaws)}", "mount without it")
    if kind == "overlay":
        return informed(
            _KIND, kind, "note", f"{where}: the container's own layer, which goes with it",
            "put log.dirs on a volume",
        )  # fmt: skip
    return informed(_KIND, kind, "ok", where)


def _dirty(facts: HostFacts, configured: Configured) -> Layer:
    needed = configured.storage.log_checkpoint_bytes
    return judged(
        _DIRTY, _dirty_bytes(facts), needed, unread=facts.why("vm.dirty_ratio", "meminfo"),
        cause="the kernel holds writers up before a checkpoint would sync",
        fixes=(Fix(kind="sysctl", key="vm.dirty_bytes", value=needed),),
    )  # fmt: skip


def _dirty_bytes(facts: HostFacts) -> int | None:
    """Return the first setting that is set; a ratio is one of the available memory."""
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
        f"{'; '.join(limits)}: syncs beyond it wait",
        "measure with a load, and raise io.max if syncs become slow",
    )  # fmt: skip


def clock_layers(facts: HostFacts, inputs: CheckHostInputs) -> tuple[Layer, ...]:
    return _clock_source(facts), _clock_error(facts, inputs)


def _clock_source(facts: HostFacts) -> Layer:
    source = facts.clock.source
    if source is None:
        return unknown(_SOURCE, facts.why("clocksource"))
    if source in SLOW_CLOCKS:
        return informed(
            _SOURCE, source, "warn", f"{source}: every look at the clock is a slow call",
            "choose tsc or the hypervisor's clock (kernel option clocksource=)",
        )  # fmt: skip
    return informed(_SOURCE, source, "ok", source)


def _clock_error(facts: HostFacts, inputs: CheckHostInputs) -> Layer:
    clock = facts.clock
    if clock.synchronised is None:
        return unknown(_ERROR, facts.why("adjtimex"), inputs.clock_error_ms)
    if not clock.synchronised:
        return Layer(
            rule=_ERROR, found=None, needed=inputs.clock_error_ms, severity="warn",
            cause="the kernel's clock is not synchronised: timestamps and retention by time drift",
            fix="run chrony or systemd-timesyncd",
        )  # fmt: skip
    error_ms = max(abs(clock.offset_ms or 0.0), clock.error_ms or 0.0)
    return judged(
        _ERROR, error_ms, inputs.clock_error_ms, detail="synchronised",
        cause="timestamps and retention by time are off by as much",
        fix="look at `chronyc tracking`, or at the servers of systemd-timesyncd",
    )  # fmt: skip
