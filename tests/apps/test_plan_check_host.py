"""`penstock plan check-host` as a command: tables, JSON, plots, inputs, and that it only looks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.plan.check_host import SYNC_ROUNDS_MAX
from penstock.planner.host_check import CHAINS

from .conftest import Run
from .host_tree import make_tree

EVERYTHING = ("--chains", "receive-path,broker,agent")
COMMAND = ("plan", "check-host", "--sync-rounds", "2")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that what a command leaves is seen."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    return str(folder)


def document(run: Run, *words: str) -> dict[str, Any]:
    ran = run(*COMMAND, "--output", "json", *words)
    assert ran.err == ""
    found: dict[str, Any] = json.loads(ran.out)
    assert ran.status == (
        1 if any(finding["severity"] == "fail" for finding in found["findings"]) else 0
    )
    return found


def values(found: dict[str, Any]) -> dict[str, Any]:
    return {figure["name"]: figure["value"] for figure in found["figures"]}


def test_this_host(bare: Run, data: str) -> None:
    found = document(bare, "--data-dir", data, *EVERYTHING)
    figures = values(found)
    assert figures["kernel"] == os.uname().release
    cap = int(Path("/proc/sys/net/core/rmem_max").read_text())
    assert figures["rmem_max_bytes"] == cap
    assert figures["udp_receive_buffer_bytes"] == min(256 << 10, cap)
    assert figures["sync_p50_ms"] > 0
    granted = next(
        entry for entry in found["findings"] if entry["subject"] == "socket buffer as granted"
    )
    assert "a UDP socket asked for 262144, and the kernel reports" in granted["cause"]
    ethtool = [finding for finding in found["findings"] if finding["subject"] == "NIC receive ring"]
    assert len(ethtool) == 1
    assert figures["rx_ring_entries"] is not None or ethtool[0]["cause"].startswith("not known: ")
    assert list(Path(data).iterdir()) == []


def test_tables_and_reasons(bare: Run, data: str, elsewhere: Path) -> None:
    ran = bare(*COMMAND, "--data-dir", data, "--explain", *EVERYTHING)
    for chain in CHAINS:
        assert chain in ran.out
    assert "first layer that breaks" in ran.out
    assert "The Four Receive-Path Buffers (receive-path sizing), constraint A" in ran.out
    assert "connections 10,000 + admin.max.connections 128" in ran.out
    assert list(elsewhere.iterdir()) == []


def test_the_answer_comes_first_and_names_the_disk(bare: Run, data: str) -> None:
    there = str(Path(data) / "not" / "yet")
    ran = bare(*COMMAND, "--data-dir", there)
    first, *lines = ran.out.splitlines()
    assert first.startswith("First layer of this host that breaks")
    assert any(
        [re.match(r" ?sync of the data directory +[0-9.]+ (ns|µs|ms|s)", line) for line in lines]
    )
    assert "link MTU" not in ran.out
    assert "aeron" not in ran.out.lower()
    assert list(Path(data).iterdir()) == []
    explained = bare(*COMMAND, "--data-dir", there, "--explain").out
    assert f"of 2 in {data}, because {there} does not exist" in explained


@pytest.mark.parametrize(("name", "begin"), [("bars.svg", b"<?xml"), ("bars.png", b"\x89PNG")])
def test_bars(bare: Run, data: str, elsewhere: Path, name: str, begin: bytes) -> None:
    ran = bare(*COMMAND, "--data-dir", data, "--plot", name)
    assert f"drawn: {name}" in ran.out
    assert (elsewhere / name).read_bytes().startswith(begin)


def test_a_host_below_a_directory(bare: Run, data: str, tmp_path: Path) -> None:
    """A container's view of its host: 1024 descriptors, 1 GiB, half a CPU, drops counted."""
    root = make_tree(tmp_path / "host")
    found = document(bare, "--data-dir", data, "--root", str(root), *EVERYTHING)
    figures = values(found)
    assert figures["kernel"] == "6.8.0-test"
    assert figures["first_broken_layer"] == "file descriptors of the broker"
    severities = {finding["subject"]: finding["severity"] for finding in found["findings"]}
    expected = {
        "NIC drops": "warn",
        "softirq drops": "warn",
        "full socket buffers": "warn",
        "ceiling of socket buffers": "warn",
        "file descriptors of the broker": "fail",
        "memory of the broker": "fail",
        "kills for memory": "warn",
        "stall caused by the CPU quota": "warn",
        "throttled periods": "warn",
        "stolen CPU time": "warn",
        "I/O limits": "note",
        "clock error": "note",
        "NIC receive ring": "note",
    }
    assert {name: severities[name] for name in expected} == expected
    texts = {snippet["title"]: snippet["text"] for snippet in found["snippets"]}
    typed = "".join(texts.values())
    assert "sysctl -w net.core.rmem_max=262144\n" in typed
    assert "ulimit -n 14304\n" in typed
    assert "MemoryMax=1635778560\n" in typed


def test_settings_of_a_broker_and_an_agent(
    bare: Run, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, agent = tmp_path / "broker.toml", tmp_path / "agent.toml"
    broker.write_text(
        'max.connections = 10\nopen.files.max = 20\nlog.dirs = "' + data + '"\n'
        'log.flush.policy = "os"\nsocket.receive.buffer.bytes = 8192\n'
    )
    agent.write_text("host.connections.max = 3\nhost.ring.max.bytes = 0\n")
    monkeypatch.setenv("PENSTOCK_JOURNAL_FILES_MAX", "4")
    found = document(bare, "--config", str(broker), "--agent-config", str(agent))
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert figures["broker_descriptors"]["minimum"] == 10 + 128 + 20 + 4 + 64
    assert figures["agent_descriptors"]["minimum"] == 3 + 64
    assert figures["sync_p50_allowed_ms"]["value"] == 60_000
    assert figures["sync_p50_ms"]["value"] > 0
    assert figures["tcp_receive_buffer_bytes"]["minimum"] == 8192


def test_inputs_from_a_file_and_options(bare: Run, data: str, tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text('window = "1MiB"\nstall = "2ms"\nconnections = 7\n')
    found = document(bare, "--data-dir", data, "--inputs", str(file), "--packet-rate", "50k")
    few = document(bare, "--data-dir", data, "--chains", "agent")
    assert "broker_descriptors" not in values(few)
    assert "agent_descriptors" in values(few)
    given = {name: row["value"] for name, row in found["inputs"].items()}
    assert (given["window"], given["stall"], given["packet-rate"]) == (1 << 20, 2.0, 50_000.0)
    minima = {figure["name"]: figure["minimum"] for figure in found["figures"]}
    assert minima["rx_ring_entries"] == 100
    assert minima["term_bytes"] == 2 << 20
    assert minima["rmem_max_bytes"] == 2 << 20


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (("--window", "0"), 2, "window = .*must be at least 1"),
        (("--window", "-4k"), 2, "must be at least 1"),
        (("--mtu", "9g"), 2, "mtu = .*must be at most 65504"),
        (
            ("--window", "1000"),
            2,
            r"Constraint B \(MTU ≤ initial window\).*give --window 1408 or more",
        ),
        (
            ("--so-rcvbuf", "64k"),
            2,
            r"Constraint C \(initial window ≤ SO_RCVBUF\).*give --so-rcvbuf 131072",
        ),
        (("--chains", "network"), 2, "must be one of receive-path, broker, agent"),
        (("--stall", "soon"), 2, "stall = .*must be a number"),
        (("--interface", "nope0"), 2, "interface 'nope0' is not in /sys/class/net"),
        (("--sync-rounds", str(SYNC_ROUNDS_MAX + 1)), 2, "0<=x<=1000"),
        (("--pid", "0"), 2, "x>=1"),
        (("--root", "/nonexistent"), 2, "does not exist"),
        (("--config", "/nonexistent"), 2, "No such file"),
        (("--plot", "bars.pdf"), 2, r"plot files end in \.png or \.svg"),
    ],
)
def test_bad_inputs(bare: Run, data: str, words: tuple[str, ...], status: int, why: str) -> None:
    ran = bare(*COMMAND, "--data-dir", data, *words)
    assert ran.status == status
    assert re.search(why, " ".join(ran.err.split()))


def test_another_process(bare: Run, data: str) -> None:
    found = document(bare, "--data-dir", data, "--pid", str(os.getpid()))
    limit = values(found)["broker_descriptors"]
    words = Path("/proc/self/limits").read_text().splitlines()
    row = next(line for line in words if line.startswith("Max open files"))
    assert str(limit) == row[26:].split()[0]


RECORDED = """
import os, sys
written = []
def watch(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            written.append(str(path))
    elif event in ("os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.chmod",
                   "os.truncate", "os.rmdir"):
        written.append(event + " " + str(arguments[0]))
    elif event == "subprocess.Popen":
        ran.append(arguments[1])
ran = []
sys.addaudithook(watch)
from penstock.apps.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("status", end.code, file=sys.stderr)
for path in written:
    print("written", path, file=sys.stderr)
for command in ran:
    print("ran", *command[:2], file=sys.stderr)
"""


def watched(*words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-B", "-c", RECORDED, *words], capture_output=True, text=True, timeout=60
    )
    lines = done.stderr.splitlines()
    assert lines[0] in ("status 0", "status 1"), done.stderr
    return lines[1:]


def test_nothing_is_written_but_into_the_data_directory(data: str) -> None:
    """Every file that the process opens for writing, every other change, every program it runs."""
    lines = watched("plan", "check-host", "--data-dir", data, "--sync-rounds", "3")
    written = [line.removeprefix("written ") for line in lines if line.startswith("written ")]
    assert set(written) == {data}  # a file without a name is opened by its directory's
    ran = {line for line in lines if line.startswith("ran ")}
    assert ran <= {"ran ethtool -g", "ran ethtool -l", "ran ethtool -S"}
    assert list(Path(data).iterdir()) == []


def test_without_rounds_nothing_is_written_at_all(data: str) -> None:
    lines = watched("plan", "check-host", "--data-dir", data, "--sync-rounds", "0")
    assert [line for line in lines if line.startswith("written ")] == []
