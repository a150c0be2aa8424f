"""`penstock log dump`, `stats` and `repair`: of a broker, of its files, of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Ran, Run

ROWS = 3_000
KEYS = 500
PER_BATCH = 500


def fill(bootstrap: str, topic: str, **configs: str) -> None:
    """Records of a few keys, some of them null, in a batch or more of each codec."""
    with Client(bootstrap) as client:
        client.create_topic(topic, 1, configs=configs)
        for number, codec in enumerate(("none", "lz4", "zstd")):
            rows = range(number * (ROWS // 3), (number + 1) * (ROWS // 3))
            table = pa.table(
                {
                    "key": pa.array([f"key {row % KEYS}" if row % 10 else None for row in rows]),
                    "value": pa.array([f"value {row} " + "again " * 20 for row in rows]),
                    "timestamp": pa.array([1_000 + row for row in rows], pa.int64()),
                }
            )
            client.write_arrow(topic, table, codec=codec)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(directory=tmp_path, admin=False) as broker:
        fill(broker.bootstrap, "t")
        yield broker


def lines(ran: Ran) -> list[dict[str, Any]]:
    assert ran.status == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def places(broker: Broker, directory: Path, which: str) -> tuple[str, ...]:
    if which == "broker":
        return ("-b", broker.bootstrap)
    broker.stop()
    return ("--data-dir", str(directory))


@pytest.mark.parametrize("which", ["broker", "files"])
def test_batches_and_records_are_shown(
    broker: Broker, bare: Run, tmp_path: Path, which: str
) -> None:
    words = ("--output", "json", "log", "dump", "t", *places(broker, tmp_path, which))
    batches = lines(bare(*words))
    assert batches[0]["base_offset"] == 0
    assert batches[-1]["last_offset"] == ROWS - 1
    assert {row["codec"] for row in batches} == {"none", "lz4", "zstd"}
    assert all(row["valid"] for row in batches)
    shown = lines(bare(*words, "--deep", "--offsets", "1000:1001"))
    assert len([row for row in shown if "codec" in row]) == 1
    records = [row for row in shown if "payload" in row]
    assert {row["offset"]: row["key"] for row in records}[1001] == "key 1"
    assert all(row["payload"].startswith(f"value {row['offset']} ") for row in records)
    by_time = lines(bare(*words, "--times", f"{1_000 + ROWS - 1}:"))
    assert [row["last_offset"] for row in by_time] == [ROWS - 1]
    text = bare(*words[2:], "--deep").out
    assert "t-0" in text
    assert f"    offset {ROWS - 1} timestamp {1_000 + ROWS - 1} key key 499" in text


def test_wrong_words_are_refused(broker: Broker, bare: Run, tmp_path: Path) -> None:
    for words, said in (
        (("dump", "t", "--offsets", "5"), "must read FROM:TO"),
        (("dump", "t", "--offsets", "5:4"), "FROM is above TO"),
        (("dump", "t", "--what", "indexes"), "requires --data-dir"),
        (("dump",), "give a TOPIC"),
        (("stats", "t", "--set", "a=b"), "require --objects"),
        (("repair", "t"), "stopped broker"),
    ):
        ran = bare("log", *words, "-b", broker.bootstrap)
        assert ran.status == 2
        assert said in ran.err
    ran = bare("log", "dump", "none", "--data-dir", str(tmp_path))
    assert (ran.status, "none of the selected partitions" in ran.err) == (1, True)
    (tmp_path / "what").write_bytes(b"x")
    ran = bare("log", "dump", "--file", str(tmp_path / "what"))
    assert ran.status == 1
    assert str(tmp_path / "what") in ran.err
    ran = bare("log", "repair", "--data-dir", str(tmp_path))
    assert (ran.status, "is locked" in ran.err) == (1, True)


@pytest.mark.parametrize("which", ["broker", "files"])
def test_partitions_are_counted(broker: Broker, bare: Run, tmp_path: Path, which: str) -> None:
    place = places(broker, tmp_path, which)
    (row,) = json.loads(bare("--output", "json", "log", "stats", "t", "--deep", *place).out)
    assert (row["records"], row["first_offset"], row["next_offset"]) == (ROWS, 0, ROWS)
    assert (row["first_timestamp"], row["last_timestamp"]) == (1_000, 1_000 + ROWS - 1)
    assert row["null_keys"] == ROWS / 10
    assert abs(row["distinct_keys_estimate"] - KEYS * 9 / 10) < KEYS / 20
    assert row["compression_ratio"] > 1.5
    assert sum(row["bytes_by_codec"].values()) == row["bytes"]
    assert row["batch_bytes_min"] <= row["batch_bytes_p50"] <= row["batch_bytes_max"]
    shown = bare("log", "stats", "t", *place)
    assert shown.status == 0
    assert "lz4" in shown.out


def test_all_files_are_shown(broker: Broker, bare: Run, tmp_path: Path) -> None:
    broker.stop()
    words = ("--output", "json", "log", "dump", "t", "--data-dir", str(tmp_path), "--what", "all")
    shown = lines(bare(*words))
    names = {Path(row["file"]).name for row in shown if "file" in row}
    assert names >= {
        "00000000000000000000.index", "00000000000000000000.timeindex", "leader-epoch-checkpoint",
        "partition.metadata", "partitions.checkpoint",
    }  # fmt: skip
    assert any(row.get("clean") for row in shown)
    assert any(name.endswith(".journal") for name in names)


def test_rot_is_set_aside_and_consumers_pass_it(broker: Broker, bare: Run, tmp_path: Path) -> None:
    broker.stop()
    place = ("t", "--data-dir", str(tmp_path))
    file = tmp_path / "log" / "t-0" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    batches = lines(bare("--output", "json", "log", "dump", *place))
    rotten = batches[1]
    data[rotten["position"] + 100] ^= 1
    file.write_bytes(data)
    assert bare("log", "verify", *place).status == 1
    planned = bare("log", "repair", *place)
    assert "nothing changed" in planned.out
    assert f"{rotten['size_bytes']} unreadable bytes" in planned.out
    assert file.read_bytes() == data
    assert "done; check the result" in bare("log", "repair", *place, "--yes").out
    assert file.with_name(f"{file.name}.1.quarantined").read_bytes() == data
    found = json.loads(bare("--output", "json", "log", "verify", *place).out)
    assert found["wrong"] == 0
    (gap,) = [row for row in found["notes"] if row["kind"] == "offsets"]
    assert gap["base_offset"] == rotten["base_offset"]
    assert gap["last_offset"] == rotten["last_offset"]
    assert "quarantined" in bare("log", "verify", *place, "--notes").out
    with Broker(directory=tmp_path, admin=False) as again, Client(again.bootstrap) as client:
        read = client.read_arrow("t")
        assert read.num_rows == ROWS - rotten["records"]


def test_objects_are_read_too(bare: Run, tmp_path: Path) -> None:
    with Broker(directory=tmp_path, admin=False) as broker:
        fill(broker.bootstrap, "d", **{"diskless.enable": "true"})
    place = ("d", "--objects", "--data-dir", str(tmp_path))
    batches = lines(bare("--output", "json", "log", "dump", *place))
    assert (batches[0]["base_offset"], batches[-1]["last_offset"]) == (0, ROWS - 1)
    assert batches[0]["place"].startswith("object ")
    (row,) = json.loads(bare("--output", "json", "log", "stats", *place, "--deep").out)
    assert (row["partition"], row["records"]) == ("d-0", ROWS)
    assert bare("log", "verify", *place).status == 0
    (found, *_) = [path for path in (tmp_path / "objects").rglob("*") if path.stat().st_size > 9000]
    content = bytearray(found.read_bytes())
    content[5_000] ^= 1
    found.write_bytes(content)
    shown = json.loads(bare("--output", "json", "log", "verify", *place).out)
    assert shown["wrong"] >= 1
    assert any("object" in row["reason"] for row in shown["findings"])
