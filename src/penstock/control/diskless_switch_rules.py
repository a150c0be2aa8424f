"""The rules by which a local topic becomes diskless: from its copied logs to rows and an image.

Pure functions that every form of the control plane shares, as in `diskless_rules.py`.

The broker that leads the partitions has stopped appends and copied everything below their ends.
That nobody else appends is what the compare-and-set is for: the incarnation of that broker must
own its id, and configs, partitions and leader epochs must be those that it saw. A transaction of
a process that has died since, come as late as it may, finds another incarnation.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from penstock.control.diskless_rules import DISKLESS_CONFIG, PartitionRow, layout_totals
from penstock.control.diskless_values import (
    ObjectState,
    PartitionKey,
    SwitchedObject,
    SwitchedPartition,
    TopicSwitch,
)
from penstock.control.errors import (
    InvalidCommit,
    ObjectLeaseLost,
    StaleTopic,
    SwitchRefused,
    UnknownTopic,
)
from penstock.control.limits import SWITCH_EXTENTS_MAX, SWITCH_PRODUCERS_MAX
from penstock.control.rules import check_incarnation, with_topic
from penstock.control.values import MetadataImage, SinkCommit, Topic


class SwitchPlan(NamedTuple):
    """What a switch writes; without `rows` it was made already."""

    image: MetadataImage
    topic: Topic
    rows: Mapping[PartitionKey, PartitionRow]

    @property
    def is_made(self) -> bool:
        return not self.rows


def objects_of(switch: TopicSwitch) -> list[SwitchedObject]:
    """All objects of a switch, by id."""
    return sorted([one for part in switch.partitions for one in part.objects])


def check_switch(switch: TopicSwitch) -> None:
    """Raise SwitchRefused for too much, InvalidCommit for what cannot be a log."""
    extents = sum([len(part.extents) for part in switch.partitions])
    if extents > SWITCH_EXTENTS_MAX:
        raise SwitchRefused(
            f"topic {switch.topic_id} has {extents} extents, the limit is {SWITCH_EXTENTS_MAX}"
        )
    producers = sum([len(part.producers) for part in switch.partitions])
    if producers > SWITCH_PRODUCERS_MAX:
        raise SwitchRefused(
            f"topic {switch.topic_id} remembers {producers} idempotent producers, the limit is"
            f" {SWITCH_PRODUCERS_MAX}"
        )
    for part in switch.partitions:
        flaw = _flaw(part)
        if flaw is not None:
            raise InvalidCommit(f"partition {part.partition} of topic {switch.topic_id}: {flaw}")


def _flaw(part: SwitchedPartition) -> str | None:
    start, end = part.log_start_offset, part.high_watermark
    extents = part.extents
    if not 0 <= start <= end:
        return f"the log start {start} is not within 0 and the high watermark {end}"
    if not extents:
        return None if start == end else f"no extents for the offsets [{start}, {end})"
    held = (extents[0].base_offset, extents[-1].next_offset)
    if held[0] > start or held[1] != end:
        return f"extents of the offsets {held} for a log of [{start}, {end})"
    if not all(one.next_offset == other.base_offset for one, other in pairwise(extents)):
        return "extents that do not adjoin"
    sizes = {one.object_id: one.size_bytes for one in part.objects}
    for one in extents:
        fits = one.byte_offset + one.size_bytes <= sizes.get(one.object_id, -1)
        totals = (one.size_bytes, one.next_offset - one.base_offset)
        if not fits or one.kind != "segment" or layout_totals(one.layout) != totals:
            return f"the extent at offset {one.base_offset} is not what its object has"
    return None


def plan_switch(
    image: MetadataImage,
    switch: TopicSwitch,
    *,
    states: Mapping[int, ObjectState],
    sinks: Iterable[SinkCommit],
) -> SwitchPlan:
    """What a switch changes; `states` are those of its objects that have a row.

    Raises as `DisklessPlane.switch_topic`.
    """
    check_incarnation(image, broker_id=switch.broker_id, incarnation=switch.incarnation)
    topic = image.topic_by_id(switch.topic_id)
    if topic is None:
        raise UnknownTopic(switch.topic_id)
    objects = objects_of(switch)
    if topic.configs.get(DISKLESS_CONFIG) == "true":
        if all([states.get(one.object_id) == "committed" for one in objects]):
            return SwitchPlan(image, topic, {})
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "false", "true")
    _check_topic(topic, switch)
    for one in objects:
        if states.get(one.object_id) != "pending":
            raise ObjectLeaseLost(one.object_id)
    for sink in sinks:
        if sink.state == "intent" and any([lane.topic_id == topic.topic_id for lane in sink.lanes]):
            raise SwitchRefused(
                f"topic {topic.name!r}: query {sink.query_id!r} has not finished its commit of"
                f" batch {sink.batch_id}; ask again when it is done"
            )
    changed = replace(
        topic,
        configs=dict(switch.configs),
        partitions=tuple(
            [replace(one, leader_epoch=one.leader_epoch + 1) for one in topic.partitions]
        ),
    )
    rows = {(topic.topic_id, part.partition): _row(part) for part in switch.partitions}
    return SwitchPlan(with_topic(image, changed), changed, rows)


def _check_topic(topic: Topic, switch: TopicSwitch) -> None:
    if dict(topic.configs) != dict(switch.expected):
        raise StaleTopic(topic.name, "the config", dict(switch.expected), dict(topic.configs))
    expected = [(part.partition, switch.broker_id, part.leader_epoch) for part in switch.partitions]
    found = [(one.index, one.leader, one.leader_epoch) for one in topic.partitions]
    if expected != found:
        raise StaleTopic(topic.name, "(partition, leader, epoch)", expected, found)


def _row(part: SwitchedPartition) -> PartitionRow:
    size_bytes = sum([extent.size_bytes for extent in part.extents])
    return PartitionRow(part.log_start_offset, part.high_watermark, size_bytes, 0, 0)


def references_of(switch: TopicSwitch) -> dict[int, int]:
    """How many extents refer to each object of a switch."""
    counts = {one.object_id: 0 for one in objects_of(switch)}
    for part in switch.partitions:
        for extent in part.extents:
            counts[extent.object_id] += 1
    return counts
