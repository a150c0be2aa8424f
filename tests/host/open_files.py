"""Open descriptors of this process by name: tests check only their own, as others' come and go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def open_files() -> Iterator[tuple[str, int]]:
    """Return the target of each descriptor, and the target's size."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed by now
            where = f"/proc/self/fd/{name}"
            yield os.readlink(where), os.stat(where).st_size
