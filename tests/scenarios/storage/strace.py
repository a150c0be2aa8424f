"""System calls of a process, or of one thread, that are made to fail, or to kill it, by strace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from compat.parts import PartMissing, debian

from tests.machine import lacking

ATTACH_SECONDS = 30.0
ROOT = Path(__file__).resolve().parents[3]


@cache
def strace() -> str:
    """Return the path of a working strace: the system's, else one of Debian's package."""
    found = shutil.which("strace")
    if found is None:
        try:
            found = str(debian("strace") / "usr" / "bin" / "strace")
        except PartMissing as error:
            lacking(f"strace is not installed, and its package cannot be had: {error}")
    tried = subprocess.run([found, "-qq", "-o", "/dev/null", "true"], capture_output=True)
    if tried.returncode:
        lacking(f"strace may not trace a process: {tried.stderr.decode().strip()}")
    return found


def inject(pid: int, fault: str, thread: int | None = None) -> subprocess.Popen[bytes]:
    """Have a fault injected into a process and its threads, or into one of them: calls, what, when.

    They are attached to when this returns; strace ends with the process. Some run by then, so how
    many calls they have made is not known exactly. Calls are counted for each thread by itself.
    """
    calls = fault.partition(":")[0]
    what = ["-e", f"trace={calls}", "-e", f"inject={fault}"]
    whom = ["-f", "-p", str(pid)] if thread is None else ["-p", str(thread)]
    tracer = subprocess.Popen(
        [strace(), "-qq", "-o", "/dev/null", *what, *whom],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + ATTACH_SECONDS
    while not traced(pid, thread):
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace does not trace process {pid}")
        time.sleep(0.002)
    return tracer


def traced(pid: int, thread: int | None) -> bool:
    """Whether all threads of a process are traced, or that one, or it is gone by now."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        for task in tasks.iterdir() if thread is None else [tasks / str(thread)]:
            if "TracerPid:\t0\n" in (task / "status").read_text():
                return False
    except (FileNotFoundError, ProcessLookupError):
        return True
    return True


def life(module: str, *arguments: object, fault: str, thread: str = "") -> tuple[list[str], int]:
    """A process' life under a fault: what it says, and its status.

    When it has said `ready`, and the ids of its threads by their names if need be, the fault is
    injected; a line resumes the process.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            word, _, threads = process.stdout.readline().partition(" ")
            assert word.strip() == "ready"
            tracer = inject(process.pid, fault, json.loads(threads)[thread] if thread else None)
            process.stdin.write("\n")
            process.stdin.close()
            lines = process.stdout.readlines()
        except BaseException:  # also the time limit of a test: else it would be waited for
            process.kill()
            raise
        status = process.wait()
    tracer.wait()
    return lines, status
