"""`penstock log tiers`, and what `penstock doctor` says of an archive that goes away."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.testing import Broker
from tests.apps.conftest import Ran, Run
from tests.apps.test_doctor import examined
from tests.s3 import S3Server, s3_server

SECONDS = 60.0
RECORDS = 40
BATCH_RECORDS = 4
RECORD_BYTES = 4000
SETTINGS: dict[str, Any] = {
    "remote.log.storage.system.enable": True,
    "remote.log.manager.task.interval.ms": 50,
    "log.checkpoint.interval.ms": 100,
}
TIERED = {
    "remote.storage.enable": "true",
    "retention.ms": "-1",
    "internal.segment.bytes": "20000",
    "local.retention.bytes": "30000",
    "file.delete.delay.ms": "0",
}


def until(look: Callable[[], Any]) -> Any:
    """Wait until a check returns findings, and return them."""
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def produce(broker: Broker) -> None:
    table = pa.table({"value": [bytes(RECORD_BYTES)] * BATCH_RECORDS})
    with broker.client() as client:
        for _ in range(RECORDS // BATCH_RECORDS):
            client.write_arrow("t", table)


@dataclass(frozen=True, slots=True)
class Place:
    """A broker, whose archive may go away, and commands about it."""

    broker: Broker
    store: S3Server
    run: Run

    def tiers(self, *words: str) -> Ran:
        admin = self.broker.admin_url.removeprefix("http://")
        return self.run("-b", self.broker.bootstrap, "log", "tiers", "--admin", admin, *words)

    def rows(self) -> list[dict[str, Any]]:
        ran = self.tiers("--output", "json")
        assert ran.status == 0, ran.err
        found: list[dict[str, Any]] = json.loads(ran.out)
        return found

    def settled(self) -> dict[str, Any] | None:
        """The row of the one partition, when nothing waits and its oldest records are archived."""
        [row] = self.rows()
        done = row["lag_bytes"] == 0 and 0 < row["local_start"] < row["tiered_end"]
        return row if done else None

    def doctor(self) -> dict[str, tuple[str, str, str]]:
        admin = self.broker.admin_url.removeprefix("http://")
        return examined(self.run, "-b", self.broker.bootstrap, "--admin", admin)[1]


@pytest.fixture
def place(bare: Run) -> Iterator[Place]:
    with s3_server() as store:
        options = ",".join(f"{name}={value}" for name, value in store.options().items())
        settings = {
            **SETTINGS,
            "diskless.storage.url": store.fresh_url(),
            "diskless.storage.options": options,
        }
        with Broker(settings) as broker:
            yield Place(broker, store, bare)


def test_tier_offsets_and_failed_copies_are_shown(place: Place) -> None:
    assert place.rows() == []
    assert place.doctor()["tiers"][:2] == ("ok", "no topic is tiered")
    place.broker.create_topic("t", 1, TIERED)
    place.broker.create_topic("other", 1)
    produce(place.broker)
    row = until(place.settled)
    assert (row["broker"], row["role"], row["failures"]) == (1, "leader", 0)
    assert (row["start_offset"], row["end_offset"]) == (0, RECORDS)
    assert row["tiered_end"] < RECORDS
    stored = [path for path in place.store.directory.rglob("*.log") if path.is_file()]
    assert row["tiered_segments"] == len(stored)
    assert row["tiered_bytes"] == sum(path.stat().st_size for path in stored)
    assert row["tiered_bytes"] >= row["tiered_end"] * RECORD_BYTES
    log = place.broker.directory / "log" / "t-0"

    def on_disk() -> int:
        return sum(os.path.getsize(path) for path in log.glob("*.log"))

    # Retention goes on, and removes files later than it takes them out of what is shown.
    until(lambda: place.rows()[0]["local_bytes"] == on_disk())
    table = place.tiers("t").out
    assert "t-0" in table
    assert "local from" in table
    assert place.tiers("nowhere").status == 1
    assert place.doctor()["tiers"][0] == "ok"

    place.store.stop()
    produce(place.broker)
    failed = until(lambda: place.doctor().get("tiers, copying"))
    assert failed[0] in ("warn", "fail")
    assert "t-0 could not be copied to s3://" in failed[1]
    [row] = place.rows()
    assert row["failures"] > 0
    assert row["lag_bytes"] > 0
    place.store.start()
    until(place.settled)
    assert place.doctor()["tiers"][0] == "ok"


def read_from_start(broker: Broker) -> int:
    """Read the first records, however long their store takes; how many came."""
    offset = 0
    with broker.client() as client:
        while offset < RECORDS:
            offset = client.fetch_raw("t", 0, offset, max_wait_ms=200).next_offset
    return offset


def test_a_hung_store_delays_only_readers_of_the_tier(place: Place) -> None:
    place.broker.create_topic("t", 1, TIERED)
    produce(place.broker)
    until(place.settled)
    table = pa.table({"value": [bytes(RECORD_BYTES)] * BATCH_RECORDS})
    with ThreadPoolExecutor(1) as pool, place.broker.client() as client:
        place.store.freeze()
        try:
            early = pool.submit(read_from_start, place.broker)
            for _ in range(20):
                end = client.list_offsets("t", "latest")[0]
                client.write_arrow("t", table)
                assert client.fetch_raw("t", 0, end).next_offset == end + BATCH_RECORDS
            assert not early.done()
        finally:
            place.store.freeze(thaw=True)
        assert early.result(SECONDS) >= RECORDS
        until(place.settled)


def test_tiered_topics_on_a_broker_without_tiered_storage_are_reported(
    bare: Run, tmp_path: Path
) -> None:
    with Broker(SETTINGS, directory=tmp_path, admin=False) as broker:
        broker.create_topic("t", 1, TIERED)
    with Broker(directory=tmp_path) as broker:
        words = ("-b", broker.bootstrap, "--admin", broker.admin_url.removeprefix("http://"))
        state, cause, fix = examined(bare, *words)[1]["tiers, setting"]
    assert (state, "t-0 have remote.storage.enable" in cause) == ("warn", True)
    assert "on all brokers" in fix


def test_without_an_admin_interface_one_is_asked_for(run: Run) -> None:
    ran = run("log", "tiers", "--admin", "127.0.0.1:1")
    assert ran.status == 3
    assert "--admin" in ran.err
