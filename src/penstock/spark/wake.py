"""Wake file: requests a batch of a stream at a given time, even without new records.

The query's driver writes the file, and the source's planner process on the same machine reads it.
The file is always replaced as a whole. It is not synced to disk, because a lost file only delays a
batch.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TEXT_CHARS_MAX: Final = 32


def write(path: Path, at_ms: int | None, *, by: str) -> None:
    """Request a batch at a time in milliseconds since 1970; None withdraws the request.

    Args:
        path: the wake file.
        at_ms: requested time.
        by: name of the caller, which is part of the temporary file's name. Concurrent callers need
            different names.
    """
    draft = path.with_name(f"{path.name}.{by}.draft")
    draft.write_text("" if at_ms is None else str(at_ms), encoding="ascii")
    os.replace(draft, path)


def read(path: str) -> int | None:
    """Return the requested time in milliseconds since 1970; None if there is no request."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(TEXT_CHARS_MAX).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
