"""A disk that rejects all writes, below one of three brokers."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.broker.test_replicated import Cluster, has, until
from tests.broker.test_replicated_faults import replication
from tests.broker.wire_client import batch
from tests.faulty_files import FaultyFiles

pytestmark = pytest.mark.timeout(300)

WRITES: Final = (
    "make_directory", "create", "open", "write", "write_at", "truncate", "set_attribute", "rename",
    "rename_new", "link", "remove", "remove_tree",
)  # fmt: skip


async def test_a_disk_that_takes_nothing_any_more(
    tmp_path: Path, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others lead old, new and idle partitions; stored records stay readable."""
    cluster, disk = Cluster(tmp_path, postgres_url), FaultyFiles()
    cluster.files[1] = disk
    async with cluster.running(1, 2, 3):
        led = dict[str, int]()
        while {*led.values()} != {1, 2, 3}:
            led[f"t{len(led)}"] = await cluster.create(f"t{len(led)}")
        names = [*led]
        await cluster.create_single("alone")
        single = cluster.brokers[1].cluster.image.topics["alone"].partitions[0].leader
        told = {name: [await cluster.produce(b"before", name)] for name in (*names, "alone")}
        disk.fail = lambda name, path: errno.EROFS if name in WRITES else None
        for name in names[:-1]:
            told[name].append(await cluster.produce(b"meanwhile", name))
        for name in names:
            await until(lambda name=name: cluster.leader(name) in (2, 3))  # type: ignore[misc]
        for place in range(3):
            assert await cluster.create(f"new{place}") in (2, 3)
            assert await cluster.produce(b"new", f"new{place}") == 0
        for name in names:
            read = await cluster.values(cluster.leader(name), name)
            assert read.count(b"before") == 1
            assert read.count(b"meanwhile") >= len(told[name]) - 1  # once for each attempt
        near = partial(cluster.clients[1].fetch, names[0], rack_id="near")
        assert b"before" in bytes((await near(0)).records)
        end = cluster.log(1, names[0]).copy.mark
        assert (await near(end)).error_code.name == "not_leader_or_follower", "to read on elsewhere"
        copies = replication(cluster, 1)
        assert copies.failed
        trouble = {log.copy.trouble for log in copies.logs.values()}
        offline = "the disk has failed: the replica is offline until the broker is restarted"
        assert trouble == {offline}
        assert f"{len(names)} replicas are offline until a restart: " in caplog.text
        assert "Read-only file system" in str(cluster.brokers[1].store.failed)
        assert b"before" in await cluster.values(single, "alone"), "what is there is read"
        row = await cluster.clients[single].produce("alone", batch(b"refused"))
        assert (row.error_code.name == "kafka_storage_error") == (single == 1)
        disk.fail = lambda name, path: None
    # With a disk that can be written to again, it has what it has told, and gets what it missed.
    async with cluster.running(1, 2, 3):
        for name in names:
            await until(lambda name=name: has_all(cluster, name))  # type: ignore[misc]


def has_all(cluster: Cluster, name: str) -> bool:
    end = cluster.log(cluster.leader(name), name).copy.mark if cluster.leader(name) else 0
    return end > 0 and all(has(cluster.log(broker_id, name), end) for broker_id in (1, 2, 3))
