"""Metrics of consumer groups, under kafka_exporter's names, for its dashboards.

Committed offsets are read from the control plane at scrape time, for up to `GROUPS_MAX` groups.
While it is unavailable, a scrape reports that groups are missing, and everything else.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metric, Sample

if TYPE_CHECKING:
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.end_offsets import EndOffsets
    from penstock.control import CommittedOffset, ControlPlane

logger = logging.getLogger(__name__)

GROUPS_MAX: Final = 1_000
"""Groups whose offsets one scrape reads."""

GROUPS_SECONDS: Final = 5.0
"""Time limit of a scrape for all groups; Prometheus' own default is ten seconds."""

_LABELS: Final = ("consumergroup", "topic", "partition")
GROUP_OFFSET: Final = Metric(
    name="kafka_consumergroup_current_offset",
    kind="gauge",
    doc="Committed offset of a group in a partition.",
    labels=_LABELS,
)
GROUP_LAG: Final = Metric(
    name="kafka_consumergroup_lag",
    kind="gauge",
    doc=(
        "Records between a group's committed offset and the high watermark; for partitions of other"
        " leaders, the one that they reported up to 15 seconds ago."
    ),
    labels=_LABELS,
)
GROUP_MEMBERS: Final = Metric(
    name="kafka_consumergroup_members",
    kind="gauge",
    doc="Members of a group.",
    labels=("consumergroup",),
)

GROUPS_MISSING: Final = Metric(
    name="penstock_group_metrics_missing",
    kind="gauge",
    doc="1 while groups and their offsets could not be read for this scrape, else 0.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    control: ControlPlane
    coordinator: GroupCoordinator
    end_offsets: EndOffsets


async def group_samples(parts: Parts) -> list[Sample]:
    """Return members, offsets and lag of this coordinator's groups; none if a group fails."""
    try:
        async with asyncio.timeout(GROUPS_SECONDS):
            return [Sample(GROUPS_MISSING, 0), *await _groups(parts)]
    except (PenstockError, TimeoutError) as error:
        logger.warning(
            "metrics of groups are missing in a scrape: %s", str(error) or "reading them timed out"
        )
        return [Sample(GROUPS_MISSING, 1)]


async def _groups(parts: Parts) -> list[Sample]:
    samples: list[Sample] = []
    committed: list[tuple[str, CommittedOffset]] = []
    coordinator = parts.coordinator
    for group in (await coordinator.list_groups())[:GROUPS_MAX]:
        name = group.group_id
        described = await coordinator.describe(name)
        members = len(described.members) if described is not None else 0
        samples.append(Sample(GROUP_MEMBERS, members, (name,)))
        committed += [(name, found) for found in await parts.control.committed_offsets(name, None)]
    ends = await parts.end_offsets.recent(
        [TopicPartition(offset.topic, offset.partition) for _, offset in committed]
    )
    for name, offset in committed:
        labels = (name, offset.topic, str(offset.partition))
        samples.append(Sample(GROUP_OFFSET, offset.offset, labels))
        end = ends.get(TopicPartition(offset.topic, offset.partition))
        if end is not None:
            samples.append(Sample(GROUP_LAG, max(0, end - offset.offset), labels))
    return samples
