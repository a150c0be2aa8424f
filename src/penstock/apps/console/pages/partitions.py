"""State of partitions as the console's pages show it, from the metadata image in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.broker.handlers.replication import Minimums
from penstock.broker.net.errors import UnknownTopicOrPartition
from penstock.control.rules.epochs import ack_quorum
from penstock.replication.peer_format import PartitionKey

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.assembly import Assembly
    from penstock.broker.partitions.registry import ServedTopic
    from penstock.control import Partition, Topic

REPLICATED = "replicated"
DISKLESS = "diskless"
LOCAL = "local"


class Counts(Struct, frozen=True, kw_only=True):
    """Numbers of partitions: all, those that this broker leads, and those with a problem.

    `refusing` partitions reject records, because too few replicas are in sync. `absent` are the
    brokers that hold replicas and are not registered.
    """

    total: int
    led: int
    leaderless: int
    refusing: int
    behind: int
    absent: Sequence[int]


def kind_of(served: ServedTopic) -> str:
    """Return the storage of a topic: `local`, `replicated` or `diskless`."""
    if served.diskless:
        return DISKLESS
    rows = served.topic.partitions
    return REPLICATED if rows and len(rows[0].replicas) > 1 else LOCAL


async def served_topic(broker: Assembly, request: Request) -> ServedTopic:
    """Return the topic of a path; raises UnknownTopicOrPartition."""
    await broker.cluster.look()
    name = request.path_params["topic"]
    served = broker.partitions.topics.get(name)
    if served is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    return served


def behind(row: Partition, live: Collection[int]) -> list[int]:
    """Return the replicas of a partition that are out of sync, or whose brokers do not respond."""
    return [replica for replica in row.replicas if replica not in row.isr or replica not in live]


def records_behind(
    broker: Assembly, topic: Topic, row: Partition, replica: int, end: int | None
) -> int | None:
    """Return the number of offsets that a replica lacks; None if this broker does not know it.

    The leader knows it of all connected replicas. Another broker knows it of its own replica, if
    the partition's `end` offset is known.
    """
    if broker.replicas is None:
        return None
    key = PartitionKey(topic.topic_id.bytes, row.index)
    log = broker.replicas.replication.logs.get(key)
    if log is None:
        return None
    leading = log.leading
    if leading is not None and leading.leads:
        stream = leading.core.streams.get(replica)
        if stream is None or not stream.joined:
            return None
        return max(0, leading.core.end - stream.durable)
    if replica == broker.node_id and end is not None:
        return max(0, end - log.log.state.log_end_offset)
    return None


def needed(row: Partition, minimum: int) -> int:
    """Return the replicas that must be in sync to accept a record; `minimum` is the setting."""
    count = len(row.replicas)
    return ack_quorum(count, min(minimum, count))


def trouble(row: Partition, live: Collection[int], minimum: int) -> str:
    """Return a partition's problem as words; empty without one."""
    if row.leader not in live:
        return "no leader"
    found = behind(row, live)
    if not found:
        return ""
    words = f"replica {', '.join(map(str, found))} out of sync"
    least = needed(row, minimum)
    if len(row.isr) < least:
        return f"rejects records: {words}, and {least} must be in sync"
    return words


def troubles(served: ServedTopic, live: Collection[int]) -> int:
    """Return the number of a topic's partitions with a problem."""
    if served.diskless:
        return 0
    return sum(1 for row in served.topic.partitions if row.leader not in live or behind(row, live))


def counts(broker: Assembly) -> Counts:
    """Count the partitions of the cluster."""
    live, node_id = broker.cluster.live, broker.node_id
    minimums = Minimums(broker.topic_admin.levels())
    total = led = leaderless = lagging = refusing = 0
    holders: set[int] = set()
    for served in broker.partitions.topics.values():
        rows: Sequence[Partition] = served.topic.partitions
        total += len(rows)
        if served.diskless:
            continue
        for row in rows:
            led += row.leader == node_id
            holders.update(row.replicas)
            if row.leader not in live:
                leaderless += 1
            elif behind(row, live):
                lagging += 1
                refusing += len(row.isr) < needed(row, minimums.of(served.topic))
    registered = {found.broker_id for found in broker.cluster.image.brokers}
    return Counts(
        total=total,
        led=led,
        leaderless=leaderless,
        refusing=refusing,
        behind=lagging - refusing,
        absent=sorted(holders - registered),
    )


def size_here(served: ServedTopic) -> int | None:
    """Return the bytes of a topic's logs that this broker has; None if it has none."""
    logs = [log for log in (*served.partitions, *served.followed) if log is not None]
    return sum(log.size_bytes for log in logs) if logs else None


def records_here(served: ServedTopic) -> int | None:
    """Return the offset span of a topic's logs that this broker has; None if it has none."""
    logs = [
        log
        for log in (*served.partitions, *served.followed)
        if log is not None and log.high_watermark >= 0
    ]
    return sum(max(0, log.high_watermark - log.log_start_offset) for log in logs) if logs else None
