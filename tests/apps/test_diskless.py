"""`penstock diskless`: each command as a user would call it, with its words and its status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.apps.diskless.command import _object
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.control import SqliteControlPlane
from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.gc import ObjectIdMarkers
from penstock.diskless.identity import KEY
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.writing import ObjectWriter
from penstock.objects import DirectoryStore, open_store
from tests.apps.conftest import Run
from tests.diskless.submissions import TOPIC, Sent
from tests.diskless.world import guard_of
from tests.ports import free_port

INCARNATION = UUID(int=99)


async def write(directory: Path) -> None:
    """Create the data of a broker: a topic of two partitions, one object, unused keys."""
    plane = SqliteControlPlane(directory / "control.sqlite")
    await plane.start()
    await fill(plane, directory)
    await plane.close()


async def fill(plane: SqliteControlPlane | PostgresControlPlane, directory: Path) -> None:
    """The same in any database."""
    await plane.register_broker(broker_id=1, host="h", port=1, rack=None, incarnation=INCARNATION)
    await plane.create_topic(
        name="orders", topic_id=TOPIC, partitions=[[1], [1]], configs={"diskless.enable": "true"}
    )
    store = DirectoryStore(directory / "objects")
    guard = guard_of(plane, store, cluster_id=(await plane.image()).cluster_id)
    id_markers = ObjectIdMarkers(plane=plane, store=store, guard=guard)
    writer = ObjectWriter(
        DisklessSettings(lease_block_objects=4),
        plane=plane,
        store=store,
        broker_id=1,
        incarnation=INCARNATION,
        clock=SYSTEM_CLOCK,
        randomness=SYSTEM_RANDOMNESS,
        on_commit=lambda answer: None,
        keep=lambda key, pieces: None,
    )
    writer.attach(asyncio.get_running_loop())
    sent = [Sent(partition=0), Sent(partition=1, count=3)]
    for message in sent:
        writer.submit(message.submission)
    await writer.stop()
    assert all(entry.placed.error is None for entry in sent)
    await id_markers.note()
    await store.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path))
    return tmp_path


def facts(bare: Run, data: Path, *words: str, status: int = 0) -> Any:
    ran = bare("--output", "json", "diskless", *words, "--data-dir", str(data))
    assert ran.status == status, ran.err
    return json.loads(ran.out)


def test_objects_of_a_store_that_is_away_are_an_error(bare: Run, data: Path) -> None:
    options = f"aws_endpoint=http://127.0.0.1:{free_port()},aws_access_key_id=a"
    options += ",aws_secret_access_key=b,aws_region=us-east-1"
    settings = ("diskless.storage.url=s3://away/x", f"diskless.storage.options={options}")
    words = [word for setting in settings for word in ("-X", setting)]
    ran = bare("diskless", "objects", "--data-dir", str(data), *words)
    assert (ran.status, ran.out) == (1, "")
    assert "s3://away/x: cannot read store.properties" in ran.err


def object_path(data: Path) -> Path:
    (path,) = (path for path in (data / "objects" / "wal").rglob("*") if path.is_file())
    return path


def test_status_counts(bare: Run, data: Path) -> None:
    found = facts(bare, data, "status")
    totals = {(item["state"], item["kind"]): item["objects"] for item in found["objects"]}
    assert totals["committed", "wal"] == 1
    assert totals["pending", "wal"] >= 3
    assert {item["partition"] for item in found["backlogs"]} == {"orders-0", "orders-1"}
    assert found["highest_object_id"] == found["marked_object_id"] >= 4
    ran = bare("diskless", "status", "--data-dir", str(data))
    assert ran.status == 0
    assert "committed" in ran.out
    assert "orders-1" in ran.out


def test_status_says_that_the_database_was_set_back(bare: Run, data: Path) -> None:
    mark = sorted((data / "objects" / "marks").iterdir())[-1]
    mark.rename(mark.with_name(f"{10**6:020d}"))
    found = facts(bare, data, "status", status=1)
    assert found["marked_object_id"] is None
    assert "1000000" in found["warning"]
    assert bare("diskless", "status", "--data-dir", str(data)).status == 1


@pytest.mark.parametrize("command", ["status", "objects", "verify", "consolidate"])
def test_a_store_that_is_not_the_databases_is_refused(bare: Run, data: Path, command: str) -> None:
    assert bare("diskless", "status", "--data-dir", str(data)).status == 0
    assert not (data / "objects" / KEY).exists()  # looking changes nothing
    assert bare("diskless", "consolidate", "--data-dir", str(data)).status == 0
    assert (data / "objects" / KEY).exists()
    assert bare("diskless", command, "--data-dir", str(data)).status == 0
    (data / "objects").rename(data / "moved")
    ran = bare("diskless", command, "--data-dir", str(data))
    assert ran.status == 1
    assert ran.err.count("\n") == 1
    assert "has no identity" in ran.err
    assert (data / "objects").as_uri() in ran.err
    assert not (data / "objects" / "marks").exists()
    moved = f"diskless.storage.url={(data / 'moved').as_uri()}"
    assert bare("diskless", command, "--data-dir", str(data), "-X", moved).status == 0


def test_objects_lists_partitions_by_their_footers(bare: Run, data: Path) -> None:
    (row,) = facts(bare, data, "objects", "--state", "committed")
    assert row["partitions"] == ["orders-0", "orders-1"]
    assert row["size_bytes"] == object_path(data).stat().st_size
    rows = facts(bare, data, "objects")
    assert {item["state"] for item in rows} == {"committed", "pending"}
    keys = [item["key"] for item in rows]
    assert keys == sorted(keys)
    assert facts(bare, data, "objects", "--after", keys[0], "--limit", "1")[0]["key"] == keys[1]
    ran = bare("diskless", "objects", "--data-dir", str(data))
    assert "orders-0, orders-1" in ran.out


def test_objects_says_what_is_wrong_with_one(bare: Run, data: Path) -> None:
    path = object_path(data)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    (row,) = facts(bare, data, "objects", "--state", "committed")
    assert "no footer" in row["note"]
    path.write_bytes(Sent(count=2).data)
    (row,) = facts(bare, data, "objects", "--state", "committed")
    assert row["note"] == "a sealed segment from offset 0 on"
    path.write_bytes(b"short")
    (row,) = facts(bare, data, "objects", "--state", "committed")
    assert "no footer" in row["note"]
    path.unlink()
    (row,) = facts(bare, data, "objects", "--state", "committed")
    assert row["note"] == "not in the store"


async def test_objects_names_indexes_of_tiered_segments() -> None:
    store = open_store("memory://indexes-of-tiers")
    key = "archive/topic/0/00000000000000000000-0-1-cee61d16.timeindex"
    await store.put(key, [bytes(24)])
    row = await _object(cast(Any, SimpleNamespace(store=store)), {}, "committed", key)
    assert (row["note"], row["size_bytes"]) == ("an index of a tiered segment", 24)
    await store.close()


def test_verify_finds_nothing_wrong_and_then_what_is(bare: Run, data: Path) -> None:
    found = facts(bare, data, "verify", "--checksums")
    assert (found["wrong"], found["partitions"], found["objects"]) == (0, 2, 1)
    assert found["verified_bytes"] > 0
    assert "nothing is wrong" in bare("diskless", "verify", "--data-dir", str(data)).out
    (data / "objects" / "wal" / "orphan").write_bytes(b"123")
    object_path_of_extent = next(
        path
        for path in (data / "objects" / "wal").rglob("*")
        if path.is_file() and path.name != "orphan"
    )
    object_path_of_extent.unlink()
    found = facts(bare, data, "verify", status=1)
    assert found["counts"] == {"missing": 2, "orphan": 1}
    ran = bare("diskless", "verify", "--data-dir", str(data))
    assert ran.status == 1
    assert "3 faults" in ran.out


def test_verify_takes_one_topic(bare: Run, data: Path) -> None:
    assert facts(bare, data, "verify", "--topic", "orders")["partitions"] == 2
    ran = bare("diskless", "verify", "--topic", "other", "--data-dir", str(data))
    assert ran.status == 2
    assert "topic 'other' does not exist, or is not a diskless topic" in ran.err


def test_a_running_broker_has_to_be_stopped_first(bare: Run, data: Path) -> None:
    async def locked() -> None:
        plane = SqliteControlPlane(data / "control.sqlite")
        await plane.start()
        ran = await asyncio.to_thread(bare, "diskless", "status", "--data-dir", str(data))
        await plane.close()
        assert ran.status == 1
        assert "stop the broker" in ran.err

    asyncio.run(locked())


def test_a_directory_without_a_database_is_refused(bare: Run, tmp_path: Path) -> None:
    ran = bare("diskless", "status", "--data-dir", str(tmp_path))
    assert ran.status == 1
    assert "does not exist; give the broker's data directory" in ran.err
    assert not list(tmp_path.iterdir())


def test_with_postgresql_brokers_may_run_meanwhile(
    bare: Run, tmp_path: Path, postgres_url: str
) -> None:
    async def running() -> None:
        plane = PostgresControlPlane(postgres_url)
        await plane.start()
        await fill(plane, tmp_path)
        words = (
            "--data-dir", str(tmp_path), "-X", f"control.url={postgres_url}",
            "-X", f"diskless.storage.url={(tmp_path / 'objects').as_uri()}",
        )  # fmt: skip
        ran = await asyncio.to_thread(bare, "diskless", "verify", "--checksums", *words)
        assert "nothing is wrong" in ran.out, ran.err
        ran = await asyncio.to_thread(bare, "diskless", "objects", *words)
        assert "orders-0, orders-1" in ran.out, ran.err
        ran = await asyncio.to_thread(bare, "diskless", "status", *words[:-2])
        assert ran.status == 1
        assert "must name the object store that all brokers share" in ran.err
        await plane.close()

    asyncio.run(running())


def test_consolidate_makes_segments_of_all_ages_on_demand(bare: Run, data: Path) -> None:
    nothing = facts(bare, data, "consolidate")
    assert (nothing["partitions"], nothing["segments"], nothing["failures"]) == (2, 0, 0)
    ran = bare("diskless", "consolidate", "--topic", "nothing", "--data-dir", str(data))
    assert ran.status == 2
    ran = bare("--output", "json", "diskless", "consolidate", "--all-ages", "--data-dir", str(data))
    assert ran.status == 0, ran.err
    made = json.loads(ran.out)
    assert (made["segments"], made["extents"], made["races_lost"]) == (2, 2, 0)
    assert f"archive/{TOPIC}/1/{0:020d}-0-" in ran.err
    assert "orders-1: offsets 0 to 2 of 1 extents" in ran.err
    assert facts(bare, data, "status")["backlogs"] == []
    verified = facts(bare, data, "verify", "--checksums")
    assert (verified["wrong"], verified["verified_bytes"]) == (0, made["segment_bytes"])
    rows = [row for row in facts(bare, data, "objects") if row["key"].startswith("archive/")]
    assert [row["state"] for row in rows] == ["committed", "committed"]
    ran = bare("diskless", "consolidate", "--topic", "orders", "--data-dir", str(data))
    assert ran.status == 0
    assert "segment bytes" in ran.out


def test_consolidate_says_what_it_cannot_take(bare: Run, data: Path) -> None:
    path = object_path(data)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[32 + 61] ^= 1  # the first batch of the first partition
    path.write_bytes(content)
    ran = bare("--output", "json", "diskless", "consolidate", "--all-ages", "--data-dir", str(data))
    assert ran.status == 1
    made = json.loads(ran.out)
    assert (made["segments"], made["failures"]) == (1, 1)
    assert [row["partition"] for row in facts(bare, data, "status")["backlogs"]] == ["orders-0"]
