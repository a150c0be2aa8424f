"""A time, in a file, at which a stream should run a batch even if no record has come.

The query's driver writes it and the source's planner process, on the same machine, reads it. The
file is replaced as a whole. Losing it costs a delay and nothing else, so it is not synced: whoever
has something due writes it again when it starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TEXT_CHARS_MAX: Final = 32


def write(path: Path, at_ms: int | None, *, by: str) -> None:
    """Ask for a batch at a time in milliseconds since 1970; None takes the wish back.

    Args:
        by: who asks. Two at the same moment must have two names, as each has a draft of its own.
    """
    draft = path.with_name(f"{path.name}.{by}.draft")
    draft.write_text("" if at_ms is None else str(at_ms), encoding="ascii")
    os.replace(draft, path)


def read(path: str) -> int | None:
    """The time asked for; None where there is none."""
    try:
        with open(path, encoding="ascii") as file:
            text = file.read(TEXT_CHARS_MAX).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None
