"""Metrics of consumer groups, under kafka_exporter's names, so that its dashboards work.

Committed offsets live in the control plane, so they are read when a scrape asks for them, group
by group, `GROUPS_MAX` groups at most; nothing is counted on the commit path. While the control
plane is away, a scrape has everything else, and says that these are missing.
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
"""How long a scrape waits for them, in all; Prometheus gives it ten by default."""

_LABELS: Final = ("consumergroup", "topic", "partition")
GROUP_OFFSET: Final = Metric(
    name="kafka_consumergroup_current_offset",
    kind="gauge",
    doc="Offset that a group has committed in a partition.",
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
    """What these metrics are made of."""

    control: ControlPlane
    coordinator: GroupCoordinator
    end_offsets: EndOffsets


async def group_samples(parts: Parts) -> list[Sample]:
    """Members, offsets and lag of every group of this coordinator; none where one is missing."""
    try:
        async with asyncio.timeout(GROUPS_SECONDS):
            return [Sample(GROUPS_MISSING, 0), *await _groups(parts)]
    except (PenstockError, TimeoutError) as error:
        logger.warning("a scrape goes without groups: %s", str(error) or "they took too long")
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
