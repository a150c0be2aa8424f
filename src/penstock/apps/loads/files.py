"""Plain file writes, which an outbox is compared with."""

from __future__ import annotations

import os
from pathlib import Path


def write_plainly(directory: Path, name: str, payload: bytes, durable: bool) -> None:
    """Create, write, rename; with `durable` sync the file before and the directory after."""
    temporary = directory / f"{name}.tmp"
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(payload)
        while view:
            view = view[os.write(file, view) :]
        if durable:
            os.fdatasync(file)
    finally:
        os.close(file)
    temporary.rename(directory / name)
    if durable:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
