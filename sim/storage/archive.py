"""The archive's directory on a simulated disk: the product's puts, call by call.

How keys are walked to is left out, as keys have one part here, and so are threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from penstock.base.files import make_directories
from penstock.objects.directory import PARTIAL, DirectoryStore
from sim.disk import Disk

ROOT = Path("/data/archive")


class Archive(DirectoryStore):
    """A store that is there from the beginning, its directories synced."""

    def __init__(self, disk: Disk) -> None:
        self.root = ROOT
        self._files = disk
        self._stem = "put"
        self._numbers = itertools.count()
        self._failed = None
        for path in (ROOT, ROOT / PARTIAL):
            make_directories(disk, str(path))
        self._root = disk.open_directory(str(ROOT))
        self._partial = disk.open_directory(str(ROOT / PARTIAL))

    def store(self, key: str, pieces: Sequence[bytes]) -> None:
        """As `put`, at once."""
        self._put(key, pieces)

    @contextmanager
    def _directory(self, key: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        yield self._root, key
