"""State of partitions as the console's pages show it, from the metadata image in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.broker.assembly import Assembly
    from penstock.broker.partitions.registry import ServedTopic
    from penstock.control import Partition

REPLICATED = "replicated"
DISKLESS = "diskless"
LOCAL = "local"


class Counts(Struct, frozen=True, kw_only=True):
    """Numbers of partitions: all, those that this broker leads, and those with a problem."""

    total: int
    led: int
    leaderless: int
    behind: int


def kind_of(served: ServedTopic) -> str:
    """Return the storage of a topic: `local`, `replicated` or `diskless`."""
    if served.diskless:
        return DISKLESS
    rows = served.topic.partitions
    return REPLICATED if rows and len(rows[0].replicas) > 1 else LOCAL


def _behind(row: Partition, live: Collection[int]) -> list[int]:
    return [replica for replica in row.replicas if replica not in row.isr or replica not in live]


def trouble(row: Partition, live: Collection[int]) -> str:
    """Return a partition's problem as words; empty without one."""
    if row.leader not in live:
        return "no leader"
    behind = _behind(row, live)
    return f"replica {', '.join(map(str, behind))} out of sync" if behind else ""


def troubles(served: ServedTopic, live: Collection[int]) -> int:
    """Return the number of a topic's partitions with a problem."""
    if served.diskless:
        return 0
    return sum(1 for row in served.topic.partitions if trouble(row, live))


def counts(broker: Assembly) -> Counts:
    """Count the partitions of the cluster."""
    live, node_id = broker.cluster.live, broker.node_id
    total = led = leaderless = behind = 0
    for served in broker.partitions.topics.values():
        rows: Sequence[Partition] = served.topic.partitions
        total += len(rows)
        if served.diskless:
            continue
        for row in rows:
            led += row.leader == node_id
            if row.leader not in live:
                leaderless += 1
            elif _behind(row, live):
                behind += 1
    return Counts(total=total, led=led, leaderless=leaderless, behind=behind)


def size_here(served: ServedTopic) -> int | None:
    """Return the bytes of a topic's logs that this broker has; None if it has none."""
    logs = [log for log in (*served.partitions, *served.followed) if log is not None]
    return sum(log.size_bytes for log in logs) if logs else None


def records_here(served: ServedTopic) -> int | None:
    """Return the offset span of a topic's partitions that this broker serves; None if none."""
    logs = [log for log in served.partitions if log is not None and log.high_watermark >= 0]
    return sum(max(0, log.high_watermark - log.log_start_offset) for log in logs) if logs else None
