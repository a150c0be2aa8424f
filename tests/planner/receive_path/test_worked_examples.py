"""Worked examples of "The Four Receive-Path Buffers", with their numbers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.planner.receive_path import ReceivePathInputs, plan_receive_path
from penstock.planner.receive_path.chain import (
    bandwidth_delay,
    frame,
    packets_of,
    real_rcvbuf,
    receiver_window,
    survival_s,
    term_for,
    window_of,
)
from penstock.planner.results import Finding, Plan

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TEN_GBIT = 10e9 / 8


def plan(**changes: Any) -> Plan:
    return plan_receive_path(ReceivePathInputs(**changes))


def ten_gbit(rtt_us: float, **changes: Any) -> Plan:
    """Return full datagrams of 1408 bytes at 10 Gbit/s of frames."""
    return plan(message_bytes=1376, rate=TEN_GBIT / 1408, rtt_us=rtt_us, stall_ms=0.1, **changes)


def about(found: Plan, subject: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.subject == subject]


def test_the_default_window_is_the_bdp_of_a_fast_lan() -> None:
    bdp = bandwidth_delay(TEN_GBIT, 100)
    assert bdp == 125_000
    assert window_of(bdp, 1408, 1) == 128 * KIB
    assert ten_gbit(100).value("bdp_bytes") == 125_000
    assert ten_gbit(100).figure("initial_window_bytes").minimum == 256 * KIB
    assert ten_gbit(100).value("initial_window_bytes") == 512 * KIB


def test_a_default_term_caps_the_window_at_8_mib() -> None:
    """Constraint A."""
    assert receiver_window(64 * MIB, 16 * MIB) == 8 * MIB
    assert receiver_window(128 * KIB, 16 * MIB) == 128 * KIB
    found = plan(window_bytes=64 * MIB, term_bytes=16 * MIB)
    assert found.value("receiver_window_bytes") == 8 * MIB
    (finding,) = about(found, "window")
    assert finding.severity == "warn"
    assert "Constraint A" in finding.cause
    assert "uses only 8 MiB of the 64 MiB" in finding.cause
    assert finding.fix == "set aeron.term.buffer.length to 128 MiB"


def test_a_window_of_256_kib() -> None:
    """The table: term from 512 KiB on, SO_RCVBUF from 256 KiB on, 200 µs at 10 Gbit/s."""
    found = ten_gbit(200, window_bytes=256 * KIB)
    assert found.value("initial_window_bytes") == 256 * KIB
    assert term_for(256 * KIB, 0, 1376, 1408) == 512 * KIB
    assert found.value("term_bytes") == 512 * KIB
    assert found.figure("so_rcvbuf_bytes").minimum == 256 * KIB
    assert found.value("so_rcvbuf_bytes") == 512 * KIB
    assert found.value("rmem_max_bytes") == 512 * KIB
    assert found.value("window_covers_rtt_us") == pytest.approx(209.7, abs=0.1)
    assert not found.failed
    assert ten_gbit(220, window_bytes=256 * KIB).failed


def test_the_default_term_clears_the_window_of_256_kib() -> None:
    found = ten_gbit(100, window_bytes=256 * KIB, term_bytes=16 * MIB)
    assert found.value("receiver_window_bytes") == 256 * KIB


@pytest.mark.parametrize("rtt_us", [800, 1000, 2000])
def test_between_zones_ten_gbit_need_2_mib_or_more(rtt_us: float) -> None:
    found = ten_gbit(rtt_us, path="cross-zone")
    assert window_of(bandwidth_delay(TEN_GBIT, rtt_us), 1408, 1) >= 1 * MIB
    assert found.figure("initial_window_bytes").minimum >= 2 * MIB  # type: ignore[operator]
    assert not about(found, "round trip")


def test_a_round_trip_within_a_zone_is_not_one_between_zones() -> None:
    (finding,) = about(ten_gbit(200, path="cross-zone"), "round trip")
    assert "2 MB or more" in finding.cause


def test_rings_of_ten_gbit_of_standard_frames() -> None:
    """About 820,000 packets per second; 1024 entries are 1.2 ms, 8192 are 10 ms."""
    rate = packets_of(10e9, 1518)
    assert rate == pytest.approx(820_000, rel=0.01)
    assert survival_s(1024, rate) * 1e3 == pytest.approx(1.2, abs=0.05)
    assert survival_s(8192, rate) * 1e3 == pytest.approx(10, abs=0.1)


def test_rings_of_a_plan_at_820_000_packets() -> None:
    found = plan(message_bytes=1376, rate=820_000, stall_ms=9)
    assert found.value("packets_worst_per_second") == 820_000
    assert found.value("ring_survival_ms") == pytest.approx(1.25, abs=0.01)
    assert found.value("ring_max_survival_ms") == pytest.approx(9.99, abs=0.01)
    assert found.value("ring_needed_entries") == 8192
    finding = about(found, "RX ring")[0]
    assert finding.severity == "warn"
    assert "1024 entries is full after 1.249 ms" in finding.cause
    assert "ethtool -G eth0 rx 8192" in finding.fix


def test_half_the_packets_double_the_stall_of_a_ring() -> None:
    one, two = (plan(message_bytes=size, rate=1e5) for size in (600, 1300))
    assert two.value("packets_best_per_second") == 2 * one.value("packets_best_per_second")
    assert one.value("ring_max_survival_batched_ms") == pytest.approx(
        2 * two.value("ring_max_survival_batched_ms")
    )


def test_an_mtu_of_8192_and_the_default_window() -> None:
    """Constraint B holds."""
    found = plan(mtu_bytes=8192, window_bytes=128 * KIB)
    assert found.value("initial_window_bytes") == 128 * KIB
    assert found.figure("so_sndbuf_bytes").minimum == 8192
    assert not found.failed


def test_the_default_buffers_just_pass() -> None:
    """Constraint C: the default SO_RCVBUF is the least that the default window allows."""
    found = plan(window_bytes=128 * KIB, so_rcvbuf_bytes=128 * KIB, term_bytes=16 * MIB)
    assert found.value("so_rcvbuf_real_bytes") == 128 * KIB
    assert not about(found, "SO_RCVBUF") or about(found, "SO_RCVBUF")[0].severity == "note"
    assert not found.failed


def test_a_low_rmem_max_caps_the_buffer_and_says_nothing() -> None:
    assert real_rcvbuf(2 * MIB, 212_992) == 212_992
    found = plan(window_bytes=1 * MIB, so_rcvbuf_bytes=2 * MIB, rmem_max_bytes=212_992)
    assert found.failed
    assert found.value("so_rcvbuf_real_bytes") == 212_992
    finding = about(found, "SO_RCVBUF")[0]
    assert finding.severity == "fail"
    assert "net.core.rmem_max of 208 KiB caps it" in finding.cause
    assert "it has 208 KiB, but 1 MiB" in finding.cause
    assert "up to 816 KiB (RcvbufErrors" in finding.cause
    assert finding.fix.startswith("sysctl -w net.core.rmem_max=2097152")


def test_a_cap_above_the_window_takes_only_the_headroom() -> None:
    found = plan(window_bytes=1 * MIB, so_rcvbuf_bytes=4 * MIB, rmem_max_bytes=2 * MIB)
    (finding,) = about(found, "rmem_max")
    assert finding.severity == "warn"
    assert not found.failed
    assert not about(plan(rmem_max_bytes=8 * MIB), "rmem_max")


def test_frames() -> None:
    """A header of 32 bytes, lengths in multiples of 32, fragments over the MTU less a header."""
    small = frame(256, 1408)
    assert (small.message_bytes, small.messages_per_datagram) == (288, 4)
    assert frame(1, 1408).message_bytes == 64
    assert frame(32, 1408).message_bytes == 64
    assert frame(33, 1408).message_bytes == 96
    assert frame(1376, 1408).datagrams_per_message == 1
    split = frame(1377, 1408)
    assert (split.datagrams_per_message, split.message_bytes) == (2, 1408 + 64)
    large = frame(10_000, 1408)
    assert (large.datagrams_per_message, large.message_bytes) == (8, 7 * 1408 + 416)
    assert frame(2 * 1376, 1408).message_bytes == 2 * 1408
    assert frame(8000, 8192).datagrams_per_message == 1


def test_the_default_timers() -> None:
    unicast = plan(rtt_us=40)
    assert unicast.value("nak_unicast_delay_us") == 1
    assert unicast.value("nak_unicast_retry_ratio") == 100
    assert unicast.value("lost_once_us") == 41
    group = plan(transport="multicast", receivers=12)
    assert group.value("nak_backoff_us") == 10_000
    assert group.value("nak_group_size") == 12


def test_a_default_backoff_costs_10_to_20_ms_and_a_planned_one_does_not() -> None:
    found = plan(transport="mdc", receivers=2, rtt_us=100)
    assert found.value("nak_backoff_us") == 200
    assert found.value("nak_group_size") == 2
    assert found.value("retransmit_linger_us") == 3 * (200 + 100)
    assert found.value("lost_once_us") == 300
    (finding,) = about(found, "NAK timers")
    assert "with Aeron's defaults, a loss delays 2 receivers by up to 10.1 ms" in finding.cause
    assert "With the planned timers it is 300 µs" in finding.cause
    text = found.snippets[0].text
    assert "aeron.nak.multicast.max.backoff=200us\n" in text
    assert "aeron.nak.multicast.group.size=2\n" in text
    assert "aeron.retransmit.unicast.linger=900us\n" in text


@pytest.mark.parametrize("rtt_us", [10, 50, 100, 500])
def test_small_groups_wait_100_us_to_1_ms(rtt_us: float) -> None:
    found = plan(transport="multicast", receivers=3, rtt_us=rtt_us)
    assert 100 <= found.value("nak_backoff_us") <= 1000
    assert found.value("nak_backoff_us") >= 2 * rtt_us


def test_one_stream_lands_in_one_queue() -> None:
    assert plan(rx_queues=32).value("receive_queues") == 1
    assert plan(streams=4, rx_queues=32).value("receive_queues") == 4
    assert plan(streams=4, streams_per_socket=4, rx_queues=32).value("receive_queues") == 1


def test_the_term_holds_twice_what_comes_in_a_stall() -> None:
    found = plan(message_bytes=224, rate=1_000_000, stall_ms=20)
    assert found.value("stream_bytes_per_second") == 256e6
    assert found.value("term_bytes") == 16 * MIB
    assert found.value("term_covers_stall_ms") >= 20
    (finding,) = [
        finding
        for finding in about(plan(message_bytes=224, rate=1e6, stall_ms=20, term_bytes=8 * MIB),
                         "term buffer")
    ]  # fmt: skip
    assert finding.severity == "warn"
    assert finding.fix == "set aeron.term.buffer.length to 16 MiB"


def test_packet_rates_by_batching() -> None:
    found = plan(message_bytes=256, rate=500_000)
    assert found.value("packets_best_per_second") == 125_000
    assert found.value("packets_worst_per_second") == 500_000
    jumbo = plan(message_bytes=256, rate=500_000, mtu_bytes=8192)
    assert jumbo.value("packets_best_per_second") == pytest.approx(500_000 / 28)
    split = plan(message_bytes=10_000, rate=1_000)
    assert split.value("packets_best_per_second") == split.value("packets_worst_per_second") == 8000
