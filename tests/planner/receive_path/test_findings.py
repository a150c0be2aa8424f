"""Findings of the receive path plan, its texts to paste and its curves."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.planner.quantities import read_inputs
from penstock.planner.receive_path import FAMILIES, ReceivePathInputs, plan_receive_path
from penstock.planner.receive_path.inputs import RING_MAX_ENTRIES, RING_MIN_ENTRIES
from penstock.planner.receive_path.plan import short_size, short_time
from penstock.planner.results import Finding, Plan

MIB = 1 << 20


def plan(**changes: Any) -> Plan:
    return plan_receive_path(ReceivePathInputs(**changes))


def said(found: Plan, subject: str) -> Finding:
    """Return the most severe finding of a subject."""
    return next(finding for finding in found.findings if finding.subject == subject)


@pytest.mark.parametrize(
    ("changes", "subject", "severity", "cause", "fix"),
    [
        ({"path": "cross-region", "mtu_bytes": 8192}, "MTU", "fail",
         "makes IP packets of 8220 bytes, but the path carries 1500", "aeron.mtu.length to 1408"),
        ({"path_mtu_bytes": 1200}, "MTU", "fail", "the path carries 1200",
         "aeron.mtu.length to 1152"),
        ({"mtu_bytes": 8192}, "MTU", "note", "one lost datagram loses up to 8 KiB",
         "check that every hop carries 8220 bytes (VPC: 9001)"),
        ({"mtu_bytes": 8192, "path": "cross-region", "path_mtu_bytes": 8500}, "MTU", "warn",
         "paths between regions rarely carry jumbo frames", "keep the default of 1408"),
        ({"message_bytes": 4000, "rate": 10}, "MTU", "note", "does not fit one datagram",
         "try mtu 8192"),
        ({"rate": 1e4}, "MTU", "ok", "suffices for this rate", ""),
        ({"path": "cross-region", "message_bytes": 4000, "rate": 10}, "MTU", "ok",
         "suits a path with standard frames", ""),
        ({"packets_allowed": 1e5}, "packet rate", "fail", "125,000 packets/s, with batching",
         "pps_allowance_exceeded"),
        ({"packets_allowed": 2e5}, "packet rate", "warn",
         "500,000 packets/s, without batching", "batch"),
        ({}, "packet rate", "note", "the provider's allowance is unknown", "set packets-allowed"),
        ({}, "bandwidth", "note", "is unknown; this load needs 1.218 Gbit/s", "set family"),
        ({"family": "c7i", "vcpus": 2}, "bandwidth", "warn",
         "781 Mbit/s that c7i with 2 vCPUs (Intel Xeon, Sapphire Rapids) has permanently",
         "use a larger instance"),
        ({"nic_bandwidth": 1.3e9}, "bandwidth", "warn",
         "1.416 Gbit/s received without batching exceed the 1.3 Gbit/s", "batch"),
        ({"nic_bandwidth": 2e9, "transport": "mdc", "receivers": 3}, "bandwidth", "warn",
         "3.654 Gbit/s sent by a host with all streams", "spread streams"),
        ({"message_bytes": 1376, "rate": 5e5, "stall_ms": 1}, "one flow", "warn",
         "EC2 limits a flow to 5 Gbit/s outside of a cluster placement group",
         "use a cluster placement group"),
        ({"message_bytes": 1376, "rate": 1e6, "stall_ms": 1}, "one flow", "warn",
         "to 10 Gbit/s even within a cluster placement group", "use ENA Express"),
        ({"message_bytes": 1376, "rate": 3e6, "stall_ms": 1}, "one flow", "warn",
         "to 10 Gbit/s even within a cluster placement group", "use more streams with their own"),
        ({"ring_max_entries": 1024}, "RX ring", "fail",
         "1024 entries and is full after 8.192 ms, before a stall of 10 ms ends, even with",
         "keep other work off"),
        ({"ring_max_entries": 4096}, "RX ring", "warn",
         "is full after 8.192 ms, before a stall of 10 ms ends, if messages", "batching, MTU"),
        ({"device": "ens5"}, "RX ring", "warn", "1024 entries is full after 2.048 ms",
         "ethtool -G ens5 rx 8192"),
        ({"ring_entries": 8192}, "RX ring", "note", "8192 is assumed", "ethtool -g eth0"),
        ({"streams": 3, "rate": 1e4}, "receive queues", "note", "3 flows are hashed to 8 queues",
         "ethtool -S eth0"),
        ({"receivers": 40, "transport": "multicast"}, "NAK timers", "ok",
         "prevents that 40 receivers report each loss", ""),
        ({}, "NAK timers", "ok", "a single receiver reports losses at once", ""),
        ({"rtt_us": 50_000, "rate": 1e5}, "NAK timers", "note",
         "the default linger of 10 ms is short", "aeron.retransmit.unicast.linger to 150 ms"),
        ({}, "L3 cache", "note", "size of the L3 cache is unknown", "set family, or l3"),
        ({"l3_bytes": 32 * MIB}, "L3 cache", "ok", "all logs (12 MiB) fit into 32 MiB", ""),
        ({"l3_bytes": 8 * MIB}, "L3 cache", "note", "the logs (12 MiB) do not", "shorter terms"),
        ({"l3_bytes": MIB, "streams": 20, "rate": 1e4}, "L3 cache", "warn",
         "the windows alone (2,560 KiB) exceed 1 MiB", "larger L3"),
        ({"window_bytes": 128 << 10, "rtt_us": 800}, "window", "warn",
         "128 KiB is below 256 KiB", "length to 256 KiB or more"),
        ({"window_bytes": 128 << 10, "rtt_us": 2000}, "window", "fail",
         "a window of 128 KiB carries at most 65.54 MB/s at this round trip", "1 MiB or more"),
        ({"message_bytes": 32, "so_rcvbuf_bytes": 128 << 10}, "SO_RCVBUF", "note",
         "charges about 768 bytes for each packet", "send messages in batches"),
        ({"streams": 4, "streams_per_socket": 4, "so_rcvbuf_bytes": 256 << 10}, "SO_RCVBUF",
         "fail", "it has 256 KiB, but 512 KiB", "set aeron.socket.so_rcvbuf to 1 MiB"),
        ({"rtt_us": 1000}, "rmem_max", "note", "usual default of 212,992 bytes",
         "sysctl -w net.core.rmem_max=2097152"),
    ],
)  # fmt: skip
def test_findings(
    changes: dict[str, Any], subject: str, severity: str, cause: str, fix: str
) -> None:
    found = said(plan(**changes), subject)
    assert found.severity == severity, found
    assert cause in found.cause
    assert fix in found.fix


def test_the_gravest_finding_comes_first() -> None:
    order = ["fail", "warn", "note", "ok"]
    places = [order.index(finding.severity) for finding in plan(ring_max_entries=1024).findings]
    assert places == sorted(places)
    assert plan(ring_max_entries=1024).failed
    assert not plan().failed


def test_given_buffers_bound_the_planned_window() -> None:
    wide = plan(rtt_us=1000)
    assert wide.value("initial_window_bytes") == MIB
    tight = plan(rtt_us=1000, so_rcvbuf_bytes=700_000)
    assert tight.value("initial_window_bytes") == 512 << 10
    assert tight.value("so_rcvbuf_bytes") == 700_000
    short = plan(rtt_us=1000, term_bytes=MIB, stall_ms=1)
    assert short.value("initial_window_bytes") == short.value("receiver_window_bytes") == 512 << 10


def test_every_figure_says_where_it_comes_from() -> None:
    found = plan(family="c6in", transport="mdc", receivers=3, rmem_max_bytes=8 * MIB)
    for figure in found.figures:
        assert figure.formula, figure.name
        assert figure.source, figure.name
        assert figure.group, figure.name
    names = [figure.name for figure in found.figures]
    assert len(names) == len(set(names))
    groups = [figure.group for figure in found.figures]
    assert list(dict.fromkeys(groups)) == [
        "wire", "window", "socket", "packets", "interface", "RX ring", "recovery", "cache"
    ]  # fmt: skip


def test_texts_to_paste() -> None:
    found = plan_receive_path(
        ReceivePathInputs(rtt_us=1000, device="ens5", streams=2), ("receive.bytes", "send.bytes")
    )
    aeron, sysctl, rings, sockets = found.snippets
    assert aeron.text.splitlines() == [
        "aeron.mtu.length=1408",
        "aeron.term.buffer.length=4m",
        "aeron.rcv.initial.window.length=1m",
        "aeron.socket.so_rcvbuf=2m",
        "aeron.socket.so_sndbuf=1m",
        "aeron.nak.unicast.retry.delay.ratio=2000",
        "aeron.retransmit.unicast.linger=3003us",
    ]
    assert sysctl.text == "net.core.rmem_max = 2097152\nnet.core.wmem_max = 1048576\n"
    assert "ethtool -G ens5 rx 8192 " in rings.text
    assert "ethtool -L ens5 combined 2 " in rings.text
    assert sockets.text == "receive.bytes = 2097152\nsend.bytes = 1048576\n"
    assert "combined" not in plan().snippets[2].text


def test_units_of_inputs_leave_no_crumbs() -> None:
    """60 ms are 60,000.00000000001 µs, which no timer may show."""
    texts = {"rtt": "60ms", "rate": "50k", "path": "cross-region"}
    found = plan_receive_path(read_inputs(ReceivePathInputs, texts))
    assert found.value("nak_unicast_retry_ratio") == 120_000
    assert "aeron.retransmit.unicast.linger=180003us\n" in found.snippets[0].text
    assert found.value("bdp_bytes") == 864_000


def test_sysctl_lines_never_lower_a_ceiling() -> None:
    assert plan().snippets[1].text.splitlines() == [
        "net.core.rmem_max = 262144",
        "net.core.wmem_max = 212992",
    ]
    text = plan(rmem_max_bytes=64 * MIB).snippets[1].text
    assert "net.core.rmem_max = 67108864\n" in text


@pytest.mark.parametrize(
    ("number", "text"),
    [(1408, "1408"), (1024, "1k"), (131_072, "128k"), (16 << 20, "16m"), (1 << 30, "1g"),
     (212_992, "208k"), (700_000, "700000")],
)  # fmt: skip
def test_sizes_as_properties_read_them(number: int, text: str) -> None:
    assert short_size(number) == text


@pytest.mark.parametrize(
    ("us", "text"), [(1, "1us"), (200, "200us"), (303.2, "304us"), (3000, "3ms"), (3003, "3003us")]
)
def test_times_as_properties_read_them(us: float, text: str) -> None:
    assert short_time(us) == text


def test_curves() -> None:
    sizes, ring, losses = plan(transport="mdc", receivers=2).charts
    assert sizes.marks == {"this path": 100.0}
    assert [curve.label for curve in sizes.curves] == [
        "term buffer", "SO_RCVBUF", "window, recommended", "window, least", "BDP"
    ]  # fmt: skip
    for chart in (sizes, losses):
        for curve in chart.curves:
            assert len(curve.x) == len(curve.y)
            assert list(curve.y) == sorted(curve.y)
    for curve in ring.curves:
        assert list(curve.y) == sorted(curve.y, reverse=True)
    assert ring.marks == {"batched": 125_000.0, "unbatched": 500_000.0}
    assert losses.marks == {"planned": 200.0, "default": 10_000.0}
    assert len(plan().charts) == 2


def test_families_are_sound() -> None:
    for family in FAMILIES.values():
        vcpus = [size.vcpus for size in family.sizes]
        assert vcpus == sorted(set(vcpus))
        baselines = [size.baseline_gbit for size in family.sizes]
        assert baselines == sorted(baselines)
        assert all([size.baseline_gbit <= size.burst_gbit for size in family.sizes])
        assert family.l3_bytes >= 24 * MIB
        assert RING_MIN_ENTRIES <= family.ring_default_entries <= family.ring_max_entries
        assert family.ring_max_entries <= RING_MAX_ENTRIES


@pytest.mark.parametrize(
    ("changes", "vcpus", "queues"),
    [
        ({"family": "c6in"}, 2, 2),
        ({"family": "c6i"}, 4, 4),
        ({"family": "c6i", "streams": 10}, 32, 8),
        ({"family": "c6in", "streams": 30}, 32, 30),
        ({"family": "c6in", "streams": 40}, 32, 32),
    ],
)
def test_the_smallest_size_that_carries_the_load(
    changes: dict[str, Any], vcpus: int, queues: int
) -> None:
    found = plan(**{"streams": 20, **changes}) if "streams" in changes else plan(**changes)
    assert f"with {vcpus} vCPUs" in found.figure("nic_baseline_bits_per_second").formula
    assert found.value("receive_queues") == min(queues, changes.get("streams", 1))


@pytest.mark.parametrize(
    ("family", "vcpus", "baseline", "burst"),
    [
        ("c5n", 4, 5.0, 25.0),
        ("m6i", 2, 0.781, 12.5),
        ("r6in", 96, 150.0, 150.0),
        ("c7a", 1, 0.39, 12.5),
        ("c7g", 4, 1.876, 12.5),
        ("c8g", 4, 1.875, 12.5),
        ("c8g", 192, 50.0, 50.0),
        ("c7gn", 16, 50.0, 50.0),
    ],
)
def test_bandwidths_of_public_documents(
    family: str, vcpus: int, baseline: float, burst: float
) -> None:
    (size,) = [size for size in FAMILIES[family].sizes if size.vcpus == vcpus]
    assert (size.baseline_gbit, size.burst_gbit) == (baseline, burst)


def test_other_regions_get_half_or_5_gbit() -> None:
    far = {"family": "c6in", "path": "cross-region"}
    small = plan(**far, vcpus=4).figure("nic_baseline_bits_per_second")
    large = plan(**far, vcpus=32).figure("nic_baseline_bits_per_second")
    assert (small.value, large.value) == (5e9, 25e9)
