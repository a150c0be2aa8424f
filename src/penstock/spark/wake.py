"""Wake file: the time at which a stream should run a batch even if no record has come.

The query's driver writes it and the source's planner process, on the same machine, reads it. The
file is replaced as a whole. It is not synced: a lost file costs a delay only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TEXT_CHARS_MAX: Final = 32


def write(path: Path, at_ms: int | None, *, by: str) -> None:
    """Request a batch at a time in milliseconds since 1970; None withdraws the request.

    Args:
        by: the requester. Two at the same moment need two names, as each has its own draft file.
    """
    draft = path.with_name(f"{path.name}.{by}.draft")
    draft.write_text("" if at_ms is None else str(at_ms), encoding="ascii")
    os.replace(draft, path)


def read(path: str) -> int | None:
    """Return the requested time; None without one."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(TEXT_CHARS_MAX).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
