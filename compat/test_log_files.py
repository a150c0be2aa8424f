"""What a log with transactions keeps on disk, read by Apache Kafka's own tool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from tests.broker.transactions import sent
from tests.storage.batches import Harness, read_all
from tests.storage.transactions import Transactional

from compat.conftest import missing
from compat.parts import PartMissing, class_path, jars
from penstock.records.transactions import UNGUARDED, Marker

TOOL_SECONDS = 60
SMALL = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"


def dumped(classes: str, *files: Path, deep: bool = False) -> list[dict[str, str]]:
    """The lines of DumpLogSegments, by their names."""
    options = ("--deep-iteration", "--print-data-log") if deep else ()
    tool = ["java", "-cp", classes, *SMALL, QUIET, "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run(
        [*tool, *options, "--files", ",".join(map(str, files))],
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [dict(re.findall(r"(\w+): (\S+)", line)) for line in done.stdout.splitlines()]
    return [row for row in found if row]


@pytest.mark.timeout(300)
def test_the_files_of_a_log_with_transactions_are_kafkas(tmp_path: Path) -> None:
    try:
        classes = class_path(jars("tools"))
    except PartMissing as error:
        missing(error)
    place = Transactional(tmp_path)
    for number in range(24):
        place.put(number % 4, 1 + number % 3)
        if number % 3:
            place.end((number + 1) % 4, commit=number % 2 == 0)
    aborted = place.log.aborted(0, place.log.log_end_offset)
    producers, end = place.log.producers(), place.log.log_end_offset
    size_bytes = len(read_all(place.log))
    place.harness.store.close()
    directory = tmp_path / "orders-0"
    rows = dumped(classes, *sorted(directory.glob("*.log")))
    batches = [row for row in rows if "baseOffset" in row]
    assert all(row["isvalid"] == "true" for row in batches)
    assert sum([int(row["size"]) for row in batches]) == size_bytes
    rows = dumped(classes, *sorted(directory.glob("*.txnindex")))
    found = [
        tuple(int(row[name]) for name in ("producerId", "firstOffset", "lastOffset"))
        for row in rows
        if "firstOffset" in row
    ]
    assert len(found) > 3
    assert sorted(found) == sorted([one[:3] for one in aborted])
    rows = dumped(classes, directory / f"{end:020d}.snapshot")
    known = {
        int(row["producerId"]): (
            int((re.findall(r"\d+", row["currentTxnFirstOffset"]) or ["-1"])[0]),
            int(row["coordinatorEpoch"]),
            int(row["lastSequence"]),
        )
        for row in rows
        if "producerId" in row
    }
    assert known == {
        one.producer_id: (one.txn_start_offset, one.coordinator_epoch, one.last_sequence)
        for one in producers
    }
    assert any(one.txn_start_offset >= 0 for one in producers)
    harness = Harness(tmp_path / "records")
    for number, commit in enumerate((True, False)):
        data = memoryview(bytearray(sent(b"value", producer_id=number)))
        harness.log().append(data, now_ms=harness.clock.ms, guard=UNGUARDED)
        marker = Marker(number, 0, 5 + number, commit)
        harness.log().append_marker(marker, now_ms=harness.clock.ms)
    harness.commit()
    harness.store.close()
    rows = dumped(classes, tmp_path / "records/orders-0/00000000000000000000.log", deep=True)
    markers = [row for row in rows if "endTxnMarker" in row]
    told = [(row["endTxnMarker"], row["coordinatorEpoch"]) for row in markers]
    assert told == [("COMMIT", "5"), ("ABORT", "6")]
