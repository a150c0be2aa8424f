"""`penstock plan receive-path`, as it is called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.settings import describe
from penstock.broker.configuration.settings import BrokerSettings

Run = Callable[..., Any]


@pytest.fixture
def plan(bare: Run) -> Run:
    return lambda *words: bare("plan", "receive-path", *words)


def figures(ran: Any) -> dict[str, Any]:
    return {load["name"]: load for load in json.loads(ran.out)["figures"]}


def test_a_plan_of_the_defaults(plan: Run) -> None:
    ran = plan()
    assert (ran.status, ran.err) == (0, "")
    for words in (
        "initial window",
        "aeron.rcv.initial.window.length",
        "aeron.term.buffer.length=4m",
        "net.core.rmem_max = 262144",
        "ethtool -G eth0 rx 8192",
    ):
        assert words in ran.out
    assert "on-wire bytes of a message" not in ran.out
    assert "on-wire bytes of a message" in plan("--explain").out


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
    assert {finding["severity"] for finding in document["findings"]} <= {
        "ok",
        "note",
        "warn",
        "fail",
    }
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
    assert "caps it" in ran.out
    assert "RcvbufErrors" in ran.out


def test_broken_constraints_are_all_named_and_the_plan_is_shown(plan: Run) -> None:
    ran = plan("--window", "1k", "--so-rcvbuf", "512", "--mtu", "1400", "--term", "3m")
    assert (ran.status, ran.err) == (1, "")
    for words in (
        "fail  Constraint C (initial window ≤ SO_RCVBUF): SO_RCVBUF of 512 bytes is below the"
        " window of 1 KiB, so the driver refuses to start\n      → set aeron.socket.so_rcvbuf to"
        " 2 KiB (at least 1 KiB), and net.core.rmem_max to at least as much\n",
        "fail  Constraint B (MTU ≤ initial window): a window of 1 KiB is below the MTU of"
        " 1,400 bytes, so the driver refuses to start\n      → set aeron.rcv.initial.window.length"
        " to 2 KiB or more\n",
        "fail  Frame alignment (MTU is a multiple of 32): an MTU of 1400 is not a"
        " multiple of 32, so the driver refuses to start\n"
        "      → set mtu to 1376, or to 1408 or 8192\n",
        "fail  Term length (a power of two from 64 KiB to 1 GiB): a term of 3 MiB is not allowed",
        "aeron.rcv.initial.window.length",
    ):
        assert words in ran.out
    assert "aeron.socket.so_rcvbuf=512" not in ran.out, "nothing to paste that does not start"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rate", "0"), "penstock: setting rate = 0.0: must be at least 1"),
        (("--rtt", "-1"), "penstock: setting rtt = -1.0: must be at least 1"),
        (("--mtu", "70000"), "penstock: setting mtu = 70000: must be at most 65504"),
        (("--window", "1MB/s"), "penstock: setting window = '1MB/s': is a rate, but a number"
         " of bytes is required"),
        (("--inputs", "/nowhere.toml"), "penstock: /nowhere.toml: No such file or directory"),
    ],
)  # fmt: skip
def test_refusals(plan: Run, words: tuple[str, ...], message: str) -> None:
    ran = plan(*words)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.strip() == message


def test_an_option_that_there_is_not(plan: Run) -> None:
    ran = plan("--speed", "3")
    assert ran.status == 2
    assert "No such option" in ran.err


def test_the_text_for_penstock_names_its_settings(plan: Run) -> None:
    known = {info.name for info in describe(BrokerSettings)}
    (text,) = [
        load["text"]
        for load in json.loads(plan("--output", "json").out)["snippets"]
        if load["title"].startswith("Penstock's sockets")
    ]
    names = [line.partition(" = ")[0] for line in text.splitlines()]
    assert names == ["socket.receive.buffer.bytes", "socket.send.buffer.bytes"]
    assert set(names) <= known


def test_help_lists_inputs(plan: Run) -> None:
    text = " ".join(plan("--help").out.split())
    assert "--rtt US Measured round-trip time between sender and receiver. [default" in text
    assert "One of unicast, multicast, mdc." in text
