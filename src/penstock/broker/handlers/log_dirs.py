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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.base.errors import PenstockError
from penstock.broker.context import RequestContext
from penstock.broker.errors import error_of
from penstock.broker.state import BrokerState, TopicState
from penstock.storage import StorageError

if TYPE_CHECKING:
    from penstock.diskless.service import DisklessService
    from penstock.partitions import Partition

Entry = dict[str, Any]
_Asked = Sequence[tuple[TopicState, frozenset[int] | None]]
"""Topics, and which of their partitions; None for all."""


async def describe_log_dirs(state: BrokerState, context: RequestContext, request: Any) -> Entry:
    """All partitions, or those that the request names; what does not lie here is left out."""
    await state.refresh()
    asked: _Asked = [(topic, None) for topic in state.topics.values()]
    if request.topics is not None:
        named = {topic.topic: frozenset(topic.partitions) for topic in request.topics}
        asked = [(state.topics[name], named[name]) for name in named if name in state.topics]
    results = [_local(state, asked)]
    if state.diskless is not None:
        results.append(await _remote(state, state.diskless, asked))
    return {"results": results}


def _local(state: BrokerState, asked: _Asked) -> Entry:
    directory = state.store.directory
    failed = state.store.failed
    try:
        room = shutil.disk_usage(directory)
    except OSError as error:
        failed = StorageError(f"{directory}: {error}")
    if failed is not None:
        return _offline(directory, failed)
    return {
        "log_dir": directory,
        "topics": _topics(asked, lambda topic: () if topic.diskless else topic.partitions),
        "total_bytes": room.total,
        "usable_bytes": room.free,
    }


async def _remote(state: BrokerState, service: DisklessService, asked: _Asked) -> Entry:
    def led(topic: TopicState) -> Iterable[Partition | None]:
        shown = state.shown(topic.topic)
        for row, partition in zip(shown, topic.partitions, strict=True):
            yield partition if topic.diskless and row.leader == state.node_id else None

    try:
        await state.look_up_marks(topic for topic, _ in asked)
    except PenstockError as error:
        return _offline(service.store_url, error)
    return {"log_dir": service.store_url, "topics": _topics(asked, led)}


def _offline(log_dir: str, error: PenstockError) -> Entry:
    return {"log_dir": log_dir, "error_code": error_of(error)[0], "topics": ()}


def _topics(
    asked: _Asked, logs_of: Callable[[TopicState], Iterable[Partition | None]]
) -> list[Entry]:
    topics: list[Entry] = []
    for topic, indexes in asked:
        partitions = [
            {"partition_index": index, "partition_size": log.size_bytes, "offset_lag": 0}
            for index, log in enumerate(logs_of(topic))
            if log is not None and (indexes is None or index in indexes)
        ]
        if partitions:
            topics.append({"name": topic.topic.name, "partitions": partitions})
    return topics
