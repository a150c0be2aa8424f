"""Limits of this machine, with which a broker's figures are compared.

The loopback limit is the rate of bytes over TCP to a process that discards them. The disk has two
limits. The first is the latency of a write and sync of 4 KiB in an existing file, as the journal
does them. The second is the rate of appends to a growing file, with a sync after every 8 MiB. A log
without a journal would write in this way.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from penstock import __version__
from penstock.apps.bench.steps import Figures, Step, quantile_hows
from penstock.apps.host_reading.files import Tree, mount_of
from penstock.apps.loads.figures import noise, quantiles_ms
from penstock.apps.process.daemon import deferred
from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK

PIECE_BYTES: Final = 1 << 20
GROUP_PIECES: Final = 8
APPENDED_BYTES_MAX: Final = 256 << 20
SYNC_BYTES: Final = 4096
RECYCLED_BYTES: Final = 4 << 20
SYNCS_MIN: Final = 10
SINK_TIMEOUT_SECONDS: Final = 10.0
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")

_now = SYSTEM_CLOCK.monotonic


def usable_cores() -> float:
    """Return the cores that this process may use: the smaller of its affinity and cgroup quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = _QUOTA.read_text().split()
        return min(float(cores or 1), int(quota) / int(period))
    except (OSError, ValueError):
        return float(cores or 1)


def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def filesystem(directory: Path) -> str:
    """Return the type of a directory's file system; empty if it is unknown."""
    mount = mount_of(Tree(), str(directory.resolve()))
    return mount.kind if mount is not None else ""


def host_facts(directory: Path) -> dict[str, Any]:
    """Return the facts about this host that a calibration has."""
    return {
        "cores": usable_cores(),
        "memory_bytes": memory_bytes(),
        "processor": processor(),
        "filesystem": filesystem(directory),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "penstock": __version__,
    }


class Loopback:
    """Benchmark of TCP over loopback: sends bytes to `sink.py`, a process that discards them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._payload = bytes(PIECE_BYTES)

    def run(self, seconds: float) -> Figures:
        """Send for `seconds`, wait until the reader has received everything, and return the
        rate.
        """
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise UnavailableError(
                f"loopback: the reading process did not connect within {SINK_TIMEOUT_SECONDS:g} s"
            ) from None
        with connection:
            sent, began = 0, _now()
            while _now() - began < seconds:
                connection.sendall(self._payload)
                sent += len(self._payload)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            elapsed = _now() - began
        return {"loopback_mb_per_s": sent / elapsed / 1e6}


@contextmanager
def loopback_step() -> Iterator[Step]:
    """Start the reading process, yield the loopback step, and kill the process at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SINK_TIMEOUT_SECONDS)
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "penstock.apps.bench.sink", str(port)]
        quiet = subprocess.DEVNULL
        sink = None
        try:
            with deferred():
                sink = subprocess.Popen(
                    command, stdin=quiet, stdout=quiet, stderr=quiet, process_group=0
                )
            yield Step(
                label="loopback",
                share=0.05,
                run=Loopback(listener).run,
                hows={
                    "loopback_mb_per_s": "1 MiB writes over one TCP connection on loopback, to a"
                    " process that discards the bytes"
                },
            )
        finally:
            if sink is not None:
                sink.kill()
                sink.wait()


class Disk:
    """Benchmark of a directory's disk: synced overwrites of a file, and appends to another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._piece = noise(PIECE_BYTES)
        self._group = [self._piece] * GROUP_PIECES
        self._recycled = os.open(directory / "recycled", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        for start in range(0, RECYCLED_BYTES, PIECE_BYTES):
            os.pwrite(self._recycled, self._piece, start)
        os.fsync(self._recycled)
        self._position = 0

    def close(self) -> None:
        os.close(self._recycled)

    def sync(self, seconds: float) -> Figures:
        """Overwrite and sync 4 KiB repeatedly, for `seconds`; return quantiles of the latency."""
        page, took, began = self._piece[:SYNC_BYTES], list[float](), _now()
        while _now() - began < seconds or len(took) < SYNCS_MIN:
            start = _now()
            os.pwrite(self._recycled, page, self._position)
            os.fdatasync(self._recycled)
            took.append(_now() - start)
            self._position = (self._position + SYNC_BYTES) % RECYCLED_BYTES
        return quantiles_ms("sync", took)

    def append(self, seconds: float) -> Figures:
        """Append to a new file for `seconds`, with a sync after every 8 MiB; return the rate."""
        path = self._directory / "appended"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        try:
            written, began = 0, _now()
            while not written or (_now() - began < seconds and written < APPENDED_BYTES_MAX):
                written += os.writev(file, self._group)
                os.fdatasync(file)
            elapsed = _now() - began
        finally:
            os.close(file)
            path.unlink()
        return {"disk_append_mb_per_s": written / elapsed / 1e6}


@contextmanager
def disk_steps(directory: Path) -> Iterator[list[Step]]:
    """Yield the two steps that measure the disk of an existing directory."""
    with closing(Disk(directory)) as disk:
        yield [
            Step(
                label="disk sync",
                share=0.06,
                run=disk.sync,
                hows=quantile_hows(
                    "sync",
                    "pwrite and fdatasync of 4 KiB in an existing file of the data directory",
                ),
            ),
            Step(
                label="disk append",
                share=0.06,
                run=disk.append,
                hows={
                    "disk_append_mb_per_s": "8 MiB writes to a growing file of the data"
                    " directory, with fdatasync after each"
                },
            ),
        ]
