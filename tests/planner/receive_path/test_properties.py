"""Constraints hold for every plan, and monotonic relations hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.planner.receive_path import FAMILIES, ReceivePathInputs, plan_receive_path
from penstock.planner.receive_path.chain import (
    Chain,
    broken_constraints,
    frame,
    plan_chain,
    plan_timers,
)
from penstock.planner.receive_path.inputs import (
    SOCKET_BUFFER_MAX_BYTES,
    TERM_MAX_BYTES,
    TERM_MIN_BYTES,
    WINDOW_DEFAULT_BYTES,
)
from penstock.planner.receive_path.plan import broken_findings
from penstock.planner.receive_path.sizing import Sizing, size_receive_path

mtus = st.integers(2, 2047).map(lambda frames: frames * 32)
messages = st.integers(1, 4 << 20)


@st.composite
def traffic_of(draw: st.DrawFn) -> ReceivePathInputs:
    """Return traffic that usually has a plan: up to 2 GB/s, with a stall that fits half a term."""
    size, mtu = draw(messages), draw(mtus)
    length = frame(size, mtu).message_bytes
    rate = max(1.0, draw(st.floats(1, 2e9)) / length)
    stream = rate * length
    return ReceivePathInputs(
        message_bytes=size,
        mtu_bytes=mtu,
        rate=rate,
        rtt_us=draw(st.floats(1, max(1.0, min(1e6, (1 << 27) / stream * 1e6)))),
        stall_ms=draw(st.floats(0, min(1e3, (1 << 29) / stream * 1e3))),
        streams=draw(st.integers(1, 50)),
        streams_per_socket=draw(st.integers(1, 3)),
        receivers=draw(st.integers(1, 50)),
        transport=draw(st.sampled_from(("unicast", "multicast", "mdc"))),
    )


def open_or(values: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    """Return 0, which leaves a size open, or a given one."""
    return st.one_of(st.just(0), st.just(0), values)


traffic = traffic_of()
given_sizes = st.fixed_dictionaries(
    {
        "window_bytes": open_or(st.integers(60_000, 1 << 29)),
        "term_bytes": open_or(st.integers(15, 31).map(lambda power: 1 << power)),
        "so_rcvbuf_bytes": open_or(st.integers(1 << 17, SOCKET_BUFFER_MAX_BYTES)),
        "so_sndbuf_bytes": open_or(st.integers(60_000, SOCKET_BUFFER_MAX_BYTES)),
        "rmem_max_bytes": open_or(st.integers(1, 2**31 - 1)),
    }
)


def chain_of(inputs: ReceivePathInputs) -> Chain:
    """Return the chain of possible inputs; reject impossible ones as examples."""
    chain = plan_chain(inputs, frame(inputs.message_bytes, inputs.mtu_bytes))
    assume(not any(broken_constraints(inputs, chain)))
    return chain


def sizing_of(inputs: ReceivePathInputs) -> Sizing:
    sizing = size_receive_path(inputs)
    assume(not broken_findings(sizing))
    return sizing


@given(traffic, given_sizes, st.integers(64, 65_504), st.floats(1, 1e9))
def test_any_sizes_have_a_plan(
    inputs: ReceivePathInputs, sizes: dict[str, Any], mtu: int, rate: float
) -> None:
    plan = plan_receive_path(replace(inputs, mtu_bytes=mtu, rate=rate, family="c7g", **sizes))
    assert plan.failed == any([finding.severity == "fail" for finding in plan.findings])
    assert all([figure.value is not None for figure in plan.answered])
    assert all([len(curve.x) == len(curve.y) for chart in plan.charts for curve in chart.curves])


def holds(inputs: ReceivePathInputs, chain: Chain) -> None:
    assert chain.receiver_window == min(chain.window, chain.term // 2), "constraint A"
    assert inputs.mtu_bytes <= chain.window, "constraint B"
    assert chain.window <= chain.rcvbuf, "constraint C"
    assert inputs.mtu_bytes <= chain.sndbuf
    assert chain.term & (chain.term - 1) == 0
    assert TERM_MIN_BYTES <= chain.term <= TERM_MAX_BYTES
    assert chain.term >= 8 * max(inputs.message_bytes, inputs.mtu_bytes)
    assert chain.rcvbuf <= SOCKET_BUFFER_MAX_BYTES


@given(inputs=traffic)
def test_planned_sizes_satisfy_all_constraints(inputs: ReceivePathInputs) -> None:
    chain = chain_of(inputs)
    holds(inputs, chain)
    assert chain.receiver_window == chain.window
    assert chain.window >= max(2 * chain.bdp_bytes, WINDOW_DEFAULT_BYTES)
    assert chain.window >= chain.window_least
    assert chain.window & (chain.window - 1) == 0
    assert chain.term + 0.01 >= 2 * chain.stream_bytes_per_second * inputs.stall_ms / 1e3
    assert chain.unprotected_bytes == 0


@given(inputs=traffic, sizes=given_sizes)
def test_given_sizes_satisfy_all_constraints_or_are_refused(
    inputs: ReceivePathInputs, sizes: dict[str, Any]
) -> None:
    inputs = replace(inputs, **sizes)
    chain = chain_of(inputs)
    holds(inputs, chain)
    for name, planned in (
        ("window_bytes", chain.window),
        ("term_bytes", chain.term),
        ("so_rcvbuf_bytes", chain.rcvbuf),
        ("so_sndbuf_bytes", chain.sndbuf),
    ):
        assert sizes[name] in (0, planned)
    ceiling = inputs.rmem_max_bytes or chain.rcvbuf
    assert chain.rcvbuf_real == min(chain.rcvbuf, ceiling)


@given(inputs=traffic, sizes=given_sizes)
def test_a_plan_without_failure_fits(inputs: ReceivePathInputs, sizes: dict[str, Any]) -> None:
    """Its window carries the rate, and its socket buffer holds the bytes in flight."""
    inputs = replace(inputs, **sizes)
    chain_of(inputs)
    plan = plan_receive_path(inputs)
    bdp, window = plan.value("bdp_bytes"), plan.value("receiver_window_bytes")
    held = plan.value("so_rcvbuf_real_bytes") // min(inputs.streams_per_socket, inputs.streams)
    assert plan.failed or bdp <= window <= held


def never_smaller(before: Chain, after: Chain) -> None:
    for name in ("bdp_bytes", "window_least", "window", "term", "rcvbuf_least", "rcvbuf"):
        assert getattr(before, name) <= getattr(after, name), name


@given(inputs=traffic, factor=st.floats(1, 100))
def test_more_rate_never_shrinks_a_size(inputs: ReceivePathInputs, factor: float) -> None:
    never_smaller(chain_of(inputs), chain_of(replace(inputs, rate=inputs.rate * factor)))


@given(inputs=traffic, factor=st.floats(1, 100))
def test_a_longer_round_trip_never_shrinks_a_size(inputs: ReceivePathInputs, factor: float) -> None:
    never_smaller(chain_of(inputs), chain_of(replace(inputs, rtt_us=inputs.rtt_us * factor)))


@given(inputs=traffic, more=st.floats(0, 1e3))
def test_a_longer_stall_never_shrinks_term_or_ring(inputs: ReceivePathInputs, more: float) -> None:
    longer = replace(inputs, stall_ms=inputs.stall_ms + more)
    before, after = sizing_of(inputs), sizing_of(longer)
    assert before.chain.term <= after.chain.term
    assert before.ring_needed_entries <= after.ring_needed_entries
    assert before.chain.window == after.chain.window


@given(inputs=traffic, other=mtus)
def test_a_larger_mtu_never_sends_more_packets(inputs: ReceivePathInputs, other: int) -> None:
    small, large = sorted((inputs.mtu_bytes, other))
    before, after = (frame(inputs.message_bytes, mtu) for mtu in (small, large))
    assert before.packets_best(inputs.rate) >= after.packets_best(inputs.rate)
    assert before.packets_worst(inputs.rate) >= after.packets_worst(inputs.rate)
    assert before.message_bytes >= after.message_bytes


@given(size=messages, mtu=mtus)
def test_frames_hold_their_message(size: int, mtu: int) -> None:
    found = frame(size, mtu)
    headers = 32 * found.datagrams_per_message
    assert 0 <= found.message_bytes - size - headers < 32
    assert found.message_bytes % 32 == 0
    assert found.messages_per_datagram * found.message_bytes <= mtu * found.datagrams_per_message
    assert 1 in (found.messages_per_datagram, found.datagrams_per_message)


@given(inputs=traffic)
def test_batching_never_costs(inputs: ReceivePathInputs) -> None:
    found = sizing_of(inputs)
    assert found.packets_best_per_second <= found.packets_worst_per_second
    assert found.packets_queue <= found.packets_best_per_second * 1.000001
    assert found.nic_bits_per_second <= found.nic_worst_bits_per_second
    assert found.nic_bits_per_second >= 8 * found.chain.stream_bytes_per_second * inputs.streams
    assert 1 <= found.receive_queues <= found.flows <= inputs.streams
    needed = found.ring_needed_entries
    assert found.ring_ms(needed, found.packets_worst_per_second) >= inputs.stall_ms * 0.999999


@given(inputs=traffic, factor=st.floats(1, 100))
def test_timers_follow_the_round_trip(inputs: ReceivePathInputs, factor: float) -> None:
    before, after = plan_timers(inputs), plan_timers(replace(inputs, rtt_us=inputs.rtt_us * factor))
    assert before.linger_us >= 3 * inputs.rtt_us
    if before.to_group:
        assert before.wait_us >= 2 * inputs.rtt_us
    for name in ("wait_us", "retry_ratio", "linger_us", "lost_once_us", "lost_twice_us"):
        assert getattr(before, name) <= getattr(after, name), name
    assert inputs.rtt_us <= before.lost_once_us < before.lost_twice_us


@given(inputs=traffic, family=st.sampled_from(sorted(FAMILIES)))
def test_a_chosen_size_carries_the_load(inputs: ReceivePathInputs, family: str) -> None:
    found = sizing_of(replace(inputs, family=family))
    assert found.nic_bits_per_second <= found.host.burst_bits
    sizes = [size for size in FAMILIES[family].sizes if size.vcpus < found.host.vcpus]
    assert all([size.baseline_gbit * 1e9 < found.nic_bits_per_second for size in sizes])
