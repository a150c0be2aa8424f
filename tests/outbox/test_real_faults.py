"""Faults caused by the kernel: system calls that fail or kill, full and read-only mounts."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.outbox.writer.safe_write import SLICE_BYTES, Tree
from tests.machine import lacking, system_tool
from tests.outbox.write_once import payload_of

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [sys.executable, "-W", "error", "-m", "tests.outbox.write_once"]
SIZE = 300_000
TWO_WRITES = SLICE_BYTES + SIZE
RUN_SECONDS = 60


@pytest.fixture
def strace() -> str:
    found = system_tool("strace", "strace")
    probe = subprocess.run([found, "-o", "/dev/null", "true"], capture_output=True, text=True)
    if probe.returncode:
        lacking(f"strace may not trace here: {probe.stderr.strip()}")
    return found


@pytest.fixture
def unshare() -> str:
    if os.geteuid() != 0:
        lacking("only root can mount")
    found = system_tool("unshare", "util-linux")
    probe = subprocess.run(
        [found, "-m", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, text=True
    )
    if probe.returncode:
        lacking(f"mounting in a namespace of its own failed: {probe.stderr.strip()}")
    return found


def run(command: list[str], *, killed: bool = False) -> list[dict[str, Any]]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS)
    if killed:
        assert done.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}, done.stderr
        return []
    assert done.returncode == 0, done.stderr
    said: list[dict[str, Any]] = json.loads(done.stdout)
    return said


def check_whole(root: Path, batch: str, size_bytes: int = SIZE) -> None:
    path = root / f"p/year=1970/month=01/day=01/hour=00/batch-{batch}/data.bin"
    assert path.read_bytes() == b"".join(payload_of(batch, size_bytes))


FAULTS = [
    ("fdatasync:error=EIO:when=1", 2, False),
    ("fsync:error=EIO:when=1", 2, True),
    ("fsync:error=EIO:when=4", 2, True),
    ("writev:error=ENOSPC:when=2", 2, False),
    ("renameat2:error=EINVAL:when=1", 1, False),
    ("renameat2:error=EDQUOT:when=1", 2, False),
    ("mkdirat:error=EMFILE:when=3", 2, False),
]


@pytest.mark.parametrize(("fault", "attempts", "existing"), FAULTS)
def test_the_kernel_fails_a_call(
    tmp_path: Path, strace: str, fault: str, attempts: int, existing: bool
) -> None:
    root, trace = tmp_path / "root", tmp_path / "trace"
    root.mkdir()
    call = fault.partition(":")[0]
    inject = [strace, "-f", "-qq", "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={fault}"]
    said = run([*inject, *PYTHON, str(root), "b", str(TWO_WRITES)])[0]
    calls = [line for line in trace.read_text().splitlines() if f" {call}(" in line]
    assert sum("INJECTED" in line for line in calls) == 1
    assert (said["attempts"], said["existing"]) == (attempts, existing)
    check_whole(root, "b", TWO_WRITES)
    assert [path.name for path in root.rglob("data.bin*")] == ["data.bin"]
    if call in {"fdatasync", "fsync"}:
        failed = next(number for number, line in enumerate(calls) if "INJECTED" in line)
        assert len(calls) > failed + 1, "a failed handle was synced again"


KILLS = [
    "mkdirat:signal=KILL:when=1",
    "mkdirat:signal=KILL:when=6",
    "writev:signal=KILL:when=1",
    "writev:signal=KILL:when=2",
    "fdatasync:signal=KILL:when=1",
    "renameat2:signal=KILL:when=1",
    "fsync:signal=KILL:when=1",
    "fsync:signal=KILL:when=7",
]


@pytest.mark.parametrize("kill", KILLS)
def test_the_kernel_kills_at_a_call(tmp_path: Path, strace: str, kill: str) -> None:
    """The kill is at the system call itself, whereas `test_kill` kills at the port."""
    inject = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"inject={kill}"]
    run([*inject, *PYTHON, str(tmp_path), "b", str(TWO_WRITES)], killed=True)
    for path in tmp_path.rglob("data.bin"):
        assert path.read_bytes() == b"".join(payload_of("b", TWO_WRITES))
    said = run([*PYTHON, str(tmp_path), "b", str(TWO_WRITES)])[0]
    assert said["existing"] == kill.startswith("fsync")
    check_whole(tmp_path, "b", TWO_WRITES)
    orphans = [path.name for path in tmp_path.rglob("data.bin?*")]
    assert all(re.fullmatch(r"data\.bin\.tmp\.[0-9a-f]{16}\.1", name) for name in orphans)


def in_mount(unshare: str, folder: Path, options: str, *commands: str) -> list[str]:
    lines = [f"mount -t tmpfs -o {options} none {shlex.quote(str(folder))}", *commands]
    return [unshare, "-m", "sh", "-ec", "\n".join(lines)]


def test_a_disk_that_fills_up(tmp_path: Path, unshare: str) -> None:
    """A file system of 2 MiB holds six payloads of 300,000 bytes; then space is freed."""
    folder = tmp_path / "small"
    folder.mkdir()
    quoted = shlex.quote(str(folder))
    write = shlex.join([*PYTHON, str(folder)])
    done = subprocess.run(
        in_mount(
            unshare,
            folder,
            "size=2m",
            f"{write} b {SIZE} 10 > {tmp_path}/first",
            f"find {quoted} -name 'data.bin*' -printf '%f %s\\n' | sort | uniq -c",
            f"rm {quoted}/p/*/*/*/*/batch-b-0/data.bin",
            f"{write} b-9 {SIZE} > {tmp_path}/second",
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    first = json.loads((tmp_path / "first").read_text())
    full = [said for said in first if "error" in said]
    assert [said["error"][:2] for said in full] == [["StorageFull", "WriteFailed"]] * 4
    assert all("RetriableError" in said["error"] for said in full)
    assert all("ENOSPC" in said["message"] for said in full)
    assert done.stdout.split() == ["6", "data.bin", str(SIZE)], "whole ones, and no orphan"
    second = json.loads((tmp_path / "second").read_text())
    assert second[0]["existing"] is False


def test_a_file_system_without_inodes(tmp_path: Path, unshare: str) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    write = shlex.join([*PYTHON, str(folder), "b", "1000", "4"])
    said = run(in_mount(unshare, folder, "nr_inodes=11", write))
    assert [item.get("error", ["ok"])[0] for item in said] == ["ok", "ok"] + ["StorageFull"] * 2


def test_a_read_only_mount(tmp_path: Path, unshare: str) -> None:
    folder = tmp_path / "fixed"
    folder.mkdir()
    write = shlex.join([*PYTHON, str(folder), "b", str(SIZE)])
    remount = f"mount -o remount,ro {shlex.quote(str(folder))}"
    said = run(in_mount(unshare, folder, "size=2m", remount, write))[0]
    assert said["error"][0] == "ReadOnlyRoot"
    assert "UnavailableError" in said["error"]
    assert "EROFS" in said["message"]


CHECK = """
import asyncio, sys
from penstock.base.errors import PenstockError
from penstock.outbox import OutboxSettings, OutboxWriter

async def main(root, bytes_min):
    async with OutboxWriter(OutboxSettings(root=root)) as writer:
        try:
            await writer.check(int(bytes_min))
        except PenstockError as error:
            print(type(error).__name__, error)
        else:
            print("ok")

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_look_at_the_disk(tmp_path: Path, unshare: str) -> None:
    """Enough space, too little for the largest payload, none, read-only; no file remains."""
    folder = tmp_path / "small"
    folder.mkdir()
    quoted = shlex.quote(str(folder))
    look = shlex.join([sys.executable, "-c", CHECK, str(folder)])
    commands = (
        f"{look} 1000000",
        f"{look} 3000000",
        f"head -c 3000000 /dev/zero > {quoted}/filler || true",
        f"{look} 0",
        f"mount -o remount,ro {quoted}",
        f"{look} 0",
        f"ls -A {quoted}",
    )
    done = subprocess.run(
        in_mount(unshare, folder, "size=2m", *commands),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "ok"
    assert lines[1].startswith("StorageFull outbox root: ")
    assert lines[1].endswith("bytes are free, but a payload may have 3000000")
    assert lines[2] == "StorageFull check outbox root: ENOSPC"
    assert lines[3] == "ReadOnlyRoot check outbox root: EROFS"
    assert lines[4:] == ["filler"]


def test_a_look_where_files_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS the kernel lacks the flag and treats it as an attempt to write to a directory."""
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    tree = Tree(tmp_path)
    tree.check(1)
    tree.close()
    assert list(tmp_path.iterdir()) == []
