"""Where files are kept that can be made again, for all processes of a machine."""

from __future__ import annotations

import os
from pathlib import Path


def folders(variable: str, package: Path, name: str) -> tuple[Path, ...]:
    """The folders to look into and to write to, the best one first.

    It is what an environment variable names, alone; else `__pycache__/name` of a package, and for
    a package that is read-only `~/.cache/penstock/name` (XDG_CACHE_HOME).
    """
    if named := os.environ.get(variable):
        return (Path(named),)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return package / "__pycache__" / name, Path(cache) / "penstock" / name


def can_write(folder: Path) -> bool:
    """Whether a folder takes files; it is made if there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
