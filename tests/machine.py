"""Requirements of tests on the machine that a package cannot bring: root, tools of the system.

CI has all of it and sets `PENSTOCK_REQUIRE_INTEROP=1`, with which a test that lacks something
fails. For other users than root it is skipped and reports what was missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

_SHARED = Path("/dev/shm")
MEMORY = _SHARED if os.access(_SHARED, os.W_OK) else None
"""A directory in memory, if there is one: files are synced there at no cost."""


def lacking(what: str) -> NoReturn:
    """End a test for want of something that this machine does not have or allow."""
    if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
        pytest.fail(f"this machine has to run every test, but {what}")
    pytest.skip(f"not on this machine: {what}")


@cache
def _found(name: str, package: str) -> str | None:
    found = shutil.which(name)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        with _only_one():
            found = shutil.which(name) or _installed(name, package)
    return found


def _installed(name: str, package: str) -> str | None:
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", package]
    if subprocess.run(install, capture_output=True).returncode:
        subprocess.run(["apt-get", "update", "--quiet"], capture_output=True)
        subprocess.run(install, capture_output=True)
    return shutil.which(name)


@contextmanager
def _only_one() -> Iterator[None]:
    """Keep other test processes from installing meanwhile: the system's own locks refuse."""
    with (Path(tempfile.gettempdir()) / "penstock-tests-install.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def system_tool(name: str, package: str) -> str:
    """Return a tool's path, installed from Debian if root may; without it the test ends."""
    found = _found(name, package)
    if found is None:
        lacking(f"{name} is not installed and could not be (package {package})")
    return found


@contextmanager
def disk_of(size: str, directory: Path) -> Iterator[Path]:
    """A real file system of this size in memory, mounted at a new directory; root may."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        lacking("only root can mount a file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
