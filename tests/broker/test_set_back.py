"""Databases and directories that are older than the cluster's state are rejected."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from penstock.broker.liveness import FILE
from penstock.control import DatabaseSetBack
from penstock.control.postgres import PostgresControlPlane
from penstock.storage import CorruptFile
from tests.broker.test_drain import ran
from tests.broker.test_lost_copies import is_whole
from tests.broker.test_replicated import SECONDS, Cluster, until
from tests.ports import free_port
from tests.postgres import PostgresServer

pytestmark = pytest.mark.timeout(300)

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"


class Backup:
    """A copy of a database, as of when it was made."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def make(self) -> None:
        connection = await asyncpg.connect(self.url)
        self.tables = {
            name: await connection.fetch(f'TABLE "{name}"')
            for (name,) in await connection.fetch(TABLES)
        }
        await connection.close()

    async def restore(self) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            while True:
                with suppress(asyncpg.DeadlockDetectedError):  # with a broker that reads just then
                    await self._restore(connection)
                    return
        finally:
            await connection.close()

    async def _restore(self, connection: Any) -> None:
        async with connection.transaction():
            names = ", ".join(f'"{name}"' for name in self.tables)
            await connection.execute(f"TRUNCATE {names} CASCADE")
            for name, rows in self.tables.items():
                await connection.copy_records_to_table(name, records=[tuple(row) for row in rows])


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path, postgres_url)
    made.settings["broker.session.timeout.ms"] = 60_000
    async with made.running(1, 2, 3):
        yield made


async def start_refused(cluster: Cluster, node_id: int, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        await cluster.start(node_id)
    await cluster.brokers.pop(node_id).stop()


@pytest.fixture
async def backup(cluster: Cluster) -> Backup:
    """Make a backup of a cluster with a topic, after which another one was created."""
    await cluster.create("old")
    made = Backup(cluster.url)
    await made.make()
    await cluster.create("t")
    await cluster.produce(b"acknowledged")
    await cluster.stop(1)
    await cluster.start(1)
    return made


async def test_a_backup_of_yesterday_is_refused(cluster: Cluster, backup: Backup) -> None:
    """Repeated starts fail too, because a rejected one changes nothing in the database."""
    for node_id in (1, 2, 3):
        await cluster.stop(node_id)
    newest = Backup(cluster.url)
    await newest.make()
    await backup.restore()
    for _ in range(3):
        why = "set back: .* restore the newest"  # by its version, or by a promise since
        await start_refused(cluster, 1, DatabaseSetBack, why)
    assert (cluster.root / "1" / "t-0").is_dir(), (
        "the topic is not known there, and its log is kept"
    )
    await newest.restore()
    for node_id in (1, 2, 3):
        await cluster.start(node_id)
    assert b"acknowledged" in await cluster.values(await cluster.led())


async def test_a_backup_with_other_later_registrations_is_refused_permanently(
    cluster: Cluster, backup: Backup
) -> None:
    for node_id in (1, 2, 3):
        await cluster.stop(node_id)
    await backup.restore()
    others = PostgresControlPlane(cluster.url)
    await others.start()
    for number in range(60):
        await others.register_broker(
            broker_id=9, host="h", port=9, rack=None, incarnation=UUID(int=number)
        )
    await others.close()
    for _ in range(2):
        why = "(of broker 1 twice|of broker 1 is|replicas here have promised).*restore the newest"
        await start_refused(cluster, 1, DatabaseSetBack, why)


async def test_a_database_that_is_restored_under_brokers_ends_them(
    cluster: Cluster, backup: Backup
) -> None:
    await backup.restore()
    async with asyncio.timeout(SECONDS):
        for node_id, server in cluster.brokers.items():
            await server.superseded.wait()
            # The copy knows broker 1 by the process that was there when it was made.
            assert node_id == 1 or isinstance(server.ended_by, DatabaseSetBack)
    for node_id in cluster.brokers:
        assert (cluster.root / str(node_id) / "t-0").is_dir()


async def test_a_directory_of_another_cluster_is_refused(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    await cluster.stop(1)
    own, cluster.url = cluster.url, postgres.schema()
    why = "this broker's directory belongs to cluster"
    await start_refused(cluster, 1, DatabaseSetBack, why)
    cluster.url = own


async def test_an_older_copy_of_a_directory_does_not_help_to_forget(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It says what it has, and of what it lacks nothing, until it has got everything."""
    await cluster.create()
    await cluster.produce(b"first")
    old = 1 if cluster.leader() != 1 else 2
    other = next(broker_id for broker_id in (1, 2, 3) if broker_id not in (old, cluster.leader()))
    await cluster.stop(old)
    snapshot = cluster.root / "snapshot"
    shutil.copytree(cluster.root / str(old), snapshot)
    await cluster.start(old)
    await until(partial(is_whole, cluster, old))
    await cluster.stop(other)
    for number in range(5):  # on the leader and on what is to become old
        await cluster.produce(b"acknowledged %d" % number)
    leader = cluster.leader()
    await cluster.stop(old)
    await cluster.stop(leader)
    shutil.rmtree(cluster.root / str(old))
    shutil.copytree(snapshot, cluster.root / str(old))
    await cluster.start(other)
    cluster.settings["admin.listener"] = f"127.0.0.1:{free_port()}"
    await cluster.start(old)
    cluster.settings["admin.listener"] = ""
    assert "is an older copy of broker" in caplog.text
    log = cluster.log(old)
    await until(lambda: log.copy.core.limbo > 0 and not log.copy.silent)
    await until(lambda: "may have lost acknowledged records" in caplog.text)
    assert cluster.leader() == 0, "two of three copies, which lack what was acknowledged"
    said = json.loads((await ran(cluster, "doctor", "--output", "json", status=1))[0])
    (finding,) = [row for row in said if row["check"] == "copies"]
    lacks = "it may lack records that it acknowledged"
    assert finding["cause"].startswith(f"broker {old}: t-0: {lacks}")
    await cluster.stop(old)  # it is noted: another start does not forget it
    await cluster.start(old)
    await until(lambda: cluster.log(old).copy.core.limbo > 0)
    await cluster.start(leader)
    read = await cluster.values(await cluster.led())
    assert all(b"acknowledged %d" % number in read for number in range(5))
    await until(partial(is_whole, cluster, old, 6))


async def test_a_damaged_file_of_what_was_seen_is_refused(cluster: Cluster) -> None:
    await cluster.stop(1)
    (cluster.root / "1" / FILE).write_text("{}")
    await start_refused(cluster, 1, CorruptFile, "is damaged, so this broker cannot check")
