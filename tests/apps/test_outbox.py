"""`penstock outbox`: each command as a user would call it, with its words and its status."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.client import Client
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.blocking import Outbox
from tests.apps.conftest import Run

Topic = Callable[..., str]
OLD = 1_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.mkdir()
    return made


@pytest.fixture
def name(topic: Topic) -> str:
    return topic(2)


def sent(run: Run, root: Path, name: str, *words: str, stdin: str = "") -> list[dict[str, Any]]:
    ran = run(
        "outbox", "write", "--root", str(root), "-t", name, "--partition-id", "p", *words,
        stdin=stdin,
    )  # fmt: skip
    assert ran.status == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def age(root: Path) -> None:
    for path in [*root.rglob("*")]:
        os.utime(path, (OLD, OLD))


def test_there_and_back(run: Run, root: Path, name: str, tmp_path: Path) -> None:
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(os.urandom(200_000))
    small.write_bytes(b"small")
    first, second = sent(run, root, name, str(large), str(small))
    assert (first["size_bytes"], first["inline"], first["existing"]) == (200_000, False, False)
    assert (second["size_bytes"], second["inline"], second["file_path"]) == (5, True, None)
    assert (root / first["file_path"]).read_bytes() == large.read_bytes()
    out = tmp_path / "out"
    ran = run("outbox", "read", "--root", str(root), "-t", name, "--group", "g", "-e",
              "--to", str(out))  # fmt: skip
    assert ran.status == 0, ran.err
    assert ran.err == "% 2 batches, 0 duplicates, 0 dead letters\n"
    assert [Path(line).name for line in ran.out.splitlines()] == [
        first["batch_id"],
        second["batch_id"],
    ]
    assert (out / "p" / first["batch_id"]).read_bytes() == large.read_bytes()
    assert sorted(path.name for path in (out / "p").iterdir()) == sorted(
        [first["batch_id"], second["batch_id"]]
    )
    again = run("outbox", "read", "--root", str(root), "-t", name, "--group", "g", "-e")
    assert (again.out, again.err) == ("", "% 0 batches, 0 duplicates, 0 dead letters\n")


def test_standard_input_and_output(run: Run, root: Path, name: str) -> None:
    (line,) = sent(
        run, root, name, "--threshold", "-1", "--batch-id", "b1", "--at", "0", "--codec", "zstd",
        "--event-count", "7", stdin="payload",
    )  # fmt: skip
    assert line == {
        "file_path": "p/year=1970/month=01/day=01/hour=00/batch-b1/data.bin",
        "batch_id": "b1",
        "partition_id": "p",
        "size_bytes": 7,
        "crc32c": line["crc32c"],
        "codec": "zstd",
        "event_count": 7,
        "inline": False,
        "existing": False,
    }
    (retried,) = sent(
        run, root, name, "--threshold", "-1", "--batch-id", "b1", "--at", "0", stdin="payload"
    )
    assert retried["existing"] is True
    words = ("outbox", "read", "--root", str(root), "-t", name, "-e")
    plain = run(*words, "--group", "plain")
    assert (plain.out, plain.err) == ("payload", "% 1 batches, 1 duplicates, 0 dead letters\n")
    shown = json.loads(run(*words, "--group", "json", "--output", "json").out)
    assert base64.b64decode(shown.pop("payload_base64")) == b"payload"
    assert (shown["batch_id"], shown["codec"], shown["event_count"]) == ("b1", "zstd", 7)
    assert shown["file_path"] == line["file_path"]


@pytest.mark.parametrize("publish", [True, False])
def test_a_batch_id_names_one_payload(
    run: Run, root: Path, name: str, tmp_path: Path, publish: bool
) -> None:
    first, second = tmp_path / "p.bin", tmp_path / "q.bin"
    first.write_bytes(os.urandom(100_000))
    second.write_bytes(os.urandom(100_000))
    words = ("--batch-id", "same", "--at", "0", *(() if publish else ("--no-publish",)))
    (line,) = sent(run, root, name, *words, str(first))
    ran = run(
        "outbox", "write", "--root", str(root), "-t", name, "--partition-id", "p", *words,
        str(second),
    )  # fmt: skip
    assert (ran.status, ran.out) == (1, "")
    for named in ("batch same:", line["file_path"], line["crc32c"], "100000 bytes with CRC32C"):
        assert named in ran.err
    assert f"{crc32c(second.read_bytes()):08x}" in ran.err
    (again,) = sent(run, root, name, *words, str(first))
    assert again == line | {"existing": True}
    assert (root / line["file_path"]).read_bytes() == first.read_bytes()


def test_a_batch_id_names_one_small_payload(run: Run, root: Path, name: str) -> None:
    """Small payloads travel in the record, but for those that a batch id names."""
    words = ("--batch-id", "same", "--at", "0")
    (line,) = sent(run, root, name, *words, stdin="payload")
    assert line["inline"] is False
    ran = run(
        "outbox", "write", "--root", str(root), "-t", name, "--partition-id", "p", *words,
        stdin="another",
    )  # fmt: skip
    assert (ran.status, ran.out) == (1, "")
    assert "batch same:" in ran.err
    (again,) = sent(run, root, name, *words, stdin="payload")
    assert again == line | {"existing": True}
    ran = run(
        "outbox", "write", "--root", str(root), "-t", name, "--partition-id", "p", *words,
        "--threshold", "64k", stdin="payload",
    )  # fmt: skip
    assert ran.status == 2
    assert "omit --threshold" in ran.err


def test_a_reused_batch_id_is_reported_and_the_others_are_read(
    run: Run, root: Path, name: str, bootstrap: str
) -> None:
    with Outbox(OutboxSettings(root=str(root), topic=name), bootstrap) as outbox:
        for payload in (b"one ", b"other ", b"two "):
            batch_id = "two" if payload == b"two " else "reused"
            outbox.send(payload, partition_id="p", batch_id=batch_id)
    ran = run("outbox", "read", "--root", str(root), "-t", name, "-e", "--group", "g")
    assert (ran.status, ran.out) == (0, "one two ")
    assert "penstock: " in ran.err
    assert "batch reused of p has a payload with CRC32C" in ran.err
    assert ran.err.endswith("% 2 batches, 0 duplicates, 0 dead letters, 1 conflicts\n")
    ran = run("outbox", "audit", "--root", str(root), "-t", name)
    assert ran.status == 1
    assert "inline batch reused of p" in ran.out


def test_a_codec_is_one_of_the_known_labels(bare: Run, root: Path) -> None:
    ran = bare(
        "outbox", "write", "--root", str(root), "--partition-id", "p", "--no-publish",
        "--codec", "zstdd", stdin="payload",
    )  # fmt: skip
    assert ran.status == 2
    assert "'zstdd' is not one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'" in ran.err
    assert list(root.iterdir()) == []
    assert "nothing is compressed by it" in " ".join(bare("outbox", "write", "--help").out.split())


def test_without_publishing(bare: Run, root: Path) -> None:
    ran = bare(
        "outbox", "write", "--root", str(root), "--partition-id", "p", "--no-publish", "--no-sync",
        stdin="payload",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    assert (root / json.loads(ran.out)["file_path"]).read_bytes() == b"payload"


def test_some_batches_and_then_the_others(run: Run, root: Path, name: str) -> None:
    for number in range(3):
        sent(run, root, name, stdin=str(number))
    words = ("outbox", "read", "--root", str(root), "-t", name, "--group", "g", "-e")
    assert run(*words, "-c", "2").out == "01"
    assert run(*words).out == "2"


def test_bad_payloads(run: Run, root: Path, name: str, topic: Topic) -> None:
    (line,) = sent(run, root, name, "--threshold", "-1", stdin="payload")
    (root / line["file_path"]).write_bytes(b"another")
    sent(run, root, name, stdin="good")
    words = ("outbox", "read", "--root", str(root), "-t", name, "--group", "g", "-e")
    ran = run(*words)
    assert ran.status == 1
    assert " instead of " in ran.err
    dead = topic()
    ran = run(*words, "--dead-letter-topic", dead)
    assert (ran.status, ran.out) == (0, "good")
    assert "1 dead letters" in ran.err
    letters = run("consume", dead, "-e", "-q", "-f", "%h\\n").out
    assert "penstock-dead-letter-reason=checksum-mismatch" in letters


def test_sweeping(run: Run, bare: Run, root: Path, name: str) -> None:
    sent(run, root, name, "--threshold", "-1", stdin="old")
    age(root)
    words = ("outbox", "sweep", "--root", str(root), "-t", name)
    assert run("outbox", "read", "--root", str(root), "-t", name, "--group", "g", "-e").out == "old"
    dry = json.loads(run(*words, "--output", "json").out)
    assert (dry["executed"], dry["removed_payloads"], dry["groups"]) == (False, 1, ["g"])
    assert [path["what"] for path in dry["paths"]] == ["payload"]
    assert len(list(root.rglob("data.bin"))) == 1
    kept = json.loads(run(*words, "--execute", "--group", "other", "--output", "json").out)
    assert (kept["removed_payloads"], kept["waiting"]) == (0, 1)
    table = run(*words)
    assert "dry run" in table.out
    done = run(*words, "--execute")
    assert done.status == 0, done.err
    assert list(root.iterdir()) == []
    alone = json.loads(bare("outbox", "sweep", "--root", str(root), "--output", "json").out)
    assert alone["payloads"] == 0


def test_sweeping_until_a_signal(root: Path) -> None:
    orphan = root / "p/year=2026/month=05/day=24/hour=14/batch-b/data.bin.tmp.abc.1"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"")
    age(root)
    command = [sys.executable, "-m", "penstock", "outbox", "sweep", "--root", str(root),
               "--execute", "--every", "100ms"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert (first["removed_temporaries"], second["removed_temporaries"]) == (1, 0)
    assert list(root.iterdir()) == []


def test_sweeping_continues_when_no_broker_responds(root: Path) -> None:
    command = [sys.executable, "-m", "penstock", "outbox", "sweep", "--root", str(root),
               "-b", "127.0.0.1:1", "-t", "nope", "-X", "default.api.timeout.ms=100",
               "--every", "50ms"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(2):
            assert process.stderr.readline().endswith("; sweeping again in 50 ms\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_auditing(run: Run, root: Path, name: str) -> None:
    (line,) = sent(run, root, name, "--threshold", "-1", stdin="payload")
    words = ("outbox", "audit", "--root", str(root), "-t", name)
    fine = run(*words, "--checksums")
    assert fine.status == 0, fine.err
    assert "nothing is wrong" in fine.out
    path = root / line["file_path"]
    path.write_bytes(b"another")
    assert run(*words).status == 0
    ran = run(*words, "--checksums", "--output", "json")
    assert ran.status == 1
    found = json.loads(ran.out)
    assert found["counts"] == {"checksum-mismatch": 1}
    assert found["findings"][0]["path"] == line["file_path"]
    path.unlink()
    ran = run(*words)
    assert ran.status == 1
    assert "missing" in ran.out
    assert "1 fault" in ran.out


def test_measuring(bare: Run, run: Run, root: Path, name: str) -> None:
    words = ("outbox", "bench", "--root", str(root), "--size", "4k", "--count", "9",
             "--concurrency", "3", "--output", "json")  # fmt: skip
    ran = bare(*words)
    assert ran.status == 0, ran.err
    facts = json.loads(ran.out)
    assert (facts["size_bytes"], facts["count"], facts["synced"]) == (4096, 9, True)
    assert [way["way"] for way in facts["ways"]] == ["plain files", "outbox"]
    assert facts["ways"][0]["of plain"] == 1.0
    assert all(way["MB/s"] > 0 and way["p50 ms"] <= way["p99 ms"] for way in facts["ways"])
    published = run(*words, "-t", name)
    assert published.status == 0, published.err
    assert json.loads(published.out)["ways"][1]["way"] == "outbox, published"
    assert list(root.iterdir()) == []


def test_reading_until_a_signal(
    root: Path, name: str, run: Run, bootstrap: str, tmp_path: Path
) -> None:
    sent(run, root, name, stdin="first\n")
    command = [sys.executable, "-m", "penstock", "-b", bootstrap, "outbox", "read",
               "--root", str(root), "-t", name, "--group", "g"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        sent(run, root, name, stdin="second\n")
        assert process.stdout.readline() == b"second\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0
    assert said.decode().endswith("% 2 batches, 0 duplicates, 0 dead letters\n")
    with Client(bootstrap) as client:
        held = client.committed("g", [(name, 0), (name, 1)])
    assert sum(at.offset for at in held.values()) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("write", "--partition-id", "p"), "name a topic with -t"),
        (("write", "--partition-id", "p", "-t", "x", "--batch-id", "b", "f", "g"), "several files"),
        (("write", "--partition-id", "p", "-t", "x", "--threshold", "1x"), "--threshold 1x"),
        (("sweep", "--retention", "soon"), "--retention soon: must be a number and ms"),
        (("sweep", "--group", "g"), "need a topic"),
        (("sweep", "--every", "1"), "--every 1"),
        (("bench", "--size", "-1"), "--size -1"),
    ],
)
def test_words_that_are_wrong(bare: Run, root: Path, words: tuple[str, ...], says: str) -> None:
    ran = bare("outbox", words[0], "--root", str(root), *words[1:])
    assert ran.status == 2
    assert says in ran.err


def test_a_root_that_is_none(bare: Run, root: Path) -> None:
    for words in (("sweep",), ("write", "--partition-id", "p", "--no-publish")):
        ran = bare("outbox", *words, "--root", str(root / "none"))
        assert ran.status == 1
        assert str(root / "none") in ran.err


def test_a_threshold_that_no_topic_takes(bare: Run, root: Path) -> None:
    ran = bare(
        "outbox", "write", "--root", str(root), "--partition-id", "p", "--no-publish",
        "--threshold", "1g",
    )  # fmt: skip
    assert ran.status == 1
    assert "setting outbox.inline.threshold.bytes = 1073741824: must be at most" in ran.err


def test_ids_that_lead_elsewhere(bare: Run, root: Path, tmp_path: Path) -> None:
    for flag, value in (("--partition-id", "../x"), ("--batch-id", "../x")):
        words = {"--partition-id": "p", "--batch-id": "b"} | {flag: value}
        ran = bare(
            "outbox", "write", "--root", str(root), "--no-publish",
            *(word for pair in words.items() for word in pair), stdin="x",
        )  # fmt: skip
        assert ran.status == 1
        assert "'../x'" in ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["root"]
