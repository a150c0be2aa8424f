"""Process that kills sweepers beside a live writer, at calls of random numbers.

    python -m tests.outbox.sweep_kills_live DIRECTORY KILLS

A forked child writes batches as fast as possible into three hours of the past, and reports each
complete one through a pipe. Nine of ten count as read by all groups, so sweepers with zero ages
remove them, and their directories, while the writer works; every tenth has no pointer and
must stay. It prints the numbers of killed sweepers and written batches.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from penstock.base.errors import RetriableError
from penstock.outbox.gc.pointer_index import PointerIndex, TopicCounts
from penstock.outbox.gc.sweeper import Sweeper, SweepRules
from penstock.outbox.layout import BATCH_PREFIX, data_path, hour_directory, temporary_name
from penstock.outbox.writer.safe_write import Tree, WritePlan
from tests.outbox.sweep_kills import AT_MS, HOUR_MS, Killing

KEPT_EVERY = 10
BATCHES_MAX = 10_000
PAUSE_SECONDS = 0.0005
RULES = SweepRules(retention_ms=0, orphan_age_ms=0, unreferenced_grace_ms=10**12)


def place(number: int) -> tuple[str, str, int]:
    """Return partition id, batch id and time of a batch."""
    return "p", f"b{number}", AT_MS + number % 3 * HOUR_MS


class Read:
    """Pointers of all removable batches."""

    def __init__(self) -> None:
        paths = [data_path(*place(n)) for n in range(BATCHES_MAX) if n % KEPT_EVERY]
        count = len(paths)
        self._table = pa.table(
            {
                "file_path": pa.array(paths),
                "size_bytes": pa.array([1] * count, pa.int64()),
                "crc32c": pa.array([0] * count, pa.uint32()),
                "partition": pa.array([0] * count, pa.int32()),
                "offset": pa.array(range(count), pa.int64()),
            }
        )
        self._consumed = pa.array([True] * count)

    def begin(self) -> tuple[str, ...]:
        return ("g",)

    def fill(self, index: PointerIndex, *, inline: bool = False) -> TopicCounts:
        index.add(self._table, consumed=self._consumed)
        return TopicCounts()


def write(root: Path, out: int, until: int) -> None:
    """Write batches until a byte comes on `until`, and report each complete one."""
    tree = Tree(root)
    for number in range(BATCHES_MAX):
        partition, batch, at_ms = place(number)
        payload = f"{number}".encode()
        for attempt in range(1_000):
            plan = WritePlan(
                hour_directory=hour_directory(partition, at_ms),
                batch_name=f"{BATCH_PREFIX}{batch}",
                temporary_name=temporary_name("live", attempt),
                buffers=[memoryview(payload)],
                size_bytes=len(payload),
                durable=False,
            )
            with suppress(RetriableError):
                tree.write(plan)
                break
        else:
            os._exit(3)
        os.write(out, b"%d\n" % number)
        if select.select([until], [], [], PAUSE_SECONDS)[0]:
            return


def main(root: Path, wanted: int) -> None:
    dice = random.Random(11)
    read = Read()
    reports, reporting = os.pipe()
    until, ending = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(reports)
        write(root, reporting, until)
        os._exit(0)
    os.close(reporting)
    os.set_blocking(reports, False)
    said, kills = b"", 0
    while kills < wanted:
        files = Killing(dice.randrange(1, 400), after=dice.random() < 0.5)
        sweeper = os.fork()
        if sweeper == 0:
            Sweeper(root, pointers=read, rules=RULES, execute=True, files=files).sweep()
            os._exit(0)
        _, status = os.waitpid(sweeper, 0)
        kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        with suppress(BlockingIOError):
            said += os.read(reports, 1 << 20)
    os.write(ending, b"x")
    os.set_blocking(reports, True)
    while more := os.read(reports, 1 << 20):
        said += more
    _, status = os.waitpid(writer, 0)
    written = [int(line) for line in said.split()]
    if os.waitstatus_to_exitcode(status) or written != list(range(len(written))):
        sys.exit(f"the writer ended with {status} after {len(written)} batches")
    for number in written:
        if number % KEPT_EVERY == 0 and (root / data_path(*place(number))).read_bytes() != (
            b"%d" % number
        ):
            sys.exit(f"batch {number} is not what was written")
    Sweeper(root, pointers=read, rules=RULES, execute=True).sweep()
    left = sorted(int(path.read_bytes()) for path in root.rglob("data.bin*"))
    if left != [number for number in written if number % KEPT_EVERY == 0]:
        sys.exit("the last sweep left too much or too little")
    print(kills, len(written))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
