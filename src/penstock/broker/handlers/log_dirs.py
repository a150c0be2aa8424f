"""DescribeLogDirs: where the bytes of partitions lie, and how much room there is.

A broker has one directory for all its local logs. Diskless topics lie in the object store, which
stands beside it as another log dir, by its URL and without bounds. Each broker answers only for
those of their partitions whose leader clients take it for, so that the answers of all brokers
add up to what there is. The size of a partition is that of its batches, as they are kept; the
journal and the indexes beside them are not in it.

Source: KIP-113, KIP-827 (total and usable bytes); Kafka's `ReplicaManager.describeLogDirs`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What these handlers use."""

    node_id: int
    store: LogStore
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    diskless: DisklessService | None


async def describe_log_dirs(parts: Parts, context: RequestContext, request: Any) -> Entry:
    """All partitions, or those that the request names; what does not lie here is left out."""
    await parts.cluster.look()
    topics = parts.partitions.topics
    asked: dict[str, Iterable[int]] = {
        name: range(len(topic.partitions)) for name, topic in topics.items()
    }
    if request.topics is not None:
        asked = {topic.topic: topic.partitions for topic in request.topics if topic.topic in topics}
    led = {name: _led(parts, topics[name], indexes) for name, indexes in asked.items()}
    results = [_directory(parts.store, led)]
    if parts.diskless is not None:
        results.append(await _object_store(parts.diskless.store_url, led))
    return {"results": results}


def _led(parts: Parts, topic: ServedTopic, indexes: Iterable[int]) -> _Led:
    """The partitions among some that clients take this broker for the leader of, by index."""
    wanted = frozenset(indexes)
    return {
        row.index: partition
        for row, partition in zip(parts.cluster.shown(topic.topic), topic.partitions, strict=True)
        if partition is not None and row.leader == parts.node_id and row.index in wanted
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
        await look_up_watermarks(one for partitions in led.values() for one in partitions.values())
    except PenstockError as error:
        return _offline(url, error)
    return {"log_dir": url, "topics": _topics(led, url)}


def _offline(log_dir: str, error: PenstockError) -> Entry:
    return {"log_dir": log_dir, "error_code": error_of(error)[0], "topics": ()}


def _topics(led: Mapping[str, _Led], store_url: str) -> list[Entry]:
    """The partitions whose records lie in an object store, or in the directory if it is empty."""
    topics: list[Entry] = []
    for name, by_index in led.items():
        partitions = [
            {"partition_index": index, "partition_size": one.size_bytes, "offset_lag": 0}
            for index, one in by_index.items()
            if one.store_url == store_url
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return topics
