"""Audit that compares the payloads below a root with the pointers on the topic.

| finding             | meaning                                                     | wrong |
|---------------------|-------------------------------------------------------------|-------|
| `missing`           | the payload of a pointer that a group has yet to read       | yes   |
|                     | does not exist                                              |       |
| `unreferenced`      | a payload older than `grace_ms` has no pointer              | yes   |
| `size-mismatch`     | the size of a payload differs from its pointer's            | yes   |
| `checksum-mismatch` | the CRC32C of a payload differs; checked only on request    | yes   |
| `disagreement`      | two pointers to one path, or two inline records of one      | yes   |
|                     | batch, have different sizes or checksums                    |       |
| `path-escapes`, `not-a-file`, `invalid-path` | a payload's path is not a regular file | yes |
| `unreadable`        | the file system failed                                      | yes   |
| `no-outbox-record`  | a record of the topic was not written by an outbox          | yes   |
| `collected`         | a payload was swept after all groups had read its pointer   | no    |
| `temporary`         | an attempt has left this file, or is writing it             | no    |
| `foreign`           | a name does not follow the outbox's layout                  | no    |

Files and topic are compared window by window (`pointer_index`). The topic is read first. A payload
that is published meanwhile is therefore young, and not `unreferenced`. A payload that seems missing
is looked up again by its path before it is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.outbox.errors import PayloadMissing
from penstock.outbox.gc.pointer_index import (
    INDEX_ENTRIES_MAX,
    INLINE_PATTERN,
    PointerIndex,
    PointerSource,
    TopicCounts,
    Window,
    inline_batch,
)
from penstock.outbox.gc.tree import (
    ENTRIES_PER_STEP,
    NOTES_MAX,
    Batch,
    Hour,
    TreeFiles,
    WalkCounts,
    looks,
    open_root,
    walk,
)
from penstock.outbox.layout import DATA_FILE, parse_path
from penstock.outbox.pointer import Pointer
from penstock.outbox.reader.policy import classify
from penstock.outbox.reader.reader import OutboxReader

AUDIT_GRACE_MS: Final = 300_000
"""Age below which a payload may still get its pointer."""

EXPECTED: Final = frozenset({"collected", "temporary", "foreign"})
"""Findings that are normal. All others are wrong."""


class Finding(Struct, frozen=True, kw_only=True):
    kind: str
    path: str
    detail: str = ""


class AuditReport(Struct):
    """Numbers of findings by kind, and the first wrong findings."""

    groups: tuple[str, ...] = ()
    topic: TopicCounts = field(default_factory=TopicCounts)
    payloads: int = 0
    payload_bytes: int = 0
    verified: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    """At most `NOTES_MAX` findings. Further ones are only counted."""
    walked: WalkCounts = field(default_factory=WalkCounts)

    @property
    def wrong(self) -> int:
        return sum(count for kind, count in self.counts.items() if kind not in EXPECTED)

    def add(self, kind: str, path: str, detail: str = "") -> None:
        self.counts[kind] += 1
        if kind not in EXPECTED and len(self.findings) < NOTES_MAX:
            self.findings.append(Finding(kind=kind, path=path, detail=detail))


class Auditor:
    """Read-only comparison of one root with the pointers of its topic.

    Args:
        root: the outbox's root on this machine.
        pointers: source of the topic's pointers, and of the progress of its groups.
        checksums: whether to read every payload and compare its checksum.
        grace_ms: age below which a payload may still get its pointer.

    Raises:
        RootUnavailable: the root is missing.
    """

    def __init__(
        self,
        root: Path | str,
        pointers: PointerSource,
        *,
        checksums: bool = False,
        grace_ms: int = AUDIT_GRACE_MS,
        index_entries_max: int = INDEX_ENTRIES_MAX,
        clock: Clock = SYSTEM_CLOCK,
        files: TreeFiles | None = None,
    ) -> None:
        self._root = Path(root)
        self._pointers = pointers
        self._checksums = checksums
        self._grace_ms = grace_ms
        self._index_entries_max = index_entries_max
        self._clock = clock
        self._files = files or TreeFiles()

    def audit(self) -> AuditReport:
        """Compare all payloads and pointers once.

        Raises:
            RootUnavailable: the root is missing.
            PenstockError: the topic or the groups cannot be read.
        """
        report = AuditReport()
        root = open_root(self._files, self._root)
        try:
            with OutboxReader(self._root, bytes_max=2**63 - 1) as reader:
                self._windows(root, reader, report)
        finally:
            self._files.close(root)
        report.counts["no-outbox-record"] += report.topic.problems
        report.counts["foreign"] += report.walked.foreign
        for text in report.walked.failed:
            report.add("unreadable", *text.split(": ", 1))
        report.counts["unreadable"] += report.walked.failures - len(report.walked.failed)
        report.counts = Counter({kind: n for kind, n in report.counts.items() if n})
        return report

    def _windows(self, root: int, reader: OutboxReader, report: AuditReport) -> None:
        report.groups = self._pointers.begin()
        start: str | None = ""
        while start is not None:
            index = PointerIndex(start=start, entries_max=self._index_entries_max)
            report.topic = self._pointers.fill(index, inline=True)
            window = index.finish()
            seen = np.zeros(index.rows, np.bool_)
            now_ms = self._clock.now_ms()
            for hour in walk(self._files, root, window, report.walked):
                for batches in looks(self._files, hour, report.walked):
                    step = _Step(hour, [b for b in batches if b.data], window)
                    self._compare(step, index, seen, reader, report, now_ms)
                    self._temporaries(hour, batches, window, report)
            self._missing(index.table(), seen, reader, report)
            start = window.until

    def _temporaries(
        self, hour: Hour, batches: list[Batch], window: Window, report: AuditReport
    ) -> None:
        if window.start[: len(hour.hour)] == hour.hour:
            return  # counted in the previous window, which shares this hour
        report.counts["temporary"] += sum(len(batch.temporaries) for batch in batches)

    def _compare(
        self,
        step: _Step,
        index: PointerIndex,
        seen: np.ndarray[Any, np.dtype[np.bool_]],
        reader: OutboxReader,
        report: AuditReport,
        now_ms: int,
    ) -> None:
        report.payloads += len(step.paths)
        report.payload_bytes += sum(step.sizes)
        rows = index.rows_of(step.hour, pa.array(step.paths, pa.large_string()))
        seen[rows[rows >= 0]] = True
        table = index.table()
        for at in np.flatnonzero(rows < 0):
            age_ms = now_ms - step.modified[at]
            if age_ms >= self._grace_ms:
                report.add("unreferenced", step.paths[at], f"{age_ms // 1000} s old")
        known = np.flatnonzero(rows >= 0)
        for at, row in zip(known, table.take(pa.array(rows[known])).to_pylist(), strict=True):
            self._one(row, step.sizes[at], reader, report)

    def _one(
        self, row: dict[str, Any], size_bytes: int, reader: OutboxReader, report: AuditReport
    ) -> None:
        path = row["file_path"]
        if _disagree(row):
            report.add("disagreement", path, f"its pointers have {_differences(row)}")
        elif size_bytes != row["size_least"]:
            report.add(
                "size-mismatch", path,
                f"has {size_bytes} bytes, but its pointer at {row['partition']}:{row['offset']}"
                f" has a size of {row['size_least']}",
            )  # fmt: skip
        elif self._checksums:
            self._verify(row, reader, report)

    def _verify(self, row: dict[str, Any], reader: OutboxReader, report: AuditReport) -> None:
        try:
            with reader.open(_pointer(row)) as stream:
                for _ in stream:
                    pass
        except PayloadMissing:
            report.counts["collected"] += 1  # swept since the walk
        except PenstockError as error:
            report.add(classify(error)[1], row["file_path"], str(error))
        else:
            report.verified += 1

    def _missing(
        self,
        table: Any,
        seen: np.ndarray[Any, np.dtype[np.bool_]],
        reader: OutboxReader,
        report: AuditReport,
    ) -> None:
        unseen = table.filter(pa.array(~seen[: table.num_rows]))
        inline = pc.match_substring_regex(unseen.column("file_path"), INLINE_PATTERN)
        for row in _rows(unseen.filter(inline)):
            batch = inline_batch(row["file_path"])
            if batch is not None and _disagree(row):
                where = f"inline batch {batch[1]} of {batch[0]}"
                report.add("disagreement", where, f"its records have {_differences(row)}")
        unseen = unseen.filter(pc.invert(inline))
        gone = unseen.filter(pc.field("consumed"))
        report.counts["collected"] += gone.num_rows
        for row in _rows(unseen.filter(~pc.field("consumed"))):
            try:
                reader.exists(_pointer(row))
            except PayloadMissing as error:
                detail = f"its pointer is at {row['partition']}:{row['offset']}"
                report.add("missing", error.path, detail)
            except PenstockError as error:
                report.add(classify(error)[1], row["file_path"], str(error))


class _Step:
    def __init__(self, hour: Hour, batches: list[Batch], window: Window) -> None:
        paths = [f"{hour.path}/{batch.name}/{DATA_FILE}" for batch in batches]
        keys = pa.array([f"{hour.hour} {path}" for path in paths], pa.large_string())
        inside = window.holds(keys).to_numpy(zero_copy_only=False)
        self.hour = hour.hour
        self.paths: list[str] = []
        self.sizes: list[int] = []
        self.modified: list[int] = []
        for at in np.flatnonzero(inside):
            file = batches[at].data
            if file is not None:
                self.paths.append(paths[at])
                self.sizes.append(file.size_bytes)
                self.modified.append(file.modified_ms)


def _pointer(row: dict[str, Any]) -> Pointer:
    place = parse_path(row["file_path"])
    return Pointer(
        file_path=row["file_path"],
        batch_id=place.batch_id,
        partition_id=place.partition_id,
        size_bytes=row["size_least"],
        crc32c=row["crc_least"],
        codec="none",
        event_count=0,
    )


def _disagree(row: dict[str, Any]) -> bool:
    same = row["size_least"] == row["size_most"] and row["crc_least"] == row["crc_most"]
    return not same


def _differences(row: dict[str, Any]) -> str:
    return (
        f"{row['size_least']} to {row['size_most']} bytes,"
        f" CRC32C {row['crc_least']:08x} to {row['crc_most']:08x}"
    )


def _rows(table: Any) -> Iterator[dict[str, Any]]:
    for batch in table.to_batches(max_chunksize=ENTRIES_PER_STEP):
        yield from batch.to_pylist()
