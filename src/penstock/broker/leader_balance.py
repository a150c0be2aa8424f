"""Gradual return of leadership to the preferred replicas of partitions.

The first replica of a partition is its preferred leader. A leader hands a partition back to the
preferred leader under two conditions. The preferred leader has the whole log. And its broker leads
too few of the partitions that prefer it, which means that other brokers lead more than
`leader.imbalance.per.broker.percentage` percent of them.

Source: `ReplicationControlManager.maybeBalancePartitionLeaders` of Apache Kafka, and its settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from penstock.broker.diskless import is_diskless

if TYPE_CHECKING:
    from penstock.broker.settings import BrokerSettings
    from penstock.control import MetadataImage, Partition
    from penstock.replication.service import ReplicatedLog

BATCH_MAX: Final = 10
"""Largest number of partitions that a broker hands back at a time; each briefly has no leader."""
BATCH_SECONDS: Final = 1.0
"""Pause between two batches."""


class LeaderBalance:
    """Choice of the partitions that this broker hands back, at intervals."""

    def __init__(self, settings: BrokerSettings, now: float) -> None:
        self._enabled = settings.auto_leader_rebalance_enable
        self._interval = settings.leader_imbalance_check_interval_seconds
        self._percentage = settings.leader_imbalance_per_broker_percentage
        self._next = now + self._interval

    def due(
        self,
        now: float,
        image: MetadataImage | None,
        led: Iterable[tuple[ReplicatedLog, Partition | None]],
    ) -> Mapping[ReplicatedLog, int]:
        """Return the partitions to hand back at `now`, each with its preferred leader.

        Empty before the next check. `now` is monotonic seconds.
        """
        if not self._enabled or image is None or now < self._next:
            return {}
        self._next = now + self._interval
        ready = {log: row.replicas[0] for log, row in led if row and _can_go_back(log, row)}
        if not ready:
            return {}
        preferring = imbalanced(image, self._percentage)
        chosen = [log for log, preferred in ready.items() if preferred in preferring]
        if len(chosen) > BATCH_MAX:
            self._next = now + BATCH_SECONDS
        return {log: ready[log] for log in chosen[:BATCH_MAX]}


def _can_go_back(log: ReplicatedLog, row: Partition) -> bool:
    leading, preferred = log.leading, row.replicas[0]
    if leading is None or not leading.leads or leading.successor is not None or row.move:
        return False
    return row.leader != preferred and preferred in row.isr and leading.may_inherit(preferred)


def imbalanced(image: MetadataImage, percentage: int) -> frozenset[int]:
    """Return the brokers that lead too few of the partitions that prefer them.

    Other brokers lead more than `percentage` percent of these partitions.
    """
    preferred: Counter[int] = Counter()
    elsewhere: Counter[int] = Counter()
    for topic in image.topics.values():
        if is_diskless(topic):
            continue
        for row in topic.partitions:
            preferred[row.replicas[0]] += 1
            elsewhere[row.replicas[0]] += row.leader != row.replicas[0]
    return frozenset(
        broker_id
        for broker_id, count in elsewhere.items()
        if count * 100 > percentage * preferred[broker_id]
    )
