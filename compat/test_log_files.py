"""Log files, read by Apache Kafka's own tool and by ours: of our stores, and of a Kafka node."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.broker.transactions import sent
from tests.storage.batches import Harness, read_all
from tests.storage.transactions import Transactional

from compat.command_line import COMMAND_LINE
from compat.conftest import missing
from compat.parts import PartMissing
from compat.security import Need, harness, scenario, transactions, write
from compat.servers import PenstockProcess
from penstock.apps.cli import root as command_line
from penstock.records.transactions import UNGUARDED, Marker

TOOL = "org.apache.kafka.tools.DumpLogSegments"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SEGMENT_CONFIGS = {"segment.bytes": "1048576", "index.interval.bytes": "1000"}
Options = Callable[..., dict[str, Any]]
"""Gives the options of a client by an address and what it needs to do."""
WRONG = re.compile(
    r"mismatch|not found in the log|out of order|isvalid: false|exception"
    r"|(?<!-)\b\d+ is followed by",  # of the first batch of each file it says: -1 is followed by
    re.IGNORECASE,
)


def printed(*files: Path, options: tuple[str, ...] = ()) -> str:
    """What DumpLogSegments says of files."""
    try:
        ran = COMMAND_LINE.run("", TOOL, *options, "--files", ",".join(map(str, files)))
    except PartMissing as error:
        missing(error)
    assert ran.status == 0, ran.out + ran.errors
    return ran.out + ran.errors


def dumped(*files: Path, deep: bool = False) -> list[dict[str, str]]:
    """The lines of DumpLogSegments, by their names."""
    options = ("--deep-iteration", "--print-data-log") if deep else ()
    lines = printed(*files, options=options).splitlines()
    found = [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines]
    return [row for row in found if row]


@pytest.mark.timeout(300)
def test_the_files_of_a_log_with_transactions_are_kafkas(tmp_path: Path) -> None:
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
    rows = dumped(*sorted(directory.glob("*.log")))
    batches = [row for row in rows if "baseOffset" in row]
    assert all(row["isvalid"] == "true" for row in batches)
    assert sum([int(row["size"]) for row in batches]) == size_bytes
    rows = dumped(*sorted(directory.glob("*.txnindex")))
    found = [
        tuple(int(row[name]) for name in ("producerId", "firstOffset", "lastOffset"))
        for row in rows
        if "firstOffset" in row
    ]
    assert len(found) > 3
    assert sorted(found) == sorted([row[:3] for row in aborted])
    rows = dumped(directory / f"{end:020d}.snapshot")
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
        producer.producer_id: (
            producer.txn_start_offset,
            producer.coordinator_epoch,
            producer.last_sequence,
        )
        for producer in producers
    }
    assert any(producer.txn_start_offset >= 0 for producer in producers)
    harness = Harness(tmp_path / "records")
    for number, commit in enumerate((True, False)):
        data = memoryview(bytearray(sent(b"value", producer_id=number)))
        harness.log().append(data, now_ms=harness.clock.ms, guard=UNGUARDED)
        marker = Marker(number, 0, 5 + number, commit)
        harness.log().append_marker(marker, now_ms=harness.clock.ms)
    harness.commit()
    harness.store.close()
    rows = dumped(tmp_path / "records/orders-0/00000000000000000000.log", deep=True)
    markers = [row for row in rows if "endTxnMarker" in row]
    told = [(row["endTxnMarker"], row["coordinatorEpoch"]) for row in markers]
    assert told == [("COMMIT", "5"), ("ABORT", "6")]


def ours(*words: str) -> list[dict[str, object]]:
    """What our tool says, one object a line."""
    ran = CliRunner().invoke(command_line, ["--output", "json", "log", *words])
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in ran.stdout.splitlines()]


def verified(directory: Path, *words: str) -> dict[str, object]:
    ran = CliRunner().invoke(
        command_line, ["--output", "json", "log", "verify", "--data-dir", str(directory), *words]
    )
    facts: dict[str, object] = json.loads(ran.stdout)
    assert facts["wrong"] == 0, facts["findings"]
    return facts


def plain(bootstrap: str, *needs: Need) -> dict[str, Any]:
    """A client's options where nothing is secured."""
    return {"bootstrap.servers": bootstrap}


def produced(bootstrap: str, own: Options = harness, others: Options = scenario) -> None:
    """Every codec, with an idempotent producer each; transactions of both ends between others."""
    admin = AdminClient(own(bootstrap))
    topics = [*(f"codec-{codec}" for codec in CODECS), "ends"]
    made = admin.create_topics([NewTopic(name, 1, 1, config=SEGMENT_CONFIGS) for name in topics])
    for future in made.values():
        future.result(30)
    for codec in CODECS:
        producer = Producer(
            {
                **others(bootstrap, write(f"codec-{codec}")),
                "compression.type": codec,
                "enable.idempotence": True,
                "batch.size": 16000,
                "linger.ms": 1,
            }
        )
        for number in range(2000):
            value = f"value {number} {Random(number).randbytes(10 * (number % 160)).hex()}"
            producer.produce(f"codec-{codec}", value, f"key {number % 50}")
        assert producer.flush(60) == 0
    for number in range(12):
        name = f"t{number % 3}"
        allowed = others(bootstrap, transactions(name), write("ends"))
        producer = Producer({**allowed, "transactional.id": name})
        producer.init_transactions(30)
        for end in producer.commit_transaction, producer.abort_transaction:
            producer.begin_transaction()
            for record in range(20):
                producer.produce("ends", f"{number} {record} " + "x" * 3000, f"{record}")
            producer.flush(30)
            end(30)


SAME_NAMES = {
    "baseOffset": "base_offset",
    "lastOffset": "last_offset",
    "count": "records",
    "baseSequence": "base_sequence",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "partitionLeaderEpoch": "leader_epoch",
    "position": "position",
    "size": "size_bytes",
    "compresscodec": "codec",
    "crc": "crc",
    "isTransactional": "transactional",
    "isControl": "control",
}


def compare(directory: Path) -> dict[str, int]:
    """Both tools say the same of every file of a partition; how many rows of each kind."""
    counts: dict[str, int] = {}
    for path in sorted(directory.iterdir()):
        names = {
            ".log": SAME_NAMES,
            ".index": {"offset": "offset", "position": "position"},
            ".timeindex": {"timestamp": "timestamp", "offset": "offset"},
            ".txnindex": {
                "producerId": "producer_id",
                "firstOffset": "first_offset",
                "lastOffset": "last_offset",
                "lastStableOffset": "last_stable_offset",
            },
            ".snapshot": {
                "producerId": "producer_id",
                "producerEpoch": "producer_epoch",
                "coordinatorEpoch": "coordinator_epoch",
                "lastSequence": "last_sequence",
                "lastTimestamp": "timestamp",
            },
        }.get(path.suffix)
        if names is None or (path.stat().st_size == 0 and path.suffix != ".log"):
            continue
        theirs = [
            {own: row[their].lower() for their, own in names.items()}
            for row in dumped(path)
            if set(names) <= set(row)
        ]
        told = [
            {own: str(row[own]).lower() for own in names.values()}
            for row in ours("dump", "--file", str(path))
        ]
        # Without an entry Kafka's tool shows that of offset 0 at position 0.
        if not told and path.suffix in (".index", ".timeindex"):
            continue
        assert told == theirs, path
        counts[path.suffix] = counts.get(path.suffix, 0) + len(told)
    return counts


def rises(line: str) -> bool:
    """Whether it says of an offset that a higher one follows, and no more."""
    pair = re.fullmatch(r"\s*(\d+) is followed by (\d+)\s*", line)
    return pair is not None and int(pair[1]) < int(pair[2])


def checked_by_kafka(directory: Path, *, gaps: bool = False) -> None:
    """Kafka's tool finds nothing wrong, whichever way it is asked."""
    logs, indexes, others = (
        [
            path
            for path in sorted(directory.iterdir())
            if path.suffix in kinds and path.stat().st_size
        ]
        for kinds in ({".log"}, {".index", ".timeindex"}, {".txnindex", ".snapshot"})
    )
    said = [
        printed(*logs, options=("--deep-iteration", "--print-data-log")),
        printed(*indexes, options=("--verify-index-only",)),
        printed(*others) if others else "",
    ]
    for text in said:
        wrong = [line for line in text.splitlines() if WRONG.search(line)]
        if gaps:  # it tells of every offset that has no record
            wrong = [line for line in wrong if not rises(line)]
        assert not wrong, wrong[:5]
    assert logs
    assert indexes
    passed = printed(*indexes, options=("--index-sanity-check",))
    assert passed.count("passed sanity check") == len(indexes)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_clients_have_written_is_read_by_kafkas_tool(tmp_path: Path) -> None:
    server = PenstockProcess(tmp_path)
    server.start()
    try:
        produced(server.bootstrap)
    finally:
        server.stop()
    root = tmp_path / "data"
    facts = verified(root)
    assert facts["notes"] == []
    counts: dict[str, int] = {}
    for name in [f"codec-{codec}-0" for codec in CODECS] + ["ends-0"]:
        checked_by_kafka(root / "log" / name)
        for kind, count in compare(root / "log" / name).items():
            counts[kind] = counts.get(kind, 0) + count
    assert counts[".txnindex"] == 12
    assert counts[".index"] > 100
    assert len(list((root / "log" / "ends-0").glob("*.log"))) > 1


@contextmanager
def a_node(directory: Path) -> Iterator[ApacheKafka]:
    node = ApacheKafka(
        directory,
        heap="512m",
        configs={
            "log.cleaner.backoff.ms": "200",
            "log.initial.task.delay.ms": "100",
            "transaction.state.log.num.partitions": "1",
            "offsets.topic.num.partitions": "1",
        },
    )
    try:
        node.start()
    except PartMissing as error:
        missing(error)
    try:
        yield node
    finally:
        node.stop()


def compacted(node: ApacheKafka, until: Callable[[], bool]) -> None:
    """A topic of few keys that the cleaner has been through."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "500",
    }
    admin = AdminClient(plain(node.bootstrap))
    for future in admin.create_topics([NewTopic("keys", 1, 1, config=configs)]).values():
        future.result(30)
    producer = Producer({**plain(node.bootstrap), "batch.size": 4000})
    for turn in range(300):
        for number in range(200):
            producer.produce("keys", f"{turn} {number}" if number % 7 else None, f"{number % 40}")
        assert producer.flush(60) == 0
        if turn % 10 == 9 and until():
            return
        producer.poll(0.2)
    raise AssertionError("the cleaner has not been there")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_a_real_node_has_written_is_read_by_ours(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def cleaned() -> bool:
        ran = CliRunner().invoke(
            command_line,
            ["--output", "json", "log", "stats", "keys", "--data-dir", str(data)],
        )
        rows = json.loads(ran.stdout) if ran.exit_code == 0 else []
        return any(row["first_offset"] + row["offsets_without_record"] > 500 for row in rows)

    with a_node(tmp_path) as node:
        produced(node.bootstrap, plain, plain)
        compacted(node, cleaned)
        live = CliRunner().invoke(command_line, ["log", "verify", "--data-dir", str(data)])
        assert live.exit_code == 0, live.output
        assert "a broker is running" in live.stderr
        refused = CliRunner().invoke(command_line, ["log", "repair", "--data-dir", str(data)])
        assert "is locked" in str(refused.exception)
    facts = verified(data)
    assert int(str(facts["batches"])) > 100
    counts: dict[str, int] = {}
    for name in [f"codec-{codec}-0" for codec in CODECS] + ["ends-0", "keys-0"]:
        for kind, count in compare(data / name).items():
            counts[kind] = counts.get(kind, 0) + count
    assert counts[".txnindex"] == 12
    assert counts[".snapshot"] > 5
    for codec in CODECS:
        rows = ours("dump", f"codec-{codec}", "--data-dir", str(data), "--deep")
        records = [row for row in rows if "payload" in row]
        assert [row["offset"] for row in records] == list(range(2000))
        assert records[-1]["key"] == "key 49"
    planned = CliRunner().invoke(command_line, ["log", "repair", "--data-dir", str(data)])
    assert "no problems to repair" in planned.output
    index = sorted((data / "codec-zstd-0").glob("*.index"))[0]
    whole = index.read_bytes()
    index.write_bytes(whole[:4] + b"\x00\x00\x00\x07" + whole[8:])
    words = ["log", "repair", "codec-zstd", "--data-dir", str(data), "--yes"]
    assert CliRunner().invoke(command_line, words).exit_code == 0
    assert verified(data)["wrong"] == 0
    checked_by_kafka(data / "codec-zstd-0")
