"""Process that kills a sweeper at every one of its file calls, and checks the remaining tree.

    python -m tests.outbox.sweep_kills DIRECTORY

It forks a child for each kill, because a fork is a hundred times faster than a start; it has no
threads and no broker. It prints the number of kills.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from penstock.base.crc import crc32c
from penstock.outbox.gc.pointer_index import PointerIndex, TopicCounts
from penstock.outbox.gc.sweeper import Sweeper, SweepRules
from penstock.outbox.gc.tree import Entry, TreeFiles
from penstock.outbox.layout import data_path, temporary_name

AT_MS = 1_779_580_800_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
OLD_SECONDS = 1_000_000_000.0
RULES = SweepRules(retention_ms=DAY_MS, orphan_age_ms=HOUR_MS, unreferenced_grace_ms=DAY_MS)


class Failing(TreeFiles):
    """File calls of which one, by its number, fails before or after it is made."""

    def __init__(self, number: int, *, after: bool = False) -> None:
        self._left = number
        self._after = after

    @property
    def fired(self) -> bool:
        return self._left <= 0

    def fail(self) -> None:
        raise OSError(5, os.strerror(5))

    def _before(self) -> None:
        if not self._after:
            self._count()

    def _behind(self) -> None:
        if self._after:
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.fail()

    def open_directory(self, directory: int, name: str) -> int:
        self._before()
        handle = super().open_directory(directory, name)
        try:
            self._behind()
        except OSError:
            os.close(handle)
            raise
        return handle

    def entries(self, directory: int) -> Iterator[Entry]:
        self._before()
        for entry in super().entries(directory):
            yield entry
            self._behind()

    def stat(self, directory: int, name: str) -> os.stat_result:
        self._before()
        found = super().stat(directory, name)
        self._behind()
        return found

    def stat_directory(self, directory: int) -> os.stat_result:
        self._before()
        found = super().stat_directory(directory)
        self._behind()
        return found

    def remove_file(self, directory: int, name: str) -> None:
        self._before()
        super().remove_file(directory, name)
        self._behind()

    def remove_directory(self, directory: int, name: str) -> None:
        self._before()
        super().remove_directory(directory, name)
        self._behind()


class Killing(Failing):
    """File calls of which one ends the process, as a crash would."""

    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Scene:
    """Tree with every removable and every permanent entry, and its pointers."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.goes: list[Path] = []
        self.stays: dict[Path, bytes] = {}
        self._pointers: list[tuple[str, int, int, bool]] = []
        for number in range(3):
            self._add(f"read{number}", hour=number, consumed=True)
            self._add(f"left{number}", hour=number, orphan=True)
        self._add("waiting0", hour=0, consumed=False, orphan=True)
        self._add("waiting1", hour=5, consumed=False)
        self._add("forgotten", hour=1, partition="q")
        self._add("fresh", hour=1, consumed=True, old=False)
        writing = self.root / data_path("p", "writing", AT_MS)
        writing.parent.mkdir()
        temporary = writing.with_name(temporary_name("live", 1))
        temporary.write_bytes(b"half")
        self.stays[temporary] = b"half"
        (self.root / "empty/year=2020/month=01/day=01/hour=00/batch-x").mkdir(parents=True)
        for path in sorted(self.root.rglob("*"), reverse=True):
            if "fresh" not in path.name and path.parent.name not in (
                "batch-fresh",
                "batch-writing",
            ):
                os.utime(path, (OLD_SECONDS, OLD_SECONDS))

    def _add(
        self,
        batch: str,
        *,
        hour: int,
        consumed: bool | None = None,
        orphan: bool = False,
        old: bool = True,
        partition: str = "p",
    ) -> None:
        relative = data_path(partition, batch, AT_MS + hour * HOUR_MS)
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        if orphan:
            temporary = path.with_name(temporary_name("dead", 1))
            temporary.write_bytes(b"half")
            self.goes.append(temporary)
        if batch.startswith("left"):
            return
        payload = batch.encode()
        path.write_bytes(payload)
        if consumed is not None:
            self._pointers.append((relative, len(payload), crc32c(payload), consumed))
        if consumed and old:
            self.goes.append(path)
        else:
            self.stays[path] = payload

    def begin(self) -> tuple[str, ...]:
        return ("g",)

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        paths, sizes, sums, consumed = zip(*self._pointers, strict=True)
        count = len(paths)
        table = pa.table(
            {
                "file_path": pa.array(paths),
                "size_bytes": pa.array(sizes, pa.int64()),
                "crc32c": pa.array(sums, pa.uint32()),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
            }
        )
        index.add(table, consumed=pa.array(consumed))
        return TopicCounts(pointers=count)

    def sweeper(self, files: TreeFiles | None = None) -> Sweeper:
        return Sweeper(self.root, pointers=self, rules=RULES, execute=True, files=files)

    def check_stays(self) -> None:
        for path, data in self.stays.items():
            assert path.read_bytes() == data, path

    def check_gone(self) -> None:
        """Check that removable entries and initially empty directories are gone."""
        assert not [path for path in self.goes if path.exists()]


def kill_at(directory: Path, number: int, *, after: bool) -> bool:
    """Whether the sweeper reached its call of this number and was killed."""
    made = Scene(directory / f"{number}-{after}")
    child = os.fork()
    if child == 0:
        made.sweeper(Killing(number, after=after)).sweep()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    made.check_stays()
    made.sweeper().sweep()
    made.check_stays()
    made.check_gone()
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def main(directory: Path) -> None:
    kills = 0
    for after in (False, True):
        for number in itertools.count(1):
            if not kill_at(directory, number, after=after):
                break
            kills += 1
    print(kills)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
