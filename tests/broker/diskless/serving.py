"""`penstock serve` on PostgreSQL and S3, behind proxies that lose requests on demand.

The broker is a separate process, so that it can be killed; the proxies run in the test's loop, so
blocking calls belong in threads.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from penstock.control.postgres import PostgresControlPlane
from penstock.diskless.topics.verification import Verifier
from penstock.objects import open_store
from tests.broker.wire_client import WireClient
from tests.control.postgres_proxy import Proxy, proxy_to
from tests.ports import free_port
from tests.postgres import PostgresServer
from tests.proxy import FaultProxy
from tests.s3 import S3Server

SECONDS: Final = 60.0
SETTINGS: Final = {
    "admin.listener": "",
    "shutdown.timeout.ms": "20000",
    "group.initial.rebalance.delay.ms": "0",
    "diskless.commit.interval.ms": "5",
    "diskless.sweep.interval.ms": "100",
}


class Serving:
    """A broker over one directory: started, killed and restarted at the same port."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.bootstrap = ""
        self.directory = directory
        # A port that nobody else gets while the broker is down.
        self._settings = {**settings, "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, dies_at: str = "") -> None:
        """Start it; with `dies_at` it kills itself at that step of a topic's switch."""
        module = ["tests.broker.diskless.dying", dies_at] if dies_at else ["penstock"]
        command = [sys.executable, "-m", *module, "serve", "-X", f"log.dirs={self.directory}"]
        for name, value in self._settings.items():
            command += ["-X", f"{name}={value}"]
        with self._log.open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), SECONDS)
        found = re.search(rb"penstock ready kafka=(\S+)", line)
        assert found, self.said()
        self.bootstrap = found[1].decode()

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    async def connect(self) -> WireClient:
        host, port = self.bootstrap.rsplit(":", 1)
        return await WireClient.connect((host, int(port)))

    async def ended(self) -> int:
        """Wait for the process to end itself; return its status."""
        if self._process is None:
            return 0
        status = await asyncio.wait_for(self._process.wait(), SECONDS)
        self._process = None
        return status

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self.ended()

    async def stop(self) -> None:
        """Stop it in order."""
        if self._process is not None:
            self._process.terminate()
            assert await self.ended() == 0, self.said()

    def said(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self.directory / "broker.log"


class Stores:
    """An empty schema and an empty store, each directly and through a proxy."""

    def __init__(
        self, url: str, postgres: PostgresServer, s3: S3Server, database: Proxy, objects: FaultProxy
    ) -> None:
        self.database = database
        self.objects = objects
        self._url = url
        self._store_url = s3.fresh_url()
        self._options = s3.options()
        through = s3.options(objects.endpoint)
        self.settings = {
            **SETTINGS,
            "control.url": url.replace(f":{postgres.port}/", f":{database.port}/"),
            "diskless.storage.url": self._store_url,
            "diskless.storage.options": ",".join(f"{n}={value}" for n, value in through.items()),
        }

    async def is_diskless(self, topic: str = "t") -> bool:
        """Read from the database whether a topic is diskless."""
        connection = await asyncpg.connect(self._url)
        try:
            configs = await connection.fetchval("SELECT configs FROM topics WHERE name = $1", topic)
        finally:
            await connection.close()
        return '"diskless.enable": "true"' in configs

    async def was_cut(self, times: int) -> None:
        """Wait until so many commits were cut."""
        await until(lambda: self.database.cuts >= times)

    async def was_missed(self, times: int) -> None:
        """Wait until so many more attempts to reach the absent database."""
        goal = self.database.refused + times
        await until(lambda: self.database.refused >= goal)

    async def archive(self) -> list[str]:
        """Return the keys of all sealed objects in the store."""
        store = open_store(self._store_url, options=self._options)
        try:
            return [info.key async for info in store.list("archive/")]
        finally:
            await store.close()

    async def only_committed(self) -> bool:
        """Whether the sealed objects in the store are those of topics."""
        connection = await asyncpg.connect(self._url)
        try:
            rows = await connection.fetch(
                "SELECT key FROM diskless_objects WHERE state = 'committed' AND kind = 'segment'"
            )
        finally:
            await connection.close()
        return sorted(await self.archive()) == sorted(row["key"] for row in rows)

    async def swept(self) -> None:
        """Wait until only committed objects are left, after moving the clock."""
        connection = await asyncpg.connect(self._url)
        await connection.execute(
            "UPDATE diskless_objects SET changed_ms = changed_ms - 86400000"
            " WHERE state = 'pending' AND key LIKE 'archive/%'"
        )
        await connection.close()
        async with asyncio.timeout(SECONDS):
            while not await self.only_committed():
                await asyncio.sleep(0.05)

    async def verify(self) -> None:
        """Check that the store has exactly what the index has of diskless topics."""
        plane = PostgresControlPlane(self._url)
        await plane.start()
        store = open_store(self._store_url, options=self._options)
        try:
            verifier = Verifier(plane=plane, store=store, checksums=True)
            await verifier.verify(
                [
                    (f"{topic.name}-{partition.index}", (topic.topic_id, partition.index))
                    for topic in (await plane.image()).topics.values()
                    if topic.configs.get("diskless.enable") == "true"
                    for partition in topic.partitions
                ]
            )
            assert verifier.findings == []
            assert verifier.extents > 0
        finally:
            await store.close()
            await plane.close()


@asynccontextmanager
async def stores_of(url: str, postgres: PostgresServer, s3: S3Server) -> AsyncIterator[Stores]:
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(proxy_to(postgres.port))
        objects = await stack.enter_async_context(FaultProxy("127.0.0.1", s3.port))
        yield Stores(url, postgres, s3, database, objects)


def become_diskless(bootstrap: str) -> KafkaError | None:
    """Request the switch by librdkafka's admin client; return the error. Blocks."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    change = ConfigEntry("diskless.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[change])
    (future,) = admin.incremental_alter_configs([resource], request_timeout=SECONDS).values()
    try:
        future.result(SECONDS)
    except KafkaException as error:
        found: KafkaError = error.args[0]
        return found
    return None


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that the proxies in this loop bring about."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)
