"""Checks of this machine for `penstock doctor`: data directory, limits, requirements of
pipelines.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.apps.doctor.findings import Check, Finding, Status
from penstock.apps.host_reading import existing, quantile, sync_times_ms
from penstock.base.settings import whole_number

FREE_BYTES_WARN: Final = 10 << 30
FREE_BYTES_FAIL: Final = 1 << 30
FILES_WARN: Final = 4096
SYNC_ROUNDS: Final = 20
SYNC_WARN_MS: Final = 10.0
JAVA_MINIMUM: Final = 17
JAVA_SECONDS: Final = 10.0


def data_directory(directory: Path) -> list[Check]:
    """Return the checks of a broker's data directory, which need not exist yet."""
    return [
        Check(f"data directory {directory}", lambda: [_writable(directory)]),
        Check("disk space", lambda: [space("disk space", directory)]),
        Check("disk sync", lambda: [sync("disk sync", directory)]),
    ]


def programs() -> list[Check]:
    """Return the checks of the limit of open files, of Java and of PySpark."""
    return [
        Check("open files", lambda: [_files()]),
        Check("Java", lambda: [_java()]),
        Check("Spark", lambda: [_spark()]),
    ]


def _writable(directory: Path) -> Finding:
    at = existing(directory)
    name = f"data directory {directory}"
    try:
        with tempfile.NamedTemporaryFile(dir=at):
            pass
    except OSError as error:
        return Finding(
            name, "fail", f"{at}: {error.strerror}",
            "choose another directory with --data-dir, or change the owner of this one",
        )  # fmt: skip
    there = at == directory.expanduser().absolute()
    return Finding(name, "ok", "writable" if there else "can be created")


def space(name: str, directory: Path) -> Finding:
    """Check the free space of a directory, or of its nearest existing parent."""
    free = shutil.disk_usage(existing(directory)).free
    status: Status = "ok"
    if free < FREE_BYTES_WARN:
        status = "fail" if free < FREE_BYTES_FAIL else "warn"
    return Finding(
        name, status, f"{free / (1 << 30):.1f} GiB free",
        "" if status == "ok" else "free disk space, or lower retention.bytes and retention.ms",
    )  # fmt: skip


def sync(name: str, directory: Path) -> Finding:
    """Measure syncs in a directory, or in its nearest existing parent."""
    at = existing(directory)
    try:
        times = sync_times_ms(at, SYNC_ROUNDS)
    except OSError as error:
        return Finding(
            name, "fail", f"{at}: cannot write: {error.strerror}",
            "choose another directory, or change its owner",
        )  # fmt: skip
    median_ms = quantile(times, 0.5)
    slow = median_ms > SYNC_WARN_MS
    return Finding(
        name, "warn" if slow else "ok",
        f"median of {len(times)} syncs {median_ms:.2f} ms, longest {times[-1]:.2f} ms",
        "every acknowledged write waits for a sync: use a faster disk" if slow else "",
    )  # fmt: skip


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FILES_WARN
    return Finding(
        "open files", "warn" if few else "ok", f"limit {soft}, which can be raised to {hard}",
        (f"raise it to {FILES_WARN} or more, with ulimit -n or with LimitNOFILE= in the systemd"
        " unit") if few else "",
    )  # fmt: skip


def _java() -> Finding:
    name, fix = (
        "Java",
        f"for Spark pipelines, install a Java runtime of version {JAVA_MINIMUM} or newer",
    )
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, "warn", f"{command}: {error}", fix)
    said = (done.stderr or done.stdout).splitlines()
    version = _java_version(said[0] if said else "")
    if version < JAVA_MINIMUM:
        found = said[0] if said else "no version"
        return Finding(name, "warn", f"{command}: {found}", fix)
    return Finding(name, "ok", said[0])


def _java_version(line: str) -> int:
    quoted = line.split('"')
    number = quoted[1].split(".")[0] if len(quoted) > 1 else ""
    return whole_number(number) or 0


def _spark() -> Finding:
    if find_spec("pyspark") is None:
        return Finding(
            "Spark", "warn", "pyspark is not installed",
            "for Spark pipelines, run pip install 'penstock[spark]'",
        )  # fmt: skip
    from importlib.metadata import version

    return Finding("Spark", "ok", f"pyspark {version('pyspark')}")
