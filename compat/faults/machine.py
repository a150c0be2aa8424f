"""How much of a machine that others use as well there is: seconds in which things could get on.

A limit of time tells what is stuck from what goes on. Where processors are shared and disks stand
still it tells nothing, so limits count what this clock says: it goes slower where a thread waits
for a processor, and stands while a sync takes long.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Self

_REST_SECONDS = 0.1
_WORK_SECONDS = 0.003
_SLOWEST = 0.1
"""A clock that stood still would have nothing end."""


class Machine(threading.Thread):
    """A thread that works a little, syncs a file, and rests, until the context ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.seconds = 0.0
        """What there was, since the begin."""
        self._file = directory / "sync"
        self._over = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        with self._file.open("wb") as file:
            while not self._over.is_set():
                begin = time.monotonic()
                self._over.wait(_REST_SECONDS)
                rested = time.monotonic()
                until = time.thread_time() + _WORK_SECONDS
                while time.thread_time() < until:
                    pass
                share = _WORK_SECONDS / max(_WORK_SECONDS, time.monotonic() - rested)
                file.write(b"x")
                file.flush()
                os.fdatasync(file.fileno())
                passed = time.monotonic() - begin
                self.seconds += max(_REST_SECONDS * share, passed * _SLOWEST)
