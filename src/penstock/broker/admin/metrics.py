"""Metrics of consumer groups, under the names that kafka_exporter uses, for existing dashboards.

Committed offsets are read from the control plane at scrape time, for up to `GROUPS_MAX` groups. If
it is unavailable, a scrape has `penstock_group_metrics_missing` = 1 and all metrics but those of
groups.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metrics, Sample, gauge, gauges

if TYPE_CHECKING:
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.end_offsets import EndOffsets
    from penstock.control import CommittedOffset, ControlPlane

logger = logging.getLogger(__name__)

GROUPS_MAX: Final = 1_000
"""Largest number of groups whose offsets one scrape reads."""

GROUPS_SECONDS: Final = 5.0
"""Time limit of a scrape to read all groups. Prometheus' limit for a scrape is ten seconds."""


class GroupMetrics(Metrics):
    missing = gauge(
        "penstock_group_metrics_missing",
        "1 while groups and their offsets could not be read for this scrape, else 0.",
    )
    members: dict[str, int] = gauges(
        "kafka_consumergroup_members", "Members of a group.", "consumergroup"
    )
    offsets: dict[tuple[str, str, str], int] = gauges(
        "kafka_consumergroup_current_offset",
        "Committed offset of a group in a partition.",
        "consumergroup",
        "topic",
        "partition",
    )
    lags: dict[tuple[str, str, str], int] = gauges(
        "kafka_consumergroup_lag",
        "Records between a group's committed offset and the high watermark. High watermarks of"
        " partitions that other brokers lead may be up to 15 seconds old.",
        "consumergroup",
        "topic",
        "partition",
    )


class Parts(Struct, frozen=True, kw_only=True):
    control: ControlPlane
    coordinator: GroupCoordinator
    end_offsets: EndOffsets


async def group_samples(parts: Parts) -> Iterable[Sample]:
    """Return members, offsets and lag of all groups of this coordinator.

    If one cannot be read, return only that group metrics are missing.
    """
    try:
        async with asyncio.timeout(GROUPS_SECONDS):
            metrics = await _groups(parts)
    except (PenstockError, TimeoutError) as error:
        logger.warning(
            "metrics of groups are missing in a scrape: %s", str(error) or "reading them timed out"
        )
        metrics = GroupMetrics()
        metrics.missing = 1
    return metrics.samples()


async def _groups(parts: Parts) -> GroupMetrics:
    metrics = GroupMetrics()
    committed: list[tuple[str, CommittedOffset]] = []
    coordinator = parts.coordinator
    for group in (await coordinator.list_groups())[:GROUPS_MAX]:
        name = group.group_id
        described = await coordinator.describe(name)
        metrics.members[name] = len(described.members) if described is not None else 0
        committed += [(name, found) for found in await parts.control.committed_offsets(name, None)]
    ends = await parts.end_offsets.recent(
        [TopicPartition(offset.topic, offset.partition) for _, offset in committed]
    )
    for name, offset in committed:
        labels = (name, offset.topic, str(offset.partition))
        metrics.offsets[labels] = offset.offset
        end = ends.get(TopicPartition(offset.topic, offset.partition))
        if end is not None:
            metrics.lags[labels] = max(0, end - offset.offset)
    return metrics
