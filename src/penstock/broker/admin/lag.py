"""Lag of groups as JSON and as metrics, and cluster metrics under the names of kafka_exporter.

Source of the names: danielqsj/kafka_exporter. It reports a whole cluster; here each broker reports
the partitions that it leads and the groups that it coordinates. All brokers together report what
the exporter does, each series once except `kafka_brokers`. Partitions without a committed offset
have no series; the exporter reports -1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.base.metrics import Metrics, Sample, gauges
from penstock.broker.lag.rules import Evaluation, State, Summary
from penstock.broker.lag.service import EvaluatedGroup, EvaluatedPartition
from penstock.broker.requests.metrics import LogMetrics

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry

GROUPS_MAX: Final = 1_000
"""Largest number of groups in one response or scrape, those in the worst states first."""


def visible(group: EvaluatedGroup, sees: Callable[[str], bool]) -> EvaluatedGroup:
    """Return a group without the topics that a caller may not describe."""
    partitions = [found for found in group.partitions if sees(found.where.topic)]
    return group if len(partitions) == len(group.partitions) else group.with_partitions(partitions)


def group_row(group: EvaluatedGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "partition_count": len(group.partitions),
        **_facts(group.summary),
        "abandoned": group.abandoned,
        "explanation": group.explanation,
    }


def partition_row(found: EvaluatedPartition) -> dict[str, Any]:
    return {
        "topic": found.where.topic,
        "partition": found.where.partition,
        **_facts(found.evaluation),
        "commits_seen": len(found.window),
        "explanation": found.explanation,
    }


def _facts(found: Evaluation | Summary) -> dict[str, Any]:
    return {
        "state": found.state.name,
        "lag_records": found.lag,
        "seconds_behind": found.seconds_behind,
        "consumed_per_second": found.consumed_per_second,
        "produced_per_second": found.produced_per_second,
        "forecast": found.forecast.outlook,
        "forecast_seconds": found.forecast.seconds,
    }


def worst_first(groups: Iterable[EvaluatedGroup]) -> list[EvaluatedGroup]:
    return sorted(
        groups, key=lambda group: (-group.summary.state, -group.summary.lag, group.group_id)
    )


def group_list(node_id: int, groups: Sequence[EvaluatedGroup], state: str | None) -> dict[str, Any]:
    """Return the groups of a broker, optionally those in one state, and their number by state."""
    counts = Counter(group.summary.state for group in groups)
    chosen = [group for group in groups if state in (None, group.summary.state.name)]
    return {
        "node_id": node_id,
        "group_count": len(groups),
        "states": {known.name: counts[known] for known in State if known is not State.NOTFOUND},
        "groups": [group_row(group) for group in worst_first(chosen)[:GROUPS_MAX]],
    }


class GroupLagMetrics(Metrics, prefix="penstock_group_"):
    states: dict[str, int] = gauges(
        "state",
        "State of a group: 1 OK, 2 WARN, 3 ERR, 4 STOP, 5 STALL, 6 REWIND. Of at most 1,000 groups"
        " of a broker, those in the worst states first.",
        "consumergroup",
    )
    seconds: dict[str, float] = gauges(
        "lag_seconds",
        "Age of the first record that a group has not read, in the partition with the most lag."
        " Groups as for penstock_group_state; missing while the age is unknown.",
        "consumergroup",
    )
    counts: dict[str, int] = gauges(
        "states", "Groups of this broker in each state of lag.", "state"
    )


def lag_samples(groups: Sequence[EvaluatedGroup]) -> Iterator[Sample]:
    metrics = GroupLagMetrics()
    metrics.counts = {state.name: 0 for state in State if state is not State.NOTFOUND}
    for group in groups:
        metrics.counts[group.summary.state.name] += 1
    for group in worst_first(groups)[:GROUPS_MAX]:
        metrics.states[group.group_id] = group.summary.state
        if group.summary.seconds_behind is not None:
            metrics.seconds[group.group_id] = group.summary.seconds_behind
    return metrics.samples()


ONLY_THERE: Final = " Only on `/metrics/kafka_exporter`."
_PARTITION: Final = ("topic", "partition")
GroupValues = Mapping[tuple[str, str, str], int]
"""Values by group, topic and partition."""


class ExporterMetrics(Metrics, prefix="kafka_"):
    """Metrics of kafka_exporter that are not on `/metrics`."""

    leaders: dict[tuple[str, str], int] = gauges(
        "topic_partition_leader",
        "Id of the broker that leads a partition." + ONLY_THERE,
        *_PARTITION,
    )
    replicas: dict[tuple[str, str], int] = gauges(
        "topic_partition_replicas", "Replicas of a partition." + ONLY_THERE, *_PARTITION
    )
    in_sync: dict[tuple[str, str], int] = gauges(
        "topic_partition_in_sync_replica",
        "In-sync replicas of a partition." + ONLY_THERE,
        *_PARTITION,
    )
    preferred: dict[tuple[str, str], int] = gauges(
        "topic_partition_leader_is_preferred",
        "1 if the first replica leads a partition, else 0." + ONLY_THERE,
        *_PARTITION,
    )
    under_replicated: dict[tuple[str, str], int] = gauges(
        "topic_partition_under_replicated_partition",
        "1 if a partition has replicas that are not in sync, else 0." + ONLY_THERE,
        *_PARTITION,
    )
    offset_sums: dict[tuple[str, str], int] = gauges(
        "consumergroup_current_offset_sum",
        "Sum of a group's committed offsets in a topic." + ONLY_THERE,
        "consumergroup",
        "topic",
    )
    lag_sums: dict[tuple[str, str], int] = gauges(
        "consumergroup_lag_sum", "Lag of a group in a topic." + ONLY_THERE, "consumergroup", "topic"
    )


def exporter_samples(
    node_id: int,
    cluster: ClusterMetadata,
    partitions: PartitionRegistry,
    offsets: GroupValues,
    lags: GroupValues,
) -> Iterator[Sample]:
    """Yield the metrics of the partitions that this broker leads, and sums of its groups.

    `offsets` and `lags` are those of groups in partitions.
    """
    metrics, logs = ExporterMetrics(), LogMetrics()
    logs.brokers = len(cluster.image.brokers)
    for name, topic in cluster.image.topics.items():
        for row in cluster.shown(topic):
            if row.leader != node_id:
                continue
            labels = name, str(row.index)
            if row.index == 0:
                logs.topic_partitions[name] = len(topic.partitions)
            metrics.leaders[labels] = row.leader
            metrics.replicas[labels] = len(row.replicas)
            metrics.in_sync[labels] = len(row.isr)
            metrics.preferred[labels] = int(row.replicas[:1] == (row.leader,))
            metrics.under_replicated[labels] = int(len(row.isr) < len(row.replicas))
            log = partitions.topics[name].partitions[row.index]
            if log is not None and log.high_watermark >= 0:
                logs.current_offset[labels] = log.high_watermark
                logs.oldest_offset[labels] = log.log_start_offset
    metrics.offset_sums, metrics.lag_sums = _by_topic(offsets), _by_topic(lags)
    yield from logs.samples()
    yield from metrics.samples()


def _by_topic(values: GroupValues) -> dict[tuple[str, str], int]:
    sums = Counter[tuple[str, str]]()
    for (group, topic, _), value in values.items():
        sums[group, topic] += value
    return dict(sums)
