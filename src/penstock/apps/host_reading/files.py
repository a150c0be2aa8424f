"""Reading of small files of /proc and /sys, and of the mount table, below a `Tree`.

A tree is a directory that takes the place of `/`, with the reasons for values that could not be
read. The same functions can therefore read this host, the files of a host that are mounted in a
container, and the files of a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

FILE_BYTES_MAX: Final = 1 << 20
"""Most bytes that are read from one file; the files read here are far shorter."""


@dataclass(slots=True)
class Tree:
    """Directory that takes the place of `/`, with the reasons for values that could not be read.

    `process` is the id of the examined process, or `self`. `unread` has the reasons by fact.
    """

    root: Path = Path("/")
    process: str = "self"
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def is_here(self) -> bool:
        """Whether this is the running host, which can also be queried without files."""
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        """Return the path of a file of the host."""
        return self.root / name.lstrip("/")

    def of_process(self, name: str) -> str:
        """Return the name of a file in /proc about the examined process."""
        return f"/proc/{self.process}/{name}"

    def text(self, name: str, fact: str = "") -> str | None:
        """Return the text of a file; if it cannot be read, record the reason for `fact` and return
        None.
        """
        try:
            with self.path(name).open("rb") as file:
                return file.read(FILE_BYTES_MAX).decode(errors="replace").strip()
        except OSError as error:
            if fact:
                self.missing(fact, f"{name}: {error.strerror or error}")
            return None

    def number(self, name: str, fact: str = "") -> int | None:
        """Return the number in a file; if there is none, record the reason for `fact` and return
        None.
        """
        text = self.text(name, fact)
        if text is None:
            return None
        value = whole(text)
        if value is None and fact:
            self.missing(fact, f"{name}: {text[:40]!r} is no number")
        return value

    def missing(self, fact: str, why: str) -> None:
        """Record the reason why a fact is unknown, unless it has one already."""
        self.unread.setdefault(fact, why)


def whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def pairs(text: str, separator: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield a text's lines, each split at the first separator into a name and the rest."""
    for line in text.splitlines():
        name, *rest = line.split(separator, 1)
        yield name.strip(), rest[0].strip() if rest else ""


def numbers(text: str) -> dict[str, int]:
    """Return the lines `name number` of a text as a mapping; ignore other lines."""
    found = {name: whole(rest) for name, rest in pairs(text)}
    return {name: value for name, value in found.items() if value is not None}


def cpu_list(text: str) -> list[int]:
    """Return the numbers of CPUs in a list such as `0-3,8`; ignore invalid parts."""
    cpus: list[int] = []
    for word in text.split(","):
        first, _, last = word.strip().partition("-")
        begin = whole(first)
        end = whole(last) if last else begin
        if begin is not None and end is not None and 0 <= end - begin < CPUS_MAX:
            cpus += range(begin, end + 1)
    return cpus


CPUS_MAX: Final = 1 << 16


# The table of mounts. Source: proc(5), mountinfo.


class Mount(NamedTuple):
    """Mount of a file system.

    `root` is the directory of the file system that is visible at `point`; `kind` is its type.
    """

    root: str
    point: str
    options: tuple[str, ...]
    kind: str
    super_options: tuple[str, ...]


def mounts(tree: Tree) -> Iterator[Mount]:
    """Yield the mounts that the examined process sees, in the order of the mount table."""
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
    """Return the mount that has a directory: that with the longest path, or the last of several."""
    best: Mount | None = None
    for mount in mounts(tree):
        above = PurePosixPath(directory).is_relative_to(mount.point)
        if above and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _plain(text: str) -> str:
    """Replace the octal escapes of spaces, tabs, newlines and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
