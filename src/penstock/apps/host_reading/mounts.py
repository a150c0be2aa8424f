"""The table of mounts, and which of them a path stands on.

Source: proc(5), mountinfo.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from penstock.apps.host_reading.files import Tree


class Mount(NamedTuple):
    """One mount: the part of its file system that is seen, where, and with which options."""

    root: str
    point: str
    options: tuple[str, ...]
    kind: str
    super_options: tuple[str, ...]


def mounts(tree: Tree) -> Iterator[Mount]:
    """The mounts that the process sees, in order."""
    for line in (tree.text(tree.of_process("mountinfo"), "mount") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) >= 6 and len(after) >= 1:
            yield Mount(
                root=_plain(before[3]),
                point=_plain(before[4]),
                options=tuple(before[5].split(",")),
                kind=after[0],
                super_options=tuple(after[2].split(",")) if len(after) > 2 else (),
            )


def mount_of(tree: Tree, directory: str) -> Mount | None:
    """The mount that a directory stands on: the longest path above it, the last of equals."""
    best: Mount | None = None
    for mount in mounts(tree):
        above = PurePosixPath(directory).is_relative_to(mount.point)
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _plain(text: str) -> str:
    """Without the octal escapes of spaces, tabs, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
