"""A batch that no consumer can read is named, in a running broker and in files, and gone past."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client import Client, UnreadableBatch
from penstock.records import split_batches
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.broker.wire_client import WireClient
from tests.records.nonsense import GOOD, SPOILED, sealed

GOOD_BATCH = sealed(b"".join(GOOD), 3)
SECTION, COUNT, RECORD, REASON = SPOILED["a key beyond its record"]
BAD_BATCH = sealed(SECTION, COUNT)


def produce(bootstrap: str, topic: str, *batches: bytes, partition: int = 0) -> None:
    """Batches by hand, one request each, to a broker that does not look inside."""

    async def send() -> None:
        host, _, port = bootstrap.rpartition(":")
        client = await WireClient.connect((host, int(port)))
        for batch in batches:
            answer = await client.produce(topic, batch, partition=partition)
            assert answer.error_code == 0
        await client.close()

    asyncio.run(send())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker whose partition t-1 has an unreadable batch between two good ones."""
    settings = {"log.record.validation": "headers"}
    with Broker(settings, directory=tmp_path, admin=False) as broker:
        with Client(broker.bootstrap) as client:
            client.create_topic("t", 2)
            client.create_topic("fine", 1)
        produce(broker.bootstrap, "t", GOOD_BATCH)
        produce(broker.bootstrap, "fine", GOOD_BATCH)
        produce(broker.bootstrap, "t", GOOD_BATCH, BAD_BATCH, GOOD_BATCH, partition=1)
        yield broker


def test_doctor_says_how_a_stuck_group_gets_past_it(broker: Broker, bare: Run) -> None:
    with Client(broker.bootstrap) as client:
        client.commit_offsets("billing", {("t", 0): 0, ("t", 1): 3, ("fine", 0): 3})

    def asked() -> dict[str, str]:
        found = bare("--output", "json", "doctor", "-b", broker.bootstrap)
        (finding,) = [load for load in json.loads(found.out) if load["check"] == "consumers"]
        return dict(finding)

    bare("log", "verify", "t", "-b", broker.bootstrap)  # loads what a check has 15 s for
    stuck = asked()
    assert stuck["status"] == "fail"
    assert "group billing is at offset 3 of t-1" in stuck["cause"]
    assert "offsets 3 to 5 cannot be read: " in stuck["cause"]
    command = re.search(r"penstock (group seek .* --execute)", stuck["fix"])
    assert command is not None
    assert bare(*shlex.split(command[1]), "-b", broker.bootstrap).status == 0
    past = asked()
    assert past["status"] == "ok"
    assert (
        past["cause"] == "1 group, 2 partitions with records to read: the next batches can be read"
    )


def test_a_running_broker_is_asked(broker: Broker, bare: Run) -> None:
    found = bare("log", "verify", "t", "-b", broker.bootstrap)
    assert found.status == 1
    assert re.search(rf"t-1 +3 +5 +as fetched +.*record {RECORD} of 3: .*{REASON}", found.out)
    assert "1 fault, 0 notes, in 4 batches (2 partitions, 12 records" in found.out
    assert "penstock group seek GROUP" in found.out
    fine = bare("log", "verify", "fine", "-b", broker.bootstrap)
    assert (fine.status, fine.out.split(",")[0]) == (0, "0 faults")
    assert bare("log", "verify", "t", "-p", "0", "-b", broker.bootstrap).status == 0
    told = bare("--output", "json", "log", "verify", "t", "-b", broker.bootstrap)
    (row,) = json.loads(told.out)["findings"]
    assert (row["partition"], row["base_offset"], row["last_offset"]) == ("t-1", 3, 5)
    assert bare("log", "verify", "-b", broker.bootstrap).status == 2
    assert bare("log", "verify", "none", "-b", broker.bootstrap).status == 1


@pytest.mark.parametrize(
    ("hurt", "first", "last"), [((1,), 3, 5), ((1, 2, 3), 3, 11), ((4,), 12, 14)]
)
def test_damage_that_a_running_broker_finds_is_one_fault(
    bare: Run, tmp_path: Path, hurt: tuple[int, ...], first: int, last: int
) -> None:
    with Broker(directory=tmp_path, admin=False) as broker:
        with Client(broker.bootstrap) as client:
            client.create_topic("t", 1)
            produce(broker.bootstrap, "t", *[GOOD_BATCH] * 5)
            client.commit_offsets("billing", {("t", 0): first})
        broker.stop()
        file = tmp_path / "log" / "t-0" / "00000000000000000000.log"
        stored = bytearray(file.read_bytes())
        for number in hurt:
            stored[number * len(GOOD_BATCH) + len(GOOD_BATCH) - 2] ^= 1
        file.write_bytes(stored)
        broker.start()
        words = ("-b", broker.bootstrap)
        told = bare("--output", "json", "log", "verify", "t", *words)
        facts = json.loads(told.out)
        (row,) = facts["findings"]
        assert (row["base_offset"], row["last_offset"]) == (first, last)
        assert "CORRUPT_MESSAGE" in row["reason"]
        assert (told.status, facts["batches"]) == (1, 5 - len(hurt))
        found = bare("--output", "json", "doctor", *words)
        (finding,) = [load for load in json.loads(found.out) if load["check"] == "consumers"]
        assert finding["status"] == "fail"
        assert f"--to {last + 1} --execute" in finding["fix"]


def test_files_are_read_when_the_broker_is_stopped(
    broker: Broker, bare: Run, tmp_path: Path
) -> None:
    words = ("--output", "json", "log", "verify", "--data-dir", str(tmp_path))
    running = bare(*words)
    assert "a broker is running" in running.err
    assert json.loads(running.out)["partitions"] == 3
    broker.stop()
    file = tmp_path / "log" / "t-1" / "00000000000000000000.log"
    first, _, _ = split_batches(file.read_bytes())
    told = bare(*words)
    assert told.status == 1
    facts = json.loads(told.out)
    assert (facts["wrong"], facts["batches"]) == (1, 5)
    (row,) = facts["findings"]
    assert (row["partition"], row["base_offset"], row["last_offset"]) == ("t-1", 3, 5)
    assert row["place"] == f"{file}, byte {first.size_bytes}"
    assert bare(*words, "fine").status == 0
    assert "none of the selected partitions" in bare(*words, "t", "-p", "7").err
    assert bare(*words[:-1], str(tmp_path / "log")).status == 1
    assert "give its parent directory" in bare(*words[:-1], str(tmp_path / "log" / "t-1")).err
    (tmp_path / "empty").mkdir()
    assert "contains no partition directories" in bare(*words[:-1], str(tmp_path / "empty")).err


def test_the_logs_of_all_processes_are_read(broker: Broker, bare: Run, tmp_path: Path) -> None:
    broker.stop()
    shutil.copytree(tmp_path / "log", tmp_path / "log-2")
    words = ("--output", "json", "log", "verify", "fine", "--data-dir", str(tmp_path))
    assert json.loads(bare(*words).out)["partitions"] == 2


def test_damage_is_reported_per_batch(broker: Broker, bare: Run, tmp_path: Path) -> None:
    broker.stop()
    file = tmp_path / "log" / "t-1" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    _, second, _ = split_batches(data)
    data[70] ^= 1  # a record of the first batch
    third_at = len(GOOD_BATCH) + second.size_bytes
    data[third_at + 16] = 7  # the magic of the third
    file.write_bytes(data)
    told = bare("--output", "json", "log", "verify", "t", "--data-dir", str(tmp_path))
    found = json.loads(told.out)["findings"]
    assert [(row["base_offset"], row["last_offset"]) for row in found] == [(0, 2), (3, 5), (6, -1)]
    assert "checksum" in found[0]["reason"]
    assert "magic 7" in found[2]["reason"]
    assert found[2]["place"] == f"{file}, byte {third_at}"


def test_the_report_names_the_offset_at_which_consumers_continue(broker: Broker, bare: Run) -> None:
    stuck = bare("consume", "t", "-p", "1", "-e", "-b", broker.bootstrap)
    assert stuck.status == 1
    assert stuck.out == "value\n" * 3
    assert "t-1: the batch with offsets 3 to 5 cannot be read" in stuck.err
    consume, seek = re.findall(r"`penstock (.*?)`", stuck.err)
    behind = bare(*shlex.split(consume), "-e", "-b", broker.bootstrap)
    assert (behind.status, behind.out) == (0, "value\n" * 3)
    moved = bare(*shlex.split(seek.replace("GROUP", "readers")), "-b", broker.bootstrap)
    assert moved.status == 0
    with Client(broker.bootstrap) as client:
        assert client.committed("readers")["t", 1].offset == 6
        with pytest.raises(UnreadableBatch) as told:
            client.read_arrow("t")
    error = told.value
    assert (error.topic, error.partition, error.base_offset, error.last_offset) == ("t", 1, 3, 5)
