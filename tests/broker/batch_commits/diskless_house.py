"""House of the sinks' tests with an object store: diskless topics beside local ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from penstock.base.settings import load
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.control import ControlUnavailable, ObjectCommit, SinkAnswer, SinkCommit
from penstock.diskless.settings import DisklessSettings
from penstock.diskless.topics.partition import DisklessPartition
from penstock.diskless.topics.service import DisklessService
from penstock.objects import FetchSettings, MemoryStore
from penstock.records.columnar import decode_batches
from tests.broker.batch_commits.conftest import FaultyControl, House
from tests.diskless.faults import FaultyStore

DISKLESS = {"diskless.enable": "true"}
QUICK: dict[str, Any] = {
    "diskless.retry.backoff.ms": 1,
    "diskless.retry.backoff.max.ms": 2,
    "diskless.buffer.max.bytes": 64 << 10,
}


class SinkPlane(FaultyControl):
    """Control plane whose sink commits follow a script: fail, lose the response, or conflict."""

    def __init__(self) -> None:
        super().__init__()
        self.script: list[str] = []
        self.commits = 0

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        self.on_save(record)
        self.commits += 1
        fault = self.script.pop(0) if self.script else ""
        if fault == "fails":
            raise ControlUnavailable("the commit was not made")
        if fault == "swept":
            await self.mark_for_deletion(pending_grace_ms=0, unreferenced_grace_ms=2**40, limit=1)
        if fault == "overtaken":
            await self.save_sink_commit(record, expected_version=expected_version)
        if fault == "deleted":
            await self.delete_topic(record.targets[0].topic_id)
        answer = await super().commit_sink_objects(
            record, expected_version=expected_version, commits=commits
        )
        if fault == "lands":
            raise ControlUnavailable("the answer was lost")
        self.on_save(record)
        return answer


class DisklessHouse(House):
    """A house whose store and control plane outlive its brokers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.control: SinkPlane = SinkPlane()
        self.objects = FaultyStore(MemoryStore())
        self.diskless: dict[str, Any] = dict(QUICK)
        self.woken: list[str] = []

    def make_service(self, configs: TopicConfigs) -> DisklessService:
        self.service = DisklessService(
            load(DisklessSettings, self.diskless),
            load(FetchSettings, {}),
            plane=self.control,
            open_store=lambda: self.objects,
            clock=self.clock,
            randomness=SYSTEM_RANDOMNESS,
            broker_id=1,
            config_of=configs.config_of,
            store_url="memory://objects",
        )
        return self.service

    async def serve_objects(self) -> None:
        self.incarnation = SYSTEM_RANDOMNESS.uuid()
        await self.control.register_broker(
            broker_id=self.broker.node_id,
            host="h",
            port=9,
            rack=None,
            incarnation=self.incarnation,
        )
        await self.service.start(
            image=await self.control.image(),
            incarnation=self.incarnation,
            advanced=self._advanced,
            awaited=tuple,
        )

    def _advanced(self, partitions: Iterable[DisklessPartition]) -> None:
        self.woken += [str(partition.topic_partition) for partition in partitions]

    async def stop(self) -> None:
        await self.service.stop()
        await super().stop()

    async def crash(self) -> None:
        await self.service.stop()
        await super().crash()

    async def remote_values(self, topic: str, partition: int = 0) -> list[str]:
        """Read the values of a diskless partition by its index, from the store."""
        topic_id = self.broker.partitions.topics[topic].topic.topic_id
        extents = await self.control.extents(topic_id, partition, start=0, end=2**40, limit=1000)
        found: list[str] = []
        for extent in extents:
            assert extent.base_offset == len(found)
            data = await self.objects.get(extent.key, extent.byte_offset, extent.size_bytes)
            found += [value.decode() for value in decode_batches(data).column("value").to_pylist()]
        [watermarks] = await self.control.watermarks([(topic_id, partition)])
        assert watermarks.high_watermark == len(found)
        return found

    def keys_tried(self) -> list[str]:
        """Return the keys of object records whose upload was tried."""
        return [key for key in self.objects.puts if key.startswith("wal/")]

    async def objects_by_state(self) -> dict[str, int]:
        """Count objects by state; keys that were never written to are PENDING."""
        return {
            object_total.state: object_total.objects
            for object_total in await self.control.object_totals()
        }
