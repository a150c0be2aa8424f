"""History jobs of mirrors: slices of log directories, and copies of a source's tiers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.mirror.log_directories import LogDirectories
from penstock.mirror.topics import MirrorRefused
from penstock.records.columnar import decode_batches
from penstock.records.extents import READ_COMMITTED
from penstock.records.header import decode_header
from penstock.spark.reads.chunks import Slice, file_chunks
from penstock.spark.reads.planning import slices_of
from penstock.storage.files.producers import SnapshotEntry, encode_snapshot
from penstock.testing import Broker
from tests.apps.test_tiers import SETTINGS
from tests.mirror.bed import mirror, mirror_file, rows, wait_for
from tests.storage.batches import WHERE
from tests.storage.transactions import Transactional, open_in


@pytest.fixture
def log(tmp_path: Path) -> Transactional:
    """Log of four producers, whose transactions end in later segments."""
    log = Transactional(tmp_path / "log")
    for number in range(40):
        log.put(number % 4, 1 + number % 3)
        if number % 3:
            log.end((number + 1) % 4, commit=number % 2 == 0)
    log.harness.store.close()
    for path in (tmp_path / "log").rglob("*.snapshot"):
        path.unlink()
    return log


def bases(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.log"))


def snapshot(log: Transactional, folder: Path, base: int) -> dict[int, int]:
    """Write the snapshot of a segment's beginning, as Apache Kafka does; return the first offsets
    of its open transactions.
    """
    found = open_in([step for step in log.history if step.offset < base])
    entries = [SnapshotEntry(number, 0, 0, 0, 0, 0, 1, first) for number, first in found.items()]
    (folder / f"{base:020d}.snapshot").write_bytes(encode_snapshot(entries))
    return found


def committed(log: Transactional, end: int) -> list[int]:
    """Return the offsets of committed records below an offset, by the steps of the test."""
    open_batches: dict[int, list[int]] = {}
    found: list[int] = []
    for step in log.history:
        if step.commit is None:
            offsets = open_batches.setdefault(step.producer_id, [])
            offsets += range(step.offset, step.next_offset)
        elif (offsets := open_batches.pop(step.producer_id, [])) and step.commit:
            found += offsets
    return sorted(offset for offset in found if offset < end)


def decoded(slices: Sequence[Slice]) -> list[int]:
    """Return the offsets of committed records in slices."""
    return [
        offset
        for number, chunk in file_chunks(slices)
        if chunk is not None
        for item in [slices[number]]
        for offset in decode_batches(
            chunk.data, columns=("offset",), start_offset=item.start, end_offset=item.end,
            aborted=item.aborted, check_crc=True,
        )["offset"].to_pylist()
    ]  # fmt: skip


@pytest.mark.parametrize("piece_bytes", [64 << 20, 200])
def test_slices_end_before_open_transactions(
    log: Transactional, tmp_path: Path, piece_bytes: int
) -> None:
    root = tmp_path / "log"
    folder = root / "orders-0"
    checked = 0
    for base in bases(folder)[2:]:
        still_open = snapshot(log, folder, base)
        directories = LogDirectories([root], lambda at: at == WHERE, piece_bytes)
        end = min([base, *still_open.values()])
        if end == 0:
            assert not directories.parts
            continue
        checked += 1
        part = directories.parts[WHERE]
        assert part.end == end
        slices = slices_of(WHERE, 0, part.end, directories)
        assert [item.end for item in slices[:-1]] == [item.start for item in slices[1:]]
        assert (slices[0].start, slices[-1].end) == (0, part.end)
        assert decoded(slices) == committed(log, part.end)
        middle = part.end // 2
        assert decoded(slices_of(WHERE, middle, part.end, directories)) == [
            offset for offset in committed(log, part.end) if offset >= middle
        ]
    assert checked > 5
    if piece_bytes == 200:
        assert len(slices) > len(bases(folder))


def test_offsets_that_files_lack_get_slices_without_files(
    log: Transactional, tmp_path: Path
) -> None:
    root = tmp_path / "log"
    folder = root / "orders-0"
    known = bases(folder)
    assert not LogDirectories([root], lambda at: True).parts  # no segment has a snapshot
    snapshot(log, folder, known[-1])
    (folder / f"{known[0]:020d}.log").unlink()
    directories = LogDirectories([root], lambda at: True)
    part = directories.parts[WHERE]
    assert part.start == known[1]
    (folder / f"{known[3]:020d}.log").unlink()  # deleted since it was listed
    slices = slices_of(WHERE, 0, part.end, directories)
    without = [(item.start, item.end) for item in slices if not item.extents]
    assert without == [(0, known[1]), (known[3], known[4])]
    assert [item.end for item in slices[:-1]] == [item.start for item in slices[1:]]
    start = known[4] + 1  # records below it were deleted, but are in the file
    (root / "log-start-offset-checkpoint").write_text(f"0\n1\norders 0 {start}\n")
    directories = LogDirectories([root], lambda at: True)
    assert directories.parts[WHERE].start == start
    found = slices_of(WHERE, 0, part.end, directories)
    assert all(item.start >= start for item in found if item.extents)
    assert [item.end for item in found[:-1]] == [item.start for item in found[1:]]
    (folder / f"{known[1]:020d}.log.swap").touch()
    assert not LogDirectories([root], lambda at: True).parts  # compaction was under way
    with pytest.raises(MirrorRefused, match=f"{tmp_path / 'a'}, {tmp_path / 'b'}: "):
        LogDirectories([tmp_path / "a", root, tmp_path / "b"], lambda at: True)


def test_offsets_that_compaction_removed_are_not_fetched(
    log: Transactional, tmp_path: Path
) -> None:
    root = tmp_path / "log"
    folder = root / "orders-0"
    known = bases(folder)
    snapshot(log, folder, known[-1])
    first, empty = (folder / f"{base:020d}.log" for base in known[1:3])
    header = decode_header(first.read_bytes())
    first.write_bytes(first.read_bytes()[header.size_bytes :])
    empty.write_bytes(b"")
    directories = LogDirectories([root], lambda at: True)
    slices = slices_of(WHERE, 0, directories.parts[WHERE].end, directories)
    assert all(item.extents for item in slices)
    removed = {*range(known[1], header.next_offset), *range(known[2], known[3])}
    kept = [at for at in committed(log, directories.parts[WHERE].end) if at not in removed]
    assert decoded(slices) == kept


def history(file: Path, target: Broker, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "mirror", "history", str(file)]
    command += ["--admin", target.admin_url, *options]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=200, check=False)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_damaged_file_ends_the_job_and_the_mirror_copies_the_rest(tmp_path: Path) -> None:
    with Broker({"log.checkpoint.interval.ms": 100}) as source, Broker() as target:
        source.create_topic("orders", 1, {"segment.bytes": "1048576"})
        with source.client() as left, target.client() as right:
            for number in range(30):
                left.write_arrow("orders", pa.table({"value": [b"%d" % number * 50_000] * 4}))
            file = mirror_file(tmp_path, "history", source, target)
            folder = source.directory / "log"
            wait_for(lambda: len([*(folder / "orders-0").glob("*.snapshot")]) > 4)
            ignored = shutil.ignore_patterns("*.tmp")
            copy = shutil.copytree(folder, tmp_path / "copy", ignore=ignored)
            damaged = sorted((copy / "orders-0").glob("*.log"))[1]
            content = bytearray(damaged.read_bytes())
            content[len(content) // 2] ^= 1
            damaged.write_bytes(content)
            failed = history(file, target, "--log-dir", str(copy))
            assert failed.returncode == 1
            assert f"orders-0: offsets from {int(damaged.stem)} to" in failed.stderr
            assert not rows(right, "orders")
            history(file, target, "--log-dir", str(folder)).check_returncode()
            assert len(rows(right, "orders")) >= bases(folder / "orders-0")[2]
            mirror(file)
            assert values_of(rows(right, "orders"), 0) == values_of(rows(left, "orders"), 0)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_tiers_and_diskless_topics_of_a_source_are_copied(tmp_path: Path) -> None:
    with Broker(SETTINGS) as source, Broker(SETTINGS) as target:
        sizes = {"segment.bytes": "1048576", "local.retention.bytes": "1048576"}
        source.create_topic("orders", 2, {"remote.storage.enable": "true", **sizes})
        source.create_topic("a.orders", 1, {"diskless.enable": "true"})
        with source.client() as left, target.client() as right:
            left.write_arrow("a.orders", pa.table({"value": [b"diskless"] * 10}))
            for number in range(30):
                values = pa.table({"value": [b"%d" % number * 100_000] * 4})
                with left.transactional("t").transaction() as transaction:
                    transaction.write_arrow("orders", values, partition=number % 2)
            oldest = [source.directory / f"log/orders-{number}/{0:020d}.log" for number in (0, 1)]
            wait_for(lambda: not any(path.exists() for path in oldest))
            stable = left.list_offsets("orders", isolation=READ_COMMITTED)
            left.commit_offsets("g", {("orders", part): end for part, end in stable.items()})
            right.create_topic("orders", 2)
            right.write_arrow("orders", pa.table({"value": [b"of the target"]}), partition=0)
            file = mirror_file(tmp_path, "history", source, target)
            history(file, target, "--source-admin", source.admin_url).check_returncode()
            copied = rows(right, "orders")
            assert len(copied) == 121
            assert len(rows(right, "a.orders")) == 10
            left.write_arrow("orders", pa.table({"value": [b"live"]}), partition=1)
            mirror(file)
            assert values_of(rows(right, "a.orders"), 0) == [b"diskless"] * 10
            before, after = rows(left, "orders"), rows(right, "orders")
            assert len(before) == 121
            assert values_of(after, 0) == [b"of the target", *values_of(before, 0)]
            assert values_of(after, 1) == values_of(before, 1)
            # The group has not read the target's own record.
            groups = {at: found.offset for at, found in right.committed("g").items()}
            assert groups == {("orders", 0): 0, ("orders", 1): 60}


def values_of(found: Sequence[dict[str, object]], partition: int) -> list[object]:
    return [row["value"] for row in found if row["partition"] == partition]
