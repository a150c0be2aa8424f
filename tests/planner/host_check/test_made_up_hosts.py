"""Hosts with one defect each: the reported layer, cause and command."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.planner.host_check import (
    AGENT,
    BROKER,
    CHAIN_WORDS,
    CHAINS,
    UNLIMITED,
    CheckHostInputs,
    ClockState,
    ControlGroup,
    Datagrams,
    Grant,
    HostFacts,
    Memory,
    Softirq,
    check_host,
    first_broken,
    host_layers,
)
from penstock.planner.quantities import ImpossiblePlan, read_inputs
from penstock.planner.results import Plan

from .hosts import DEFAULTS, DISK, GIB, GROUP, HOST, NIC, SIDE, SYSCTLS, layers_of


def with_sysctl(name: str, *numbers: int) -> HostFacts:
    return replace(HOST, sysctls={**SYSCTLS, name: numbers})


ALL = CheckHostInputs(chains=CHAIN_WORDS)


def checked(facts: HostFacts, **inputs: Any) -> Plan:
    return check_host(facts, DEFAULTS, CheckHostInputs(**{"chains": CHAIN_WORDS, **inputs}))


def text_of(plan: Plan) -> str:
    return "".join([snippet.text for snippet in plan.snippets])


def test_a_good_host_has_no_flaw() -> None:
    plan = checked(HOST)
    assert [finding for finding in plan.findings if finding.severity != "ok"] == []
    assert not plan.failed
    assert plan.value("first_broken_layer") == "none"
    assert plan.value("unknown_layers") == 0
    assert plan.snippets == ()
    assert plan.findings[0].subject == "the chain"
    names = [figure.name for figure in plan.figures]
    assert len(names) == len(set(names))
    subjects = [finding.subject for finding in plan.findings]
    assert len(subjects) == len(set(subjects))
    assert all(figure.formula and figure.source for figure in plan.figures)


def test_layers_come_outermost_first() -> None:
    layers = host_layers(HOST, DEFAULTS, ALL)
    chains = [CHAINS.index(layer.rule.chain) for layer in layers]
    assert chains == sorted(chains)
    order = [layer.rule.name for layer in layers]
    path = ["rx_ring_entries", "softirq_backlog_packets", "rmem_max_bytes",
            "udp_receive_buffer_bytes", "term_bytes", "listen_backlog_connections",
            "broker_descriptors", "broker_memory_bytes", "cpu_quota_stall_ms", "sync_p50_ms",
            "clock_error_ms", "unix_backlog_connections"]  # fmt: skip
    assert [name for name in order if name in path] == path


FLAWS: dict[str, tuple[HostFacts, str, str, str]] = {
    "small MTU": (
        replace(HOST, interface=replace(NIC, mtu_bytes=1400)),
        "mtu_bytes", "warn", "ip link set dev eth0 mtu 1436",
    ),
    "slow link": (
        replace(HOST, interface=replace(NIC, speed_bits=1_000_000_000)),
        "link_bits_per_second", "warn", "faster interface",
    ),
    "packets rationed": (
        replace(HOST, interface=replace(NIC, allowances={"pps_allowance_exceeded": 7})),
        "allowance_exceeded_packets", "warn", "packets are rationed",
    ),
    "small ring": (
        replace(HOST, interface=replace(NIC, rx_ring=512, rx_ring_max=4096)),
        "rx_ring_entries", "fail", "ethtool -G eth0 rx 4096 (traffic stops for a moment)",
    ),
    "small ring that cannot grow": (
        replace(HOST, interface=replace(NIC, rx_ring=256, rx_ring_max=256)),
        "rx_ring_entries", "fail", "an instance with a larger ring",
    ),
    "overruns counted": (
        replace(HOST, interface=replace(NIC, drops={"rx_overruns": 3})),
        "nic_dropped_packets", "warn", "a larger ring",
    ),
    "idle queues": (
        replace(HOST, interface=replace(NIC, queues=2)),
        "rx_queues", "note", "ethtool -L eth0 combined 8",
    ),
    "small backlog": (
        with_sysctl("net.core.netdev_max_backlog", 300),
        "softirq_backlog_packets", "warn", "sysctl -w net.core.netdev_max_backlog=1000",
    ),
    "softirq drops": (
        replace(HOST, softirq=Softirq(processed=10**6, dropped=9, squeezed=0)),
        "softirq_dropped_packets", "warn", "netdev_max_backlog",
    ),
    "squeezed turns": (
        replace(HOST, softirq=Softirq(processed=1000, dropped=0, squeezed=50)),
        "softirq_squeezed_ratio", "note", "netdev_budget",
    ),
    "little memory for datagrams": (
        with_sysctl("net.ipv4.udp_mem", 10, 20, 40),
        "udp_memory_bytes", "fail", "sysctl -w net.ipv4.udp_mem='10 20 128'",
    ),
    "full socket buffers": (
        replace(HOST, datagrams=Datagrams(received=100, buffer_errors=4)),
        "udp_buffer_errors_packets", "warn", "SO_RCVBUF",
    ),
    "short listen queue": (
        with_sysctl("net.core.somaxconn", 128),
        "listen_backlog_connections", "warn", "sysctl -w net.core.somaxconn=1024",
    ),
    "small TCP buffers": (
        with_sysctl("net.ipv4.tcp_rmem", 4096, 65_536, 131_072),
        "tcp_receive_buffer_bytes", "warn", "net.ipv4.tcp_rmem='4096 65536 262144'",
    ),
    "few descriptors": (
        replace(HOST, limits=replace(HOST.limits, files=1024)),
        "broker_descriptors", "fail", "ulimit -n 14304, or LimitNOFILE=14304 in the service",
    ),
    "few descriptors for ever": (
        replace(HOST, limits=replace(HOST.limits, files=1024, files_hard=4096)),
        "broker_descriptors", "fail", "as root: ulimit -n 14304",
    ),
    "few descriptors in all": (
        with_sysctl("fs.file-max", 5000),
        "broker_descriptors_of_the_system", "fail", "sysctl -w fs.file-max=14304",
    ),
    "small control group": (
        replace(HOST, group=replace(GROUP, memory_max_bytes=1 * GIB)),
        "broker_memory_bytes", "fail", "memory.max to 1635778560 or more",
    ),
    "small host": (
        replace(HOST, memory=replace(HOST.memory, total_bytes=GIB, available_bytes=2 * GIB)),
        "broker_memory_bytes", "fail", "lower the settings",
    ),
    "full host": (
        replace(HOST, memory=replace(HOST.memory, available_bytes=GIB)),
        "broker_memory_available_bytes", "warn", "stop other processes",
    ),
    "killed before": (
        replace(HOST, group=replace(GROUP, kills=2)),
        "memory_kills", "warn", "memory limit",
    ),
    "swapping": (
        replace(HOST, memory=replace(HOST.memory, swap_bytes=GIB, swap_used_bytes=1 << 20)),
        "swap_used_bytes", "note", "vm.swappiness=1",
    ),
    "huge pages": (
        replace(HOST, memory=replace(HOST.memory, huge_pages="always")),
        "huge_pages", "note", "echo madvise",
    ),
    "few threads": (
        replace(HOST, group=replace(GROUP, tasks_max=10)),
        "broker_threads", "fail", "pids.max",
    ),
    "few mappings": (
        with_sysctl("vm.max_map_count", 100),
        "broker_mappings", "fail", "sysctl -w vm.max_map_count=1024",
    ),
    "small quota": (
        replace(HOST, group=replace(GROUP, quota_us=100_000, period_us=100_000)),
        "cpu_quota_stall_ms", "warn", "a larger quota",
    ),
    "throttled": (
        replace(
            HOST,
            group=replace(GROUP, periods=900, throttled_periods=30, throttled_us=2_500_000),
        ),
        "cpu_throttled_periods", "warn", "fewer threads",
    ),
    "stolen": (
        replace(HOST, processors=replace(HOST.processors, steal_ratio=0.05)),
        "cpu_steal_ratio", "warn", "dedicated CPUs",
    ),
    "slow disk": (
        replace(HOST, disk=replace(DISK, sync_p50_ms=12.0, sync_p99_ms=18.0)),
        "sync_p50_ms", "fail", "a faster disk",
    ),
    "uneven disk": (
        replace(HOST, disk=replace(DISK, sync_p99_ms=80.0)),
        "sync_p99_ms", "warn", "a faster disk",
    ),
    "full disk": (
        replace(HOST, disk=replace(DISK, free_bytes=GIB)),
        "free_disk_bytes", "fail", "retention.bytes",
    ),
    "no inodes": (
        replace(HOST, disk=replace(DISK, free_inodes=12)),
        "free_inodes", "warn", "larger segments",
    ),
    "memory for a disk": (
        replace(HOST, disk=replace(DISK, file_system="tmpfs")),
        "file_system", "warn", "put log.dirs on a disk",
    ),
    "disk over a network": (
        replace(HOST, disk=replace(DISK, file_system="nfs4")),
        "file_system", "warn", "disk of this host",
    ),
    "read-only disk": (
        replace(HOST, disk=replace(DISK, options=("ro",))),
        "file_system", "fail", "read-write",
    ),
    "no barriers": (
        replace(HOST, disk=replace(DISK, options=("rw", "nobarrier"))),
        "file_system", "warn", "mount it without",
    ),
    "layer of a container": (
        replace(HOST, disk=replace(DISK, file_system="overlay")),
        "file_system", "note", "a volume",
    ),
    "few dirty pages": (
        with_sysctl("vm.dirty_bytes", 1 << 20),
        "dirty_bytes", "warn", "sysctl -w vm.dirty_bytes=268435456",
    ),
    "slow I/O by decree": (
        replace(HOST, group=replace(GROUP, io_limits=("io.max 8:0 wiops=100",))),
        "io_limits", "note", "raise io.max",
    ),
    "slow clock": (
        replace(HOST, clock=replace(HOST.clock, source="acpi_pm")),
        "clock_source", "warn", "tsc",
    ),
    "unsynchronised clock": (
        replace(HOST, clock=ClockState(source="tsc", synchronised=False)),
        "clock_error_ms", "warn", "chrony",
    ),
    "wrong clock": (
        replace(HOST, clock=replace(HOST.clock, offset_ms=-9_000.0)),
        "clock_error_ms", "warn", "chronyc tracking",
    ),
    "socket over a network": (
        replace(HOST, socket_file_system="nfs4"),
        "socket_file_system", "fail", "host.socket.path",
    ),
    "no room for a datagram": (
        with_sysctl("net.core.wmem_max", 1024),
        "udp_send_buffer_bytes", "fail", "sysctl -w net.core.wmem_max=1408",
    ),
    "small buffers of answers": (
        with_sysctl("net.core.wmem_max", 131_072),
        "agent_unix_send_buffer_bytes", "warn", "sysctl -w net.core.wmem_max=262144",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_named(name: str) -> None:
    facts, layer_name, severity, fix = FLAWS[name]
    layer = layers_of(facts)[layer_name]
    assert layer.severity == severity
    assert fix in layer.fix
    assert layer.cause
    plan = checked(facts)
    assert plan.failed is (severity == "fail")
    if severity in ("fail", "warn"):
        assert plan.findings[0].severity == severity
        assert plan.value("first_broken_layer") == layer.rule.label
    for change in layer.fixes:
        assert change.key in text_of(plan)


def test_a_ring_that_holds_may_still_grow() -> None:
    layer = layers_of(HOST)["rx_ring_entries"]
    assert layer.severity == "ok"
    assert "the card takes up to 16384" in layer.cause


def test_a_cap_that_still_holds_the_window_is_a_warning() -> None:
    """The socket requests 2 windows, and the ceiling is between 1 and 2."""
    facts = with_sysctl("net.core.rmem_max", 212_992)
    layers = layers_of(facts)
    cap, buffer = layers["rmem_max_bytes"], layers["udp_receive_buffer_bytes"]
    assert cap.severity == "warn"
    assert "cuts the request to 208 KiB without an error, which still holds" in cap.cause
    assert (buffer.severity, buffer.found) == ("ok", 212_992)
    assert "sysctl -w net.core.rmem_max=262144\n" in text_of(checked(facts))


def test_a_cap_below_the_window_breaks_the_chain() -> None:
    facts = with_sysctl("net.core.rmem_max", 65_536)
    layers = layers_of(facts)
    assert layers["rmem_max_bytes"].severity == "fail"
    assert "which does not hold the window of 128 KiB" in layers["rmem_max_bytes"].cause
    assert layers["udp_receive_buffer_bytes"].severity == "fail"
    assert layers["udp_receive_buffer_bytes"].found == 65_536
    assert checked(facts).value("first_broken_layer") == "ceiling of socket buffers"


def test_what_the_kernel_granted_wins_over_what_was_reckoned() -> None:
    grant = Grant(kind="udp", option="SO_RCVBUF", asked_bytes=262_144, reported_bytes=131_072)
    layer = layers_of(replace(HOST, grants=(grant,)))["udp_receive_buffer_bytes"]
    assert (layer.severity, layer.found) == ("fail", 65_536)
    assert "asked for 262144, and the kernel reports 131072" in layer.cause


def test_an_explicit_size_of_tcp_buffers_is_capped_too() -> None:
    configured = replace(DEFAULTS, broker=replace(SIDE, receive_buffer_bytes=1 << 20))
    facts = with_sysctl("net.core.rmem_max", 300_000)
    layer = layers_of(facts, configured=configured)["tcp_receive_buffer_bytes"]
    assert (layer.severity, layer.found, layer.needed) == ("warn", 300_000, 1 << 20)
    granted = Grant(kind="tcp", option="SO_RCVBUF", asked_bytes=1 << 20, reported_bytes=2 << 20)
    layers = layers_of(replace(facts, grants=(granted,)), configured=configured)
    assert layers["tcp_receive_buffer_bytes"].severity == "ok"


@pytest.mark.parametrize(
    ("entries", "survived"),
    [(1024, "1.249 ms"), (8192, "9.99 ms")],
)
def test_the_ring_buys_time(entries: int, survived: str) -> None:
    """At 10 Gbps of 1500-byte frames, 820k packets/s: about 1.2 ms and about 10 ms."""
    facts = replace(HOST, interface=replace(NIC, rx_ring=entries))
    inputs = CheckHostInputs(packets_per_second=820_000, stall_ms=10)
    layers = layers_of(facts, inputs)
    assert layers["ring_survival_ms"].cause == f"a stall of {survived}"
    assert layers["rx_ring_entries"].needed == 8200
    assert layers["rx_ring_entries"].severity == "fail"
    enough = layers_of(replace(HOST, interface=replace(NIC, rx_ring=16_384)), inputs)
    assert enough["rx_ring_entries"].severity == "ok"
    idle = layers_of(facts, CheckHostInputs(packets_per_second=0))
    assert idle["rx_ring_entries"].severity == "ok"


def test_the_outermost_failure_comes_first_and_warnings_only_without_any() -> None:
    slow = replace(HOST, disk=replace(DISK, sync_p50_ms=12.0))
    both = replace(slow, limits=replace(HOST.limits, files=1024))
    assert checked(both).value("first_broken_layer") == "file descriptors of the broker"
    warned = replace(both, interface=replace(NIC, mtu_bytes=1400))
    assert checked(warned).value("first_broken_layer") == "file descriptors of the broker"
    assert "breaks first" in checked(warned).findings[0].cause
    only = checked(replace(HOST, interface=replace(NIC, mtu_bytes=1400)))
    assert "has the first warning" in only.findings[0].cause
    assert first_broken(host_layers(HOST, DEFAULTS, ALL)) is None


def test_chains_that_do_not_count_are_left_out() -> None:
    facts = replace(HOST, interface=replace(NIC, rx_ring=2), disk=replace(DISK, sync_p50_ms=12.0))
    plan = checked(facts, chains=("agent", "broker"))
    assert plan.value("first_broken_layer") == "sync of the data directory"
    groups = list(dict.fromkeys([figure.group for figure in plan.figures]))
    assert groups == ["Verdict", BROKER, AGENT]
    assert len(plan.charts) == 2
    assert not checked(facts, chains=("agent",)).failed


def test_the_receive_path_counts_where_it_is_asked_for() -> None:
    """Window and term are inputs of Aeron; without them only the broker's chain counts."""
    narrow = replace(HOST, interface=replace(NIC, mtu_bytes=1_400))
    plan = check_host(narrow, DEFAULTS, CheckHostInputs())
    assert plan.value("first_broken_layer") == "none"
    assert plan.findings[0].severity == "ok"
    assert [name for name in plan.answers if name.startswith("sync_")] == [
        "sync_p50_ms",
        "sync_p99_ms",
    ]
    for given in ({"window_bytes": 1 << 20}, {"mtu_bytes": 1_376}, {"packets_per_second": 5.0}):
        assert CheckHostInputs(**given).counted == ("receive-path", "broker", "agent")
    assert CheckHostInputs(chains=("receive-path",)).counted == ("receive-path",)
    assert CheckHostInputs(connections=5).counted == ("broker", "agent")


def test_a_sync_says_where_it_was_timed() -> None:
    above = replace(HOST, disk=replace(DISK, measured_in="/var/lib"))
    (told,) = [
        finding.cause
        for finding in checked(above).findings
        if finding.subject == "sync of the data directory"
    ]
    assert "of 100 in /var/lib, because /var/lib/penstock does not exist" in told


def test_the_tightest_layer_has_the_least_room() -> None:
    facts = replace(HOST, disk=replace(DISK, sync_p50_ms=4.0, sync_p99_ms=4.0))
    plan = checked(facts)
    assert plan.value("tightest_layer") == "sync of the data directory"
    assert plan.value("tightest_ratio") == pytest.approx(5 / 4)


def test_the_larger_of_two_fixes_is_typed_once() -> None:
    facts = replace(
        HOST, sysctls={**SYSCTLS, "fs.nr_open": (1000,)}, limits=replace(HOST.limits, files=100)
    )
    text = text_of(checked(facts))
    capped = checked(with_sysctl("net.core.wmem_max", 100_000))
    assert text_of(capped) == "sysctl -w net.core.wmem_max=4194304\n"
    assert text.count("fs.nr_open") == 1
    assert "sysctl -w fs.nr_open=14304\n" in text
    assert text.count("ulimit -n") == 1
    assert "ulimit -n 14304" in text


def test_a_host_that_says_nothing_is_not_judged() -> None:
    silent = HostFacts(unread={"limits": "/proc/self/limits: Permission denied"})
    plan = checked(silent)
    assert {finding.severity for finding in plan.findings[1:]} == {"ok", "note"}
    descriptors = next(
        finding for finding in plan.findings if finding.subject.startswith("file descriptors")
    )
    assert descriptors.cause == "not known: /proc/self/limits: Permission denied"
    known = {layer.rule.name for layer in host_layers(silent, DEFAULTS, ALL)
             if layer.found is not None}  # fmt: skip
    assert known == {"term_bytes"}  # which is an input
    assert plan.value("rx_ring_entries") is None
    assert not plan.failed


def test_no_limit_is_no_flaw() -> None:
    facts = replace(
        HOST,
        group=ControlGroup(version="v2", memory_max_bytes=UNLIMITED, tasks_max=UNLIMITED,
                           quota_us=UNLIMITED, kills=0, throttled_periods=0),
        limits=replace(HOST.limits, files=UNLIMITED, processes=UNLIMITED),
        memory=Memory(total_bytes=None, available_bytes=24 * GIB, swap_bytes=0, swap_used_bytes=0,
                      huge_pages="never"),
    )  # fmt: skip
    plan = checked(facts)
    assert not [finding for finding in plan.findings if finding.severity in ("warn", "fail")]
    assert plan.value("broker_descriptors") == "unlimited"
    assert plan.figure("broker_descriptors").minimum == 14_304


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            {"window": "1k"},
            r"Constraint B \(MTU ≤ initial window\): the window of 1024 bytes is below the MTU",
        ),
        (
            {"window": "4m", "so-rcvbuf": "1m"},
            r"Constraint C \(initial window ≤ SO_RCVBUF\): SO_RCVBUF of 104",
        ),
    ],
)
def test_what_no_host_can_serve_is_refused(texts: dict[str, object], why: str) -> None:
    with pytest.raises(ImpossiblePlan, match=why) as refused:
        read_inputs(CheckHostInputs, texts)
    assert refused.value.fix.startswith("give --")


def test_a_window_above_half_the_term_is_cut() -> None:
    inputs = CheckHostInputs(window_bytes=1 << 20, term_bytes=1 << 20)
    layer = layers_of(HOST, inputs)["term_bytes"]
    assert layer.severity == "warn"
    assert "the window is cut to 512 KiB" in layer.cause


def test_needs_follow_inputs() -> None:
    inputs = CheckHostInputs(
        connections=50, producers=10, sync_ms=0.1, broker_memory_bytes=20 * GIB,
        agent_memory_bytes=GIB,
    )  # fmt: skip
    layers = layers_of(HOST, inputs)
    assert layers["broker_descriptors"].needed == 50 + 128 + 4096 + 16 + 64
    assert layers["agent_descriptors"].needed == 2 * 10 + 64
    assert layers["sync_p50_ms"].severity == "fail"
    assert layers["broker_memory_bytes"].severity == "fail"
    assert layers["agent_memory_bytes"].needed == GIB


def test_bars_show_found_against_needed() -> None:
    plan = checked(with_sysctl("net.core.rmem_max", 131_072))
    assert [chart.title.partition(":")[0] for chart in plan.charts] == list(CHAINS)
    bars = {
        name: height
        for chart in plan.charts
        for name, height in zip(chart.curves[0].x, chart.curves[0].y, strict=True)
    }
    assert bars["ceiling of socket buffers"] == 0.5
    assert bars["sync of the data directory"] == 10.0  # 12.5 times, cut
    assert all(0.01 <= height <= 10 for height in bars.values())
    assert {set(chart.curves[1].y) == {1.0} for chart in plan.charts} == {True}
