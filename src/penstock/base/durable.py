"""Files and names that outlive a power cut, where a simple call will do.

What is written again and again goes through the file ports of its room.

Source: fsync(2): a file's name is durable when its directory was synced.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: str | Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file as a whole; after a crash it is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_directory(path.parent)
