"""System calls of a process that are made to fail, or to kill it, by strace."""

from __future__ import annotations

import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

from compat.parts import PartMissing, debian

from tests.machine import lacking

ATTACH_SECONDS = 30.0


@cache
def strace() -> str:
    """Where strace is: the system's, else Debian's package taken apart; and it may trace."""
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


def inject(pid: int, fault: str) -> subprocess.Popen[bytes]:
    """Have a fault injected into a process and its threads: calls, what, and when.

    They are attached to when this returns; strace ends with the process. Some run by then, so how
    many calls they have made is not known exactly.
    """
    calls = fault.partition(":")[0]
    what = ["-e", f"trace={calls}", "-e", f"inject={fault}"]
    tracer = subprocess.Popen(
        [strace(), "-f", "-qq", "-o", "/dev/null", *what, "-p", str(pid)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + ATTACH_SECONDS
    while not traced(pid):
        if tracer.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"strace does not trace process {pid}")
        time.sleep(0.002)
    return tracer


def traced(pid: int) -> bool:
    """Whether all threads of a process are traced, or it is gone by now."""
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if "TracerPid:\t0\n" in (task / "status").read_text():
                return False
    except (FileNotFoundError, ProcessLookupError):
        return True
    return True
