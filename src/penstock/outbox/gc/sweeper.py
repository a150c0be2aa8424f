"""Sweeper that removes leftovers of writers, and payloads that every group has consumed.

One sweep reads the groups' offsets, reads the topic's pointers into an index, walks the
directories, and removes what the rules (`rules`) allow:

    temporary files, payloads, then empty directories, from the leaves up

It may run at the same time as writers, readers and other sweepers, and may be killed at any time.
Every step leaves a valid tree. Directories are removed only by `rmdir`, which fails if they are not
empty. If a writer's directory is removed between its `mkdir` and its `open`, the writer recreates
it. A file is checked again right before its removal, so that a newer file of the same name stays.

Without a topic, only temporary files and empty directories are removed.
"""

from __future__ import annotations

import errno
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from numpy.typing import NDArray

from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.outbox.gc.pointer_index import (
    INDEX_ENTRIES_MAX,
    Looked,
    PointerIndex,
    PointerSource,
    Window,
)
from penstock.outbox.gc.tree import (
    NOTES_MAX,
    Batch,
    File,
    Hour,
    TreeFiles,
    WalkCounts,
    identity_of,
    looks,
    open_root,
    walk,
)
from penstock.outbox.layout import DATA_FILE
from penstock.outbox.metrics import SweeperCounts
from penstock.outbox.settings import check_numbers

# Rules of the sweeper: which files and directories it removes, by their ages and pointers.
#
# | entry                                   | removed when                                         |
# |-----------------------------------------|------------------------------------------------------|
# | payload with an unconsumed pointer      | never                                                |
# | payload, all its pointers consumed      | `retention_ms` after it was written                  |
# | payload without a pointer on the topic  | `retention_ms + unreferenced_grace_ms` after it was  |
# |                                         | written, and only with `remove_unreferenced`         |
# | temporary file                          | `orphan_age_ms` after its last write                 |
# | directory                               | empty, and `orphan_age_ms` after its last change     |
#
# A pointer is *consumed* if it is below the committed offset of the slowest relevant group. The age
# of a file is that of its modification time, not of the hour in its path: producers may file a
# batch under the hour of its events, which can be years ago. A file with a time in the future
# counts as young.
#
# The rule for directories protects a writer between creating its batch directory and creating its
# file there. If a writer is slower than `orphan_age_ms`, it recreates its removed directory and
# continues.
#
# The rules have no I/O and no clock. Source: `design/host-and-outbox.md`, Collect.


class Verdict(IntEnum):
    YOUNG = 0
    """The payload's retention has not passed."""
    WAITING = 1
    """A group has not read the payload's pointer yet."""
    CONSUMED = 2
    """All groups have read the payload's pointer, and its retention has passed: remove it."""
    UNREFERENCED = 3
    """The payload has no pointer, and retention and grace have passed.

    It is reported, and removed on request.
    """


class SweepRules(Struct, frozen=True, kw_only=True):
    """Ages of the sweeper's rules, in milliseconds.

    Raises:
        InvalidSetting: an age is below 0.
    """

    retention_ms: int
    orphan_age_ms: int
    unreferenced_grace_ms: int
    remove_unreferenced: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, retention_ms=0, orphan_age_ms=0, unreferenced_grace_ms=0)

    def judge_payloads(
        self, modified_ms: NDArray[np.int64], known: Looked, *, now_ms: int
    ) -> NDArray[np.int8]:
        age_ms = now_ms - modified_ms
        verdicts = np.full(len(modified_ms), Verdict.YOUNG, np.int8)
        old = age_ms >= self.retention_ms
        verdicts[known.referenced & ~known.consumed] = Verdict.WAITING
        verdicts[old & known.consumed] = Verdict.CONSUMED
        forgotten = age_ms >= self.retention_ms + self.unreferenced_grace_ms
        verdicts[forgotten & ~known.referenced] = Verdict.UNREFERENCED
        return verdicts

    def removes(self, verdict: int) -> bool:
        return verdict == Verdict.CONSUMED or (
            verdict == Verdict.UNREFERENCED and self.remove_unreferenced
        )

    def removes_temporary(self, modified_ms: int, *, now_ms: int) -> bool:
        return now_ms - modified_ms >= self.orphan_age_ms

    def removes_directory(self, modified_ms: int, *, now_ms: int) -> bool:
        """Return whether a directory is old enough to be removed if it is empty.

        `modified_ms` is its time before the sweeper removed entries from it.
        """
        return now_ms - modified_ms >= self.orphan_age_ms


def nothing_known(count: int) -> Looked:
    none: NDArray[Any] = np.zeros(count, np.bool_)
    return Looked(referenced=none, consumed=none)


RETENTION_MS: Final = 24 * 3_600_000
"""Age from which a consumed payload is removed."""
ORPHAN_AGE_MS: Final = 3_600_000
"""Age from which temporary files and empty directories are removed."""
UNREFERENCED_GRACE_MS: Final = 24 * 3_600_000
"""Age, beyond retention, from which a payload without a pointer is unreferenced."""

_NOT_EMPTY: Final = frozenset({errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY})
DEFAULT_RULES: Final = SweepRules(
    retention_ms=RETENTION_MS,
    orphan_age_ms=ORPHAN_AGE_MS,
    unreferenced_grace_ms=UNREFERENCED_GRACE_MS,
)


class SweepReport(Struct):
    """Numbers of entries that a sweep has removed, would remove, or has left.

    `notes` names the first of these entries.
    """

    executed: bool
    groups: tuple[str, ...] = ()
    payloads: int = 0
    removed_payloads: int = 0
    removed_bytes: int = 0
    removed_temporaries: int = 0
    removed_temporary_bytes: int = 0
    removed_directories: int = 0
    young: int = 0
    waiting: int = 0
    unreferenced: int = 0
    unreferenced_bytes: int = 0
    windows: int = 0
    walked: WalkCounts = field(default_factory=WalkCounts)
    notes: list[tuple[str, str]] = field(default_factory=list)
    """(action, path), at most `NOTES_MAX`."""

    def note(self, what: str, path: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append((what, path))


class Sweeper:
    """Sweeper of one root. `sweep` may be called repeatedly, by one thread at a time.

    Args:
        root: the outbox's root on this machine.
        pointers: source of the topic's pointers and the groups' progress; None keeps all payloads.
        rules: the ages from which entries are removed.
        execute: False only counts what would be removed.
        index_entries_max: paths that are in memory at a time.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        pointers: PointerSource | None = None,
        rules: SweepRules = DEFAULT_RULES,
        execute: bool = False,
        index_entries_max: int = INDEX_ENTRIES_MAX,
        clock: Clock = SYSTEM_CLOCK,
        files: TreeFiles | None = None,
    ) -> None:
        self._root = Path(root)
        self._pointers = pointers
        self._rules = rules
        self._execute = execute
        self._index_entries_max = index_entries_max
        self._clock = clock
        self._files = files or TreeFiles()
        self.counts = SweeperCounts()

    def sweep(self) -> SweepReport:
        """Sweep all directories once.

        Raises:
            RootUnavailable: the root is missing.
            PenstockError: the topic or the groups cannot be read.
        """
        report = SweepReport(executed=self._execute)
        root = open_root(self._files, self._root)
        try:
            if self._pointers is None:
                self._window(root, Window(), None, report)
            else:
                self._windows(root, self._pointers, report)
        finally:
            self._files.close(root)
        counts = self.counts
        counts.sweeps += 1
        counts.payloads += report.removed_payloads if report.executed else 0
        counts.payload_bytes += report.removed_bytes if report.executed else 0
        counts.temporaries += report.removed_temporaries if report.executed else 0
        counts.failures += report.walked.failures
        counts.waiting, counts.unreferenced = report.waiting, report.unreferenced
        return report

    def _windows(self, root: int, pointers: PointerSource, report: SweepReport) -> None:
        report.groups = pointers.begin()
        start: str | None = ""
        while start is not None:
            index = PointerIndex(start=start, entries_max=self._index_entries_max)
            pointers.fill(index)
            window = index.finish()
            self._window(root, window, index, report)
            start = window.until

    def _window(
        self, root: int, window: Window, index: PointerIndex | None, report: SweepReport
    ) -> None:
        report.windows += 1
        now_ms = self._clock.now_ms()

        def leave(above: int, name: str, path: str, modified_ms: int) -> None:
            if self._rules.removes_directory(modified_ms, now_ms=now_ms):
                self._remove_directory(above, name, path, report)

        for hour in walk(self._files, root, window, report.walked, leave):
            for batches in looks(self._files, hour, report.walked):
                self._step(hour, batches, window, index, report, now_ms)

    def _step(
        self,
        hour: Hour,
        batches: list[Batch],
        window: Window,
        index: PointerIndex | None,
        report: SweepReport,
        now_ms: int,
    ) -> None:
        paths = [f"{hour.path}/{batch.name}/{DATA_FILE}" for batch in batches]
        keys = pa.array([f"{hour.hour} {path}" for path in paths], pa.large_string())
        inside = window.holds(keys).to_numpy(zero_copy_only=False)
        modified = np.array([b.data.modified_ms if b.data else now_ms for b in batches], np.int64)
        if index is None:
            known = nothing_known(len(batches))
            verdicts = np.full(len(batches), Verdict.YOUNG, np.int8)
        else:
            known = index.look(hour.hour, pa.array(paths, pa.large_string()))
            verdicts = self._rules.judge_payloads(modified, known, now_ms=now_ms)
        for row in np.flatnonzero(inside):
            self._batch(hour, batches[row], int(verdicts[row]), report, now_ms)

    def _batch(
        self, hour: Hour, batch: Batch, verdict: int, report: SweepReport, now_ms: int
    ) -> None:
        path = f"{hour.path}/{batch.name}"
        kept = batch.others + (0 if batch.whole else 1)
        removing: list[tuple[str, File]] = []
        for file in batch.temporaries:
            if self._rules.removes_temporary(file.modified_ms, now_ms=now_ms):
                removing.append(("temporary", file))
            else:
                kept += 1
        if batch.data is not None:
            self._count(batch.data, verdict, f"{path}/{batch.data.name}", report)
            if self._rules.removes(verdict):
                removing.append(("payload", batch.data))
            else:
                kept += 1
        empties = not kept and self._rules.removes_directory(batch.modified_ms, now_ms=now_ms)
        if removing:
            self._remove_files(hour, batch, path, removing, report)
        if empties:
            self._remove_directory(hour.handle, batch.name, path, report)

    def _count(self, file: File, verdict: int, path: str, report: SweepReport) -> None:
        report.payloads += 1
        report.young += verdict == Verdict.YOUNG
        report.waiting += verdict == Verdict.WAITING
        if verdict == Verdict.UNREFERENCED:
            report.unreferenced += 1
            report.unreferenced_bytes += file.size_bytes
            report.note("unreferenced", path)

    def _remove_files(
        self,
        hour: Hour,
        batch: Batch,
        path: str,
        removing: list[tuple[str, File]],
        report: SweepReport,
    ) -> None:
        try:
            handle = self._files.open_directory(hour.handle, batch.name)
        except FileNotFoundError:
            return
        except OSError as error:
            report.walked.fail(path, error)
            return
        try:
            for kind, file in removing:
                self._remove_file(handle, kind, file, f"{path}/{file.name}", report)
        finally:
            self._files.close(handle)

    def _remove_file(
        self, handle: int, kind: str, file: File, path: str, report: SweepReport
    ) -> None:
        try:
            if self._execute:
                if identity_of(self._files.stat(handle, file.name)) != file.identity:
                    return
                self._files.remove_file(handle, file.name)
        except FileNotFoundError:
            return
        except OSError as error:
            report.walked.fail(path, error)
            return
        report.note(kind, path)
        if kind == "payload":
            report.removed_payloads += 1
            report.removed_bytes += file.size_bytes
        else:
            report.removed_temporaries += 1
            report.removed_temporary_bytes += file.size_bytes

    def _remove_directory(self, above: int, name: str, path: str, report: SweepReport) -> None:
        """Remove a directory if it is empty. Does nothing in a dry run."""
        if not self._execute:
            return
        try:
            self._files.remove_directory(above, name)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                report.walked.fail(path, error)
            return
        report.removed_directories += 1
