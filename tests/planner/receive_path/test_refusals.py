"""Inputs that no configuration can serve: the error names the constraint and the fix."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.errors import InvalidSetting
from penstock.planner.quantities import read_inputs
from penstock.planner.receive_path import ReceivePathInputs, plan_receive_path
from penstock.planner.receive_path.chain import A, B, C

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("changes", "rule", "found", "fix"),
    [
        (
            {"window_bytes": MIB, "so_rcvbuf_bytes": 128 * KIB},
            C,
            "SO_RCVBUF of 128 KiB is below the window of 1 MiB, so the driver refuses to start",
            "set aeron.socket.so_rcvbuf to 2 MiB",
        ),
        (
            {"so_rcvbuf_bytes": 64 * KIB},
            C,
            "SO_RCVBUF of 64 KiB is below the window of 128 KiB",
            "aeron.socket.so_rcvbuf to 256 KiB",
        ),
        (
            {"mtu_bytes": 8192, "window_bytes": 4096},
            B,
            "a window of 4 KiB is below the MTU of 8 KiB, so the driver refuses to start",
            "set aeron.rcv.initial.window.length to 8 KiB or more",
        ),
        (
            {"rate": 1e7, "message_bytes": 992, "rtt_us": 100_000},
            A,
            "needs a window of 2 GiB (twice the BDP), and that a term above 1 GiB",
            "split the stream",
        ),
        (
            {"window_bytes": GIB},
            A,
            "a window of 1 GiB needs a term above 1 GiB",
            "set window to at most 512 MiB",
        ),
        (
            {"rate": 1e6, "message_bytes": 992, "stall_ms": 1_000},
            "Stall headroom",
            "a stall of 1 s with 1.024 GB of data needs a term above 1 GiB",
            "set stall to at most 524.3 ms",
        ),
        (
            {"mtu_bytes": 1400},
            "Frame alignment",
            "an MTU of 1400 is not a multiple",
            "set mtu to 1376",
        ),
        (
            {"mtu_bytes": 1420},
            "Frame alignment",
            "an MTU of 1420 is not a multiple",
            "set mtu to 1408",
        ),
        (
            {"term_bytes": 3 * MIB},
            "Term length",
            "a term of 3 MiB is not allowed",
            "set term to 4 MiB",
        ),
        ({"term_bytes": 4 * KIB}, "Term length", "a term of 4 KiB", "set term to 64 KiB"),
        ({"term_bytes": 4 * GIB}, "Term length", "a term of 4 GiB", "set term to 1 GiB"),
        (
            {"term_bytes": 64 * KIB, "message_bytes": 10_000, "rate": 10},
            "Largest message",
            "exceeds an eighth of a term of 64 KiB",
            "set term to 128 KiB",
        ),
        (
            {"term_bytes": 64 * KIB, "mtu_bytes": 16_384, "rate": 10},
            "Largest message",
            "an MTU of 16 KiB exceeds an eighth",
            "set term to 128 KiB",
        ),
        (
            {"so_sndbuf_bytes": 4096, "mtu_bytes": 8192},
            "SO_SNDBUF",
            "SO_SNDBUF of 4 KiB is below the MTU of 8 KiB",
            "set aeron.socket.so_sndbuf to 128 KiB",
        ),
        (
            {"nic_bandwidth": 1e9},
            "Bandwidth of the network interface",
            "1.218 Gbit/s with all headers exceeds the 1 Gbit/s of this host",
            "lower rate",
        ),
        (
            {"family": "c7g", "vcpus": 64, "streams": 40},
            "Bandwidth of the network interface",
            "exceeds the 30 Gbit/s of c7g with 64 vCPUs (Graviton3)",
            "use a larger instance",
        ),
        (
            {"family": "c7g", "vcpus": 3},
            "Instance size",
            "c7g has no size with 3 vCPUs",
            "set vcpus to one of 1, 2, 4, 8, 16, 32, 48, 64, or to 0",
        ),
        (
            {"window_bytes": 4 * MIB, "streams": 1000, "streams_per_socket": 1000, "rate": 1},
            "SO_RCVBUF",
            "1000 windows of 4 MiB share a socket",
            "streams have their own endpoints",
        ),
    ],
)
def test_impossible_plans(changes: dict[str, Any], rule: str, found: str, fix: str) -> None:
    plan = plan_receive_path(ReceivePathInputs(**changes))
    flaws = [finding for finding in plan.findings if finding.severity == "fail"]
    assert any(
        [
            flaw.subject.startswith(rule) and found in flaw.cause and fix in flaw.fix
            for flaw in flaws
        ]
    ), flaws
    assert plan.figures
    assert plan.snippets == ()


def test_all_broken_constraints_are_named_and_the_plan_is_shown() -> None:
    plan = plan_receive_path(
        ReceivePathInputs(
            mtu_bytes=1400, window_bytes=1024, so_rcvbuf_bytes=512, so_sndbuf_bytes=256,
            term_bytes=3 * MIB, nic_bandwidth=1e6, family="c7g", vcpus=3,
        )
    )  # fmt: skip
    broken = [finding.subject for finding in plan.findings if finding.severity == "fail"]
    assert [name for name in broken if name in (B, C)] == [B, C]
    assert {
        "Frame alignment (MTU is a multiple of 32)",
        "Term length (a power of two from 64 KiB to 1 GiB)",
        "SO_SNDBUF ≥ MTU",
        "Bandwidth of the network interface",
        "Instance size",
    } <= set(broken)
    assert plan.value("initial_window_bytes") == 1024
    assert plan.failed


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"message-bytes": "0"}, "message-bytes = 0: must be at least 1"),
        ({"message-bytes": "-5"}, "message-bytes = -5: must be at least 1"),
        ({"message-bytes": "17m"}, "must be at most 16777216"),
        ({"rate": "0"}, "rate = 0.0: must be at least 1"),
        ({"rtt": "0"}, "rtt = 0.0: must be at least 1"),
        ({"rtt": "-3ms"}, "must be at least 1"),
        ({"stall": "-1"}, "stall = -1.0: must be at least 0"),
        ({"receivers": "0"}, "receivers = 0: must be at least 1"),
        ({"streams": "0"}, "must be at least 1"),
        ({"mtu": "32"}, "mtu = 32: must be at least 64"),
        ({"mtu": "65536"}, "mtu = 65536: must be at most 65504"),
        ({"path-mtu": "100"}, "path-mtu = 100: must be at least 576"),
        ({"family": "z9"}, "must be one of other, c5n"),
        ({"transport": "tcp"}, "must be one of unicast, multicast, mdc"),
        ({"device": "eth0; reboot"}, "must be the name of a network interface"),
        ({"device": ""}, "must be the name of a network interface"),
        ({"window": "lots"}, "must be a number of bytes"),
    ],
)
def test_bad_inputs(values: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        read_inputs(ReceivePathInputs, values)
