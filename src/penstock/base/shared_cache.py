"""Cache folders for files that can be computed again, shared by all processes of a machine."""

from __future__ import annotations

import os
from pathlib import Path


def folders(variable: str, package: Path, name: str) -> tuple[Path, ...]:
    """Return the folders of a cache, the preferred one first.

    If the environment variable `variable` is set, it names the only folder. Otherwise the first is
    `__pycache__/name` in `package`. The second, if `package` is read-only, is
    `~/.cache/penstock/name`, or `penstock/name` in XDG_CACHE_HOME.
    """
    if named := os.environ.get(variable):
        return (Path(named),)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return package / "__pycache__" / name, Path(cache) / "penstock" / name


def can_write(folder: Path) -> bool:
    """Create a folder if it is missing; return whether files can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
