"""Folders for reproducible files, shared by all processes of a machine."""

from __future__ import annotations

import os
from pathlib import Path


def folders(variable: str, package: Path, name: str) -> tuple[Path, ...]:
    """Return the folders to read from and to write to, the preferred one first.

    They are the one that an environment variable names, or else `__pycache__/name` of a package,
    then `~/.cache/penstock/name` (XDG_CACHE_HOME), for a package that is read-only.
    """
    if named := os.environ.get(variable):
        return (Path(named),)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return package / "__pycache__" / name, Path(cache) / "penstock" / name


def can_write(folder: Path) -> bool:
    """Whether files can be written to a folder, which is created if it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)
