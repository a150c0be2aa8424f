"""More resources never make a verdict worse, and larger needs never make it better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.configuration.settings import BrokerSettings
from penstock.host.client.options import ClientOptions
from penstock.planner.host_check import (
    CheckHostInputs,
    Configured,
    HostFacts,
    check_host,
    first_broken,
    host_layers,
)
from penstock.planner.host_check.check import producer_buffer_bytes
from penstock.planner.host_check.inputs import (
    agent_files,
    agent_memory,
    broker_disk,
    broker_files,
    broker_memory,
    sync_wanted_ms,
)
from penstock.planner.host_check.layers import RANKS
from penstock.storage.files.settings import StorageSettings

from .hosts import DEFAULTS, HOST, SIDE

SMALL = st.integers(0, 1 << 36)


def _sysctl(name: str) -> Callable[[HostFacts, int], HostFacts]:
    def put(facts: HostFacts, value: int) -> HostFacts:
        numbers = (*facts.sysctls[name][:-1], value)
        return replace(facts, sysctls={**facts.sysctls, name: numbers})

    return put


def _part(part: str, name: str) -> Callable[[HostFacts, int], HostFacts]:
    def put(facts: HostFacts, value: int) -> HostFacts:
        changed = replace(getattr(facts, part), **{name: value})
        return replace(facts, **{part: changed})

    return put


LIMITS: dict[str, Callable[[HostFacts, int], HostFacts]] = {
    **{
        name: _sysctl(name)
        for name in HOST.sysctls
        # 0 stands for none, so more than 0 may be less than it
        if name not in ("vm.dirty_bytes", "vm.dirty_background_bytes")
    },
    "files": _part("limits", "files"),
    "processes": _part("limits", "processes"),
    "mtu": _part("interface", "mtu_bytes"),
    "speed": _part("interface", "speed_bits"),
    "ring": _part("interface", "rx_ring"),
    "ring at most": _part("interface", "rx_ring_max"),
    "queues": _part("interface", "queues"),
    "memory of the group": _part("group", "memory_max_bytes"),
    "tasks": _part("group", "tasks_max"),
    "memory": _part("memory", "total_bytes"),
    "available": _part("memory", "available_bytes"),
    "cache": _part("processors", "cache_bytes"),
    "disk": _part("disk", "free_bytes"),
    "inodes": _part("disk", "free_inodes"),
    "quota": lambda facts, value: replace(
        facts, group=replace(facts.group, quota_us=value, period_us=100_000)
    ),
}
COSTS: dict[str, Callable[[HostFacts, int], HostFacts]] = {
    "median": _part("disk", "sync_p50_ms"),
    "tail": _part("disk", "sync_p99_ms"),
    "steal": _part("processors", "steal_ratio"),
    "error": _part("clock", "error_ms"),
    "kills": _part("group", "kills"),
    "throttled": _part("group", "throttled_periods"),
}


def ranks(facts: HostFacts, inputs: CheckHostInputs) -> dict[str, int]:
    layers = host_layers(facts, DEFAULTS, inputs)
    return {layer.rule.name: RANKS[layer.severity] for layer in layers}


def inputs_strategy() -> st.SearchStrategy[CheckHostInputs]:
    return st.builds(
        CheckHostInputs,
        window_bytes=st.integers(1408, 1 << 28),
        stall_ms=st.floats(0, 1000),
        packets_per_second=st.floats(0, 1e7),
        connections=st.integers(0, 1 << 20),
        producers=st.integers(0, 65_536),
        sync_ms=st.floats(0, 100),
    )


@pytest.mark.parametrize("name", LIMITS)
@settings(max_examples=40, deadline=None)
@given(pair=st.tuples(SMALL, SMALL), inputs=inputs_strategy())
def test_a_raised_limit_never_worsens_a_verdict(
    name: str, pair: tuple[int, int], inputs: CheckHostInputs
) -> None:
    low, high = sorted(pair)
    before = ranks(LIMITS[name](HOST, low), inputs)
    after = ranks(LIMITS[name](HOST, high), inputs)
    assert {layer: rank for layer, rank in after.items() if rank > before[layer]} == {}


@pytest.mark.parametrize("name", COSTS)
@settings(max_examples=40, deadline=None)
@given(pair=st.tuples(SMALL, SMALL), inputs=inputs_strategy())
def test_a_raised_cost_never_betters_a_verdict(
    name: str, pair: tuple[int, int], inputs: CheckHostInputs
) -> None:
    low, high = sorted(pair)
    before = ranks(COSTS[name](HOST, low), inputs)
    after = ranks(COSTS[name](HOST, high), inputs)
    assert {layer: rank for layer, rank in after.items() if rank < before[layer]} == {}


@settings(max_examples=100, deadline=None)
@given(
    cap=st.integers(2304, 1 << 28),
    window=st.integers(1408, 1 << 26),
    factor=st.floats(1, 8),
)
def test_the_cap_is_silent_but_seen(cap: int, window: int, factor: float) -> None:
    """The grant is min(request, cap); below the window the chain breaks there."""
    asked = int(window * factor)
    facts = _sysctl("net.core.rmem_max")(HOST, cap)
    inputs = CheckHostInputs(window_bytes=window, so_rcvbuf_bytes=asked)
    layers = {layer.rule.name: layer for layer in host_layers(facts, DEFAULTS, inputs)}
    assert layers["udp_receive_buffer_bytes"].found == min(asked, cap)
    broken = cap < window
    assert (layers["udp_receive_buffer_bytes"].severity == "fail") is broken
    wanted = "fail" if broken else "warn" if cap < asked else "ok"
    assert layers["rmem_max_bytes"].severity == wanted


@settings(max_examples=60, deadline=None)
@given(inputs=inputs_strategy(), chosen=st.dictionaries(st.sampled_from(list(LIMITS)), SMALL))
def test_the_plan_names_the_outermost_failure(
    inputs: CheckHostInputs, chosen: dict[str, int]
) -> None:
    facts = HOST
    for name, value in chosen.items():
        facts = LIMITS[name](facts, value)
    layers = host_layers(facts, DEFAULTS, inputs)
    plan = check_host(facts, DEFAULTS, inputs)
    broken = first_broken(layers)
    worst = max([RANKS[layer.severity] for layer in layers])
    assert plan.failed is (worst == RANKS["fail"])
    if worst >= RANKS["warn"]:
        assert broken is not None
        assert RANKS[broken.severity] == worst
        before = layers[: layers.index(broken)]
        assert all(RANKS[layer.severity] < worst for layer in before)
    else:
        assert broken is None
    for layer in layers:
        assert layer.severity in ("ok", "note") or layer.fix


def test_needs_are_those_of_the_settings() -> None:
    """The check's needs match the settings."""
    broker, storage, inputs = BrokerSettings(), StorageSettings(), CheckHostInputs()
    assert (SIDE.max_connections, SIDE.admin_max_connections, SIDE.listen_backlog,
            SIDE.receive_buffer_bytes, SIDE.send_buffer_bytes, SIDE.queued_request_bytes,
            SIDE.segment_bytes) == (
        broker.max_connections, broker.admin_max_connections, broker.socket_listen_backlog_size,
        broker.socket_receive_buffer_bytes, broker.socket_send_buffer_bytes,
        broker.queued_max_request_bytes, broker.log_segment_bytes,
    )  # fmt: skip
    assert len(fields(SIDE)) == 7
    assert broker_files(DEFAULTS, inputs).value == 10_000 + 128 + 4096 + 16 + 64
    mib = broker_memory(DEFAULTS, inputs).value >> 20
    assert mib == 512 + 256 + 64 + 64 + 128 + 256 + 128 + 3 * 8 + 128
    assert broker_disk(DEFAULTS).value == 2 << 30
    assert agent_files(DEFAULTS, inputs).value == 2 * 1024 + 64
    assert agent_memory(DEFAULTS, inputs).value >> 20 == 256 + 512 + 128
    assert producer_buffer_bytes() == ClientOptions().socket_buffer_bytes == 4 << 20
    assert sync_wanted_ms(DEFAULTS, inputs) == (5, "diskless.commit.interval.ms of a local store")
    for policy, wanted_ms in (("interval", 1000), ("os", 60_000)):
        other = replace(DEFAULTS, storage=replace(storage, log_flush_policy=policy))
        assert sync_wanted_ms(other, inputs)[0] == wanted_ms


@settings(max_examples=60, deadline=None)
@given(more=st.integers(1, 1 << 20))
def test_larger_settings_need_more(more: int) -> None:
    inputs = CheckHostInputs()
    side = replace(SIDE, max_connections=10_000 + more, queued_request_bytes=(512 << 20) + more)
    agent = DEFAULTS.agent
    changes: dict[str, Any] = {"queued_max_bytes": agent.queued_max_bytes + more}
    larger = Configured(
        broker=side,
        storage=replace(DEFAULTS.storage, open_files_max=4096 + more),
        agent=replace(agent, **changes, http_listener="127.0.0.1:0"),
    )
    assert broker_files(larger, inputs).value == broker_files(DEFAULTS, inputs).value + 2 * more
    assert broker_memory(larger, inputs).value == broker_memory(DEFAULTS, inputs).value + more
    bodies = agent.http_max_connections * agent.http_body_max_bytes
    assert agent_memory(larger, inputs).value == (
        agent_memory(DEFAULTS, inputs).value + more + bodies
    )
    assert agent_files(larger, inputs).value == (
        agent_files(DEFAULTS, inputs).value + agent.http_max_connections
    )
