"""DescribeLogDirs: sizes of partitions by log directory, and free space.

The object store of diskless topics is reported as another log directory, with its URL as name.
Every broker reports only those diskless partitions of which clients see it as leader, so that no
partition is reported twice.

Source: KIP-113, KIP-827 (total and usable bytes); Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.errors import error_of
from penstock.broker.partition_registry import ServedTopic
from penstock.partitions import look_up_watermarks
from penstock.storage import StorageError

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.diskless.service import DisklessService
    from penstock.partitions import Partition
    from penstock.storage import LogStore

    _Led = Mapping[int, Partition]

Entry = dict[str, Any]


class LogDirs(Struct, frozen=True, kw_only=True):
    node_id: int
    store: LogStore
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None

    async def describe_log_dirs(self, context: RequestContext, request: Any) -> Entry:
        """Return the sizes of all partitions that this broker leads, or of the requested ones."""
        await self.cluster.look()
        topics = self.partitions.topics
        asked: dict[str, Iterable[int]] = {
            name: range(len(topic.partitions)) for name, topic in topics.items()
        }
        if request.topics is not None:
            asked = {
                topic.topic: topic.partitions for topic in request.topics if topic.topic in topics
            }
        led = {name: self._led(topics[name], indexes) for name, indexes in asked.items()}
        results = [_directory(self.store, led)]
        if self.diskless is not None:
            results.append(await _object_store(self.diskless.store_url, led))
        return {"results": results}

    def _led(self, topic: ServedTopic, indexes: Iterable[int]) -> _Led:
        """Return the partitions whose leader is this broker in metadata responses, by index."""
        selected = frozenset(indexes)
        return {
            row.index: partition
            for row, partition in zip(
                self.cluster.shown(topic.topic), topic.partitions, strict=True
            )
            if partition is not None and row.leader == self.node_id and row.index in selected
        }


def _directory(store: LogStore, led: Mapping[str, _Led]) -> Entry:
    directory = store.directory
    failed = store.failed
    try:
        room = shutil.disk_usage(directory)
    except OSError as error:
        failed = StorageError(f"{directory}: {error}")
    if failed is not None:
        return _offline(directory, failed)
    return {
        "log_dir": directory,
        "topics": _topics(led, ""),
        "total_bytes": room.total,
        "usable_bytes": room.free,
    }


async def _object_store(url: str, led: Mapping[str, _Led]) -> Entry:
    try:
        await look_up_watermarks(
            partition for partitions in led.values() for partition in partitions.values()
        )
    except PenstockError as error:
        return _offline(url, error)
    return {"log_dir": url, "topics": _topics(led, url)}


def _offline(log_dir: str, error: PenstockError) -> Entry:
    return {"log_dir": log_dir, "error_code": error_of(error)[0], "topics": ()}


def _topics(led: Mapping[str, _Led], store_url: str) -> list[Entry]:
    """Return the sizes of partitions in the object store `store_url`; if empty, on the disk."""
    topics: list[Entry] = []
    for name, by_index in led.items():
        partitions = [
            {"partition_index": index, "partition_size": partition.size_bytes, "offset_lag": 0}
            for index, partition in by_index.items()
            if partition.store_url == store_url
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return topics
