"""Audit: every kind of difference between tree and topic, in one window and in many."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.outbox.errors import RootUnavailable
from penstock.outbox.gc.audit import Auditor, AuditReport
from penstock.outbox.gc.pointer_index import TopicPointers
from penstock.outbox.layout import temporary_name
from tests.outbox.shelf import AT_MS, HOUR_MS, Shelf

GRACE_MS = HOUR_MS


def audit(shelf: Shelf, **more: Any) -> AuditReport:
    pointers = TopicPointers(shelf.client, shelf.topic, ["g"])
    return Auditor(shelf.root, pointers, **({"grace_ms": GRACE_MS} | more)).audit()


def test_all_is_well(shelf: Shelf) -> None:
    for number in range(5):
        shelf.add(b"x" * number, age_ms=2 * HOUR_MS)
    shelf.publish(shelf.inline(b"inline"))
    shelf.file(b"not published yet")
    report = audit(shelf, checksums=True)
    assert (report.wrong, report.findings, report.counts) == (0, [], Counter())
    assert (report.payloads, report.payload_bytes, report.verified) == (6, 27, 5)
    assert (report.topic.pointers, report.topic.inline) == (5, 1)
    assert report.groups == ("g",)


@pytest.mark.parametrize("entries_max", [1, 3, 1_000])
def test_inline_records_of_one_batch_that_differ(shelf: Shelf, entries_max: int) -> None:
    shelf.add(b"file", age_ms=2 * HOUR_MS)
    for payload in (b"one", b"one", b"other"):
        shelf.publish(shelf.inline(payload, batch_id="reused"))
    for _ in range(3):
        shelf.publish(shelf.inline(b"same", batch_id="repeated"))
    report = audit(shelf, index_entries_max=entries_max)
    assert report.counts == Counter({"disagreement": 1})
    [finding] = report.findings
    assert finding.path == "inline batch reused of p"
    assert "3 to 5 bytes" in finding.detail
    assert report.topic.inline == 6


@pytest.mark.parametrize("entries_max", [1, 3, 1_000])
def test_every_kind_of_difference(shelf: Shelf, entries_max: int) -> None:
    for hour in range(4):
        at: dict[str, Any] = {"at_ms": AT_MS + hour * HOUR_MS, "partition_id": f"p{hour}"}
        shelf.add(b"good", **at)
        shelf.path(shelf.add(b"missing", **at)).unlink()
        shelf.file(b"unreferenced", age_ms=2 * HOUR_MS, **at)
        shelf.path(shelf.add(b"torn", **at)).write_bytes(b"to")
        shelf.path(shelf.add(b"swapped", **at)).write_bytes(b"damaged")
        pointer = shelf.add(b"twice", **at)
        shelf.publish(replace(pointer, crc32c=0))
        (shelf.path(pointer).parent / temporary_name("abc", 1)).write_bytes(b"half")
        (shelf.path(pointer).parent / "notes.txt").write_bytes(b"")
    record = shelf.inline(b"x")
    shelf.publish(replace(record, headers=()))
    expected = Counter(
        {
            "missing": 4,
            "unreferenced": 4,
            "size-mismatch": 4,
            "disagreement": 4,
            "no-outbox-record": 1,
        }
    )
    report = audit(shelf, index_entries_max=entries_max)
    assert {kind: report.counts[kind] for kind in expected} == expected
    assert report.counts["checksum-mismatch"] == 0
    assert report.wrong == sum(expected.values())
    report = audit(shelf, checksums=True, index_entries_max=entries_max)
    assert report.counts["checksum-mismatch"] == 4
    assert report.verified == 4
    if entries_max == 1_000:
        assert (report.counts["temporary"], report.counts["foreign"]) == (4, 4)
    details = {finding.kind: finding.detail for finding in report.findings}
    assert details["size-mismatch"].startswith("has 2 bytes, but its pointer at 0:")
    assert details["missing"].startswith("its pointer is at 0:")
    assert "CRC32C" in details["checksum-mismatch"]


def test_what_was_swept_is_not_missing(shelf: Shelf) -> None:
    gone, lost = shelf.add(), shelf.add()
    shelf.client.commit_offsets("g", {(shelf.topic, 0): 1})
    shelf.path(gone).unlink()
    shelf.path(lost).unlink()
    report = audit(shelf)
    assert report.counts == {"collected": 1, "missing": 1}
    assert [finding.path for finding in report.findings] == [lost.file_path]


def test_a_payload_replaced_by_a_symlink_or_directory_is_wrong(shelf: Shelf) -> None:
    linked, directory = shelf.add(b"linked"), shelf.add(b"directory")
    shelf.path(linked).unlink()
    shelf.path(linked).symlink_to("/etc/passwd")
    shelf.path(directory).unlink()
    shelf.path(directory).mkdir()
    report = audit(shelf)
    assert report.wrong == 2
    assert {finding.kind for finding in report.findings} == {"path-escapes", "not-a-file"}


def test_findings_are_bounded_and_counted(shelf: Shelf) -> None:
    from penstock.outbox.gc.tree import NOTES_MAX

    pointers = [shelf.file(b"x") for _ in range(NOTES_MAX + 50)]
    shelf.publish(*pointers)
    for pointer in pointers:
        shelf.path(pointer).unlink()
    report = audit(shelf)
    assert report.counts["missing"] == len(pointers)
    assert len(report.findings) == NOTES_MAX


def test_it_changes_nothing(shelf: Shelf) -> None:
    shelf.add(age_ms=1)
    shelf.file(age_ms=10 * HOUR_MS)
    before = {path: os.stat(path).st_mtime_ns for path in shelf.root.rglob("*")}
    audit(shelf, checksums=True)
    assert {path: os.stat(path).st_mtime_ns for path in shelf.root.rglob("*")} == before


def test_a_root_that_is_none(shelf: Shelf) -> None:
    with pytest.raises(RootUnavailable):
        Auditor(shelf.root / "none", TopicPointers(shelf.client, shelf.topic)).audit()
