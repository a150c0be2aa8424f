"""Sinks of a broker on a real store and staging directory, in the test's loop; it can crash."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.batch_commits import Committed
from penstock.broker.batch_commits.manifest import parse_post
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, MemoryControlPlane, SinkCommit
from penstock.diskless.topics.service import DisklessService
from penstock.records.columnar import decode_batches
from penstock.storage import LogStore, StorageSettings
from tests.broker.batch_commits.sink_client import Part, encode_blob
from tests.faulty_files import FaultyFiles
from tests.storage.batches import abandon

TURNS_MAX = 30_000


class HouseClock:
    """The system's clock, which can be moved forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


class FaultyControl(MemoryControlPlane):
    """Control plane that outlives its brokers and fails on request, before or after a save.

    Saves wait while `gate` is cleared.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.on_save: Callable[[SinkCommit], None] = lambda record: None

    async def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> int:
        self.on_save(record)
        await self.gate.wait()
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise ControlUnavailable("the database is away")
        version = await super().save_sink_commit(record, expected_version=expected_version)
        if fault == "after":
            raise ControlUnavailable("the database is away, and has it")
        return version


class RefusingFiles(FaultyFiles):
    """Files that fail with a full disk while `refuse` is set, even without growth."""

    def __init__(self) -> None:
        super().__init__(self._refuse)
        self.refuse = False

    def _refuse(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if self.refuse and name == "write_at":
            raise OSError(errno.ENOSPC, "No space left on device")


class House:
    """A directory and a control plane, and successive brokers on them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.control = FaultyControl()
        self.clock = HouseClock()
        self.topic_ids: dict[str, str] = {}
        self.files = RefusingFiles()
        self.settings: dict[str, Any] = {}
        self.storage = StorageSettings()
        self.staging = root / "staging"

    async def start(self) -> House:
        values = {"sink.staging.directory": str(self.staging), **self.settings}
        settings = load(BrokerSettings, values)
        configs = TopicConfigs(settings)
        self.files = RefusingFiles()
        self.store = LogStore.open(
            self.root / "log",
            self.storage,
            clock=self.clock,
            config_of=configs.config_of,
            files=self.files,
        )
        self.broker = BrokerServer(
            settings=settings,
            control=self.control,
            store=self.store,
            clock=self.clock,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
            diskless=self.make_service(configs),
        )
        configs.bind(lambda: self.broker.cluster.loaded)
        loop = asyncio.get_running_loop()
        self.broker.commits.attach(loop.call_soon)
        await self.serve_objects()
        await self.broker.cluster.refresh()
        assert self.broker.sinks is not None
        self.sinks = self.broker.sinks
        await self.sinks.start()
        return self

    def make_service(self, configs: TopicConfigs) -> DisklessService | None:
        """Return no service; the house with an object store serves diskless topics."""
        return None

    async def serve_objects(self) -> None:
        """Do nothing, without an object store."""

    async def stop(self) -> None:
        await self.sinks.stop()
        self.store.close()

    async def crash(self) -> None:
        """End as kill -9 does: close nothing, write nothing more."""
        await self.sinks.stop()
        abandon(self.store)

    async def topic(
        self,
        name: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        internal: bool = False,
    ) -> None:
        topic_id = SYSTEM_RANDOMNESS.uuid()
        await self.control.create_topic(
            name=name,
            topic_id=topic_id,
            partitions=[[1]] * partitions,
            configs=configs or {},
            internal=internal,
        )
        self.topic_ids[name] = str(topic_id)
        await self.broker.cluster.refresh()

    async def delete_topic(self, name: str) -> None:
        await self.control.delete_topic(self.broker.partitions.topics[name].topic.topic_id)
        await self.broker.cluster.refresh()

    def stage(
        self, name: str, parts: Sequence[Part], *, records_per_batch: int = 10, codec: int = 0
    ) -> dict[str, Any]:
        blob, entry = encode_blob(
            name, parts, self.topic_ids, records_per_batch=records_per_batch, codec=codec
        )
        (self.staging / name).write_bytes(blob)
        return entry

    async def post(
        self, batch: int, blobs: Sequence[Any], *, query: str = "q", owner: str | None = "o"
    ) -> Committed:
        owner, manifest = parse_post(json.dumps({"owner": owner, "blobs": list(blobs)}).encode())
        return await self.sinks.post(query=query, batch_id=batch, owner=owner, manifest=manifest)

    def values(self, topic: str, partition: int = 0) -> list[str]:
        log = self.broker.partitions.with_log(topic, partition).log
        found: list[str] = []
        offset = log.log_start_offset
        while offset < log.durable_offset:
            read = log.read(offset, max_bytes=1 << 20, end_offset=log.durable_offset)
            data = b"".join(bytes(buffer) for buffer in read.buffers)
            found += [value.decode() for value in decode_batches(data).column("value").to_pylist()]
            offset = read.next_offset
        assert len(found) == log.durable_offset - log.log_start_offset
        return found

    def staged(self) -> list[str]:
        return sorted(path.name for path in self.staging.iterdir() if path.name[0] != ".")

    async def settled(self) -> None:
        """Wait until every intent is finished, without a client."""
        await self.until(lambda: self.sinks.prepared_commits == 0)

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(TURNS_MAX):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("what was waited for did not come")


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = await House(tmp_path).start()
    yield house
    await house.stop()
