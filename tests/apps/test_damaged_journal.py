"""A journal that has lost what was synced: copies of others heal, and what is alone is refused."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from penstock.apps.configuration import Given, configure
from penstock.apps.wiring import opened, start
from penstock.broker.server import BrokerServer
from penstock.storage import CorruptLog
from penstock.storage.formats.journal_entry import ALIGNMENT_BYTES, MAGIC
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
        server = await opened(configure(file=None, environment={}, flags=flags))
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


def damage(directory: Path) -> None:
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


@pytest.mark.parametrize("alone", [False, True])
async def test_a_damaged_journal(
    wired: Wired, alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await wired.create()
    if alone:
        await wired.create_single("single")
        hurt = wired.brokers[1].cluster.image.topics["single"].partitions[0].leader
    else:
        hurt = 1 if wired.leader() != 1 else 2
    values = [b"value %d;" % number for number in range(40)]
    for value in values:
        await wired.produce(value)
    await until(lambda: is_whole(wired, hurt, 40))
    await wired.kill(hurt)
    damage(wired.root / str(hurt))
    if alone:
        with pytest.raises(CorruptLog, match="is damaged or gone") as refused:
            await wired.start(hurt)
        (note,) = refused.value.__notes__
        assert note.startswith("1 partitions have no copy elsewhere, the first: single-0; restore")
        return
    await wired.start(hurt)
    assert "replicated logs may lack what they acknowledged" in caplog.text
    assert "what was synced may be gone" in caplog.text
    await until(partial(is_whole, wired, hurt, 40))
    assert everything(wired.log(hurt)) == everything(wired.log(wired.leader()))
