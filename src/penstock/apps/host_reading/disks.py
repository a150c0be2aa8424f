"""Data directory facts: duration of syncs, free space, file system.

A sync is timed as a log's is: append 4 KiB to an unnamed file and sync its data.
"""

from __future__ import annotations

import os
import tempfile
from math import ceil
from pathlib import Path
from typing import Final

from penstock.apps.host_reading.files import Tree, mount_of
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.planner.host_check import Disk

SYNC_BYTES: Final = 4096
SYNC_ROUNDS_MAX: Final = 1_000
SYNC_SECONDS_MAX: Final = 5.0
"""A slow disk gets fewer rounds."""


def existing(directory: Path) -> Path:
    """Return the directory, or its nearest existing parent."""
    path = directory.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path


def sync_times_ms(directory: Path, rounds: int, clock: Clock = SYSTEM_CLOCK) -> list[float]:
    """Measure `rounds` syncs of 4 KiB in this directory; return their milliseconds, sorted.

    Fewer if they take longer than `SYNC_SECONDS_MAX` together.

    Raises:
        OSError: the directory is not writable.
    """
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        until = clock.monotonic() + SYNC_SECONDS_MAX
        while len(times) < min(rounds, SYNC_ROUNDS_MAX) and (
            not times or clock.monotonic() < until
        ):
            os.write(file.fileno(), b"x" * SYNC_BYTES)
            begun = clock.monotonic()
            os.fdatasync(file.fileno())
            times.append((clock.monotonic() - begun) * 1000)
    return sorted(times)


def quantile(ordered: list[float], share: float) -> float:
    """Return the smallest value that `share` of all values do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)]


def read_disk(tree: Tree, directory: Path, sync_rounds: int) -> Disk:
    """Return the facts about a data directory, or about its future location."""
    at = existing(directory)
    times = _measured(tree, at, sync_rounds)
    mount = mount_of(tree, str(at.resolve()))
    free_bytes, free_inodes = _free(tree, at)
    return Disk(
        directory=str(directory.expanduser().absolute()),
        measured_in=str(at),
        file_system=mount.kind if mount else None,
        mount_point=mount.point if mount else None,
        options=(*mount.options, *mount.super_options) if mount else (),
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        syncs=len(times),
        sync_p50_ms=quantile(times, 0.5) if times else None,
        sync_p99_ms=quantile(times, 0.99) if times else None,
    )


def file_system(tree: Tree, path: str) -> str | None:
    """Return the type of a file's file system, also if the file does not exist."""
    mount = mount_of(tree, str(existing(Path(path).parent).resolve()))
    return mount.kind if mount else None


def _measured(tree: Tree, at: Path, rounds: int) -> list[float]:
    if rounds < 1:
        tree.missing("sync", "it was not to be measured")
        return []
    try:
        return sync_times_ms(at, rounds)
    except OSError as error:
        tree.missing("sync", f"{at}: {error.strerror}")
        return []


def _free(tree: Tree, at: Path) -> tuple[int | None, int | None]:
    try:
        found = os.statvfs(at)
    except OSError as error:
        tree.missing("disk", f"{at}: {error.strerror}")
        return None, None
    inodes = found.f_favail if found.f_files else None
    return found.f_bavail * found.f_frsize, inodes
