"""A journal, or a checkpoint, that is damaged: copies of others heal, what is alone is what its
files say, and the broker starts."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from penstock.apps.process.configuration import Given, configure
from penstock.apps.process.wiring import opened, start
from penstock.base.ids import TopicPartition
from penstock.broker.server import BrokerServer
from penstock.storage import CorruptLog, PartitionLog
from penstock.storage.files.journal import ALIGNMENT_BYTES, MAGIC
from tests.broker.test_lost_copies import is_whole
from tests.broker.test_replicated import Cluster, everything, until
from tests.broker.wire_client import WireClient

pytestmark = pytest.mark.timeout(300)


class Wired(Cluster):
    """Brokers as the command makes them."""

    async def start(self, node_id: int) -> BrokerServer:
        values = {
            "node.id": str(node_id),
            "control.url": self.url,
            "diskless.storage.url": f"file://{self.root}/objects",
            "log.dirs": str(self.root / str(node_id)),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "replication.listener": "127.0.0.1:0",
            "admin.listener": "",
            "shutdown.timeout.ms": "100",
            "broker.session.timeout.ms": "60000",
        }
        flags = {name: Given(value, "test") for name, value in values.items()}
        server, _ = await opened(configure(file=None, environment={}, flags=flags))
        self.brokers[node_id] = server
        await start(server)
        self.clients[node_id] = await WireClient.connect(server.kafka_address)
        return server

    async def kill(self, node_id: int) -> None:
        """Stop a broker, and leave what a kill would have left."""
        directory, killed = self.root / str(node_id), self.root / "killed"
        shutil.copytree(directory, killed)
        await self.stop(node_id)
        shutil.rmtree(directory)
        killed.rename(directory)


def damage_journal(directory: Path) -> None:
    """Flip a bit of an entry in the middle of what the journal holds."""
    (path,) = (directory / "log" / "journal").glob("00000000.journal")
    data = bytearray(path.read_bytes())
    steps = range(0, len(data), ALIGNMENT_BYTES)
    entries = [at for at in steps if data[at : at + 4] == MAGIC]
    data[entries[len(entries) // 2] + 100] ^= 1
    path.write_bytes(data)


@pytest.fixture
async def wired(tmp_path: Path, postgres_url: str) -> AsyncIterator[Wired]:
    made = Wired(tmp_path, postgres_url)
    async with made.running(1, 2, 3):
        yield made


def damage_checkpoints(directory: Path) -> None:
    for path in (directory / "log").glob("partitions.checkpoint*"):
        path.write_bytes(path.read_bytes()[:-1])


def offsets_of(log: PartitionLog) -> set[int]:
    """The offsets of records that can be read."""
    found: set[int] = set()
    for offset in range(log.log_start_offset, log.durable_offset):
        with suppress(CorruptLog):
            read = log.read(offset, max_bytes=1, end_offset=log.durable_offset)
            found.update(range(offset, read.next_offset))
    return found


@pytest.mark.parametrize("damage", [damage_journal, damage_checkpoints])
async def test_a_damaged_start(
    wired: Wired, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    await wired.create()
    await wired.create_single("single")
    hurt = wired.brokers[1].cluster.image.topics["single"].partitions[0].leader
    values = [b"value %d;" % number for number in range(40)]
    for value in values:
        await wired.produce(value)
        await wired.produce(value, "single")
    single = TopicPartition("single", 0)
    await until(lambda: is_whole(wired, hurt, 40))
    alone = offsets_of(wired.brokers[hurt].store.partitions[single])
    assert alone == set(range(len(values)))
    await wired.kill(hurt)
    damage(wired.root / str(hurt))
    await wired.start(hurt)
    assert "acknowledged batches may be lost" in caplog.text
    await until(partial(is_whole, wired, hurt, 40))
    assert everything(wired.log(hurt)) == everything(wired.log(wired.leader()))
    # Of the journal one entry is damaged, with one record, and segments were not written yet.
    lost = alone - offsets_of(wired.brokers[hurt].store.partitions[single])
    assert len(lost) == (damage is damage_journal)
    assert await wired.produce(b"more", "single") == len(values)
    damaged = wired.brokers[hurt].store.set_aside
    assert damaged
    assert all(path.endswith(".quarantined") for path in damaged)
