"""Trace of the files of the package that a request goes through, from its frame to its answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import penstock

SOURCE = Path(penstock.__file__).parent
ROUNDS = 30
"""Traced requests; the one through the fewest files counts, as timers may run beside the others."""


async def walk_of(
    request: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[Any]] | None = None
) -> list[str]:
    """Send a request several times; return the files of its shortest walk, those of `base` apart.

    The trace sees the thread of the event loop. Encoding and decoding by the client do not count,
    nor does `before`, which runs ahead of each request.
    """
    walks = []
    for _ in range(ROUNDS):
        if before is not None:
            await before()
        files: set[str] = set()

        def trace(frame: FrameType, event: str, argument: Any, files: set[str] = files) -> None:
            name = name_of(frame)
            if event == "call" and name and not _by_client(frame):
                files.add(name)

        sys.setprofile(trace)
        try:
            await request()
        finally:
            sys.setprofile(None)
        walks.append(sorted(name for name in files if not name.startswith("base/")))
    return min(walks, key=len)


def name_of(frame: FrameType | None) -> str:
    """Return the file of a frame, relative to the package; empty if it is not in the package."""
    path = "" if frame is None else frame.f_code.co_filename
    inside = path.startswith(f"{SOURCE}{os.sep}")
    return Path(path).relative_to(SOURCE).as_posix() if inside else ""


def _by_client(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.endswith("wire_client.py"):
            return True
        frame = frame.f_back
    return False
