"""`penstock plan receive-path`, as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.settings import describe
from penstock.broker.settings import BrokerSettings

Run = Callable[..., Any]


@pytest.fixture
def plan(bare: Run) -> Run:
    return lambda *words: bare("plan", "receive-path", *words)


def figures(ran: Any) -> dict[str, Any]:
    return {one["name"]: one for one in json.loads(ran.out)["figures"]}


def test_a_plan_of_the_defaults(plan: Run) -> None:
    ran = plan()
    assert (ran.status, ran.err) == (0, "")
    for words in (
        "initial window",
        "aeron.rcv.initial.window.length",
        "aeron.term.buffer.length=4m",
        "net.core.rmem_max = 262144",
        "ethtool -G eth0 rx 8192",
        "on-wire bytes of a message",
    ):
        assert words in ran.out


def test_a_plan_as_json(plan: Run) -> None:
    ran = plan("--output", "json", "--rate", "1m", "--rtt", "200us", "--message-bytes", "224")
    found = figures(ran)
    assert found["stream_bytes_per_second"]["value"] == 256e6
    assert found["bdp_bytes"]["value"] == 51_200
    window = found["initial_window_bytes"]
    assert (window["value"], window["minimum"], window["unit"]) == (262_144, 131_072, "bytes")
    assert window["setting"] == "aeron.rcv.initial.window.length"
    document = json.loads(ran.out)
    assert document["inputs"]["rtt"] == {"value": 200.0, "unit": "us"}
    assert {one["severity"] for one in document["findings"]} <= {"ok", "note", "warn", "fail"}
    assert len(document["charts"]) == 2


def test_formulas_and_sources(plan: Run) -> None:
    text = plan("--explain").out
    assert "    = λ 144 MB/s × round trip 100 µs\n" in text
    assert "constraint A: Aeron: Configuration.java, receiverWindowLength()" in text
    assert "constraint C: Aeron: Configuration.java, validateSocketBufferLengths()" in text
    assert text.count("    from ") == text.count("    = ") >= 30


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_drawings(plan: Run, tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"path.{suffix}"
    ran = plan("--plot", str(file), "--transport", "mdc", "--receivers", "2")
    assert ran.status == 0
    assert file.read_bytes().startswith(start)
    assert f"drawn: {file}" in ran.out


def test_inputs_of_a_file(plan: Run, tmp_path: Path) -> None:
    file = tmp_path / "path.toml"
    file.write_text('message-bytes = "1376"\nrate = 820000\nstall = "9ms"\nfamily = "c6in"\n')
    found = figures(plan("--inputs", str(file), "--ring-max", "16384", "--output", "json"))
    assert found["packets_worst_per_second"]["value"] == 820_000
    assert found["ring_max_survival_ms"]["value"] == pytest.approx(19.98, abs=0.01)


def test_a_capped_buffer_fails(plan: Run) -> None:
    ran = plan("--window", "1m", "--rmem-max", "212992")
    assert ran.status == 1
    assert "silently caps" in ran.out
    assert "RcvbufErrors" in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--window", "1m", "--so-rcvbuf", "128k"),
            "penstock: Constraint C (initial window ≤ SO_RCVBUF): SO_RCVBUF of 128 KiB is below"
            " the window of 1 MiB, the driver refuses to start; set aeron.socket.so_rcvbuf to"
            " 2 MiB (at least 1 MiB) and net.core.rmem_max to no less",
        ),
        (
            ("--mtu", "8k", "--window", "4k"),
            "penstock: Constraint B (MTU ≤ initial window): a window of 4 KiB is below the MTU of"
            " 8 KiB, the driver refuses to start; set aeron.rcv.initial.window.length to 8 KiB or"
            " more",
        ),
        (
            ("--mtu", "1400"),
            "penstock: Frame alignment (MTU is a multiple of 32): an MTU of 1400 is none, the"
            " driver refuses to start; set mtu to 1376, or to 1408 or 8192",
        ),
        (("--rate", "0"), "penstock: setting rate = 0.0: must be at least 1"),
        (("--rtt", "-1"), "penstock: setting rtt = -1.0: must be at least 1"),
        (("--mtu", "70000"), "penstock: setting mtu = 70000: must be at most 65504"),
    ],
)
def test_refusals(plan: Run, words: tuple[str, ...], message: str) -> None:
    ran = plan(*words)
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.strip() == message


def test_an_option_that_there_is_not(plan: Run) -> None:
    ran = plan("--speed", "3")
    assert ran.status == 2
    assert "No such option" in ran.err


def test_the_text_for_penstock_names_its_settings(plan: Run) -> None:
    known = {info.name for info in describe(BrokerSettings)}
    (text,) = [
        one["text"]
        for one in json.loads(plan("--output", "json").out)["snippets"]
        if one["title"].startswith("Penstock's sockets")
    ]
    names = [line.partition(" = ")[0] for line in text.splitlines()]
    assert names == ["socket.receive.buffer.bytes", "socket.send.buffer.bytes"]
    assert set(names) <= known


def test_help_tells_of_inputs(plan: Run) -> None:
    text = " ".join(plan("--help").out.split())
    assert "--rtt US Round trip between sender and receiver, as measured. [default: 100 µs]" in text
    assert "One of unicast, multicast, mdc." in text
