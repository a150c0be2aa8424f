"""The rules by which a local topic becomes diskless: from its copied logs to rows and an image.

Pure functions that every form of the control plane shares, as in `rules.py`.

The brokers that lead the partitions have stopped appends and copied everything below their ends.
That nobody else appends is what the compare-and-set is for: the incarnations of those brokers must
own their ids, and configs, partitions and leader epochs must be those that they saw. A transaction
of a process that has died since, come as late as it may, finds another incarnation.

Where there are several, their shares are stored under a request, which anyone may delete: a commit
finds the request of its own `switch_id`, or is refused for good. So a broker that has fenced its
partitions may lift the fence once the request is gone and the topic is local.

Source: KIP-405 (segments in an archive), KIP-101 (leader epochs).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from penstock.control.batch_index.rules import DISKLESS_CONFIG, PartitionRow, adjoin, layout_totals
from penstock.control.batch_index.switch_values import (
    SwitchedObject,
    SwitchedPartition,
    SwitchRequest,
    SwitchShare,
    TopicSwitch,
)
from penstock.control.batch_index.values import ObjectState, PartitionKey
from penstock.control.errors import (
    InvalidCommit,
    ObjectLeaseLost,
    StaleBroker,
    StaleSwitch,
    StaleTopic,
    SwitchRefused,
    UnknownTopic,
)
from penstock.control.limits import SWITCH_EXTENTS_MAX, SWITCH_PRODUCERS_MAX
from penstock.control.metadata.rules import check_incarnation, with_topic
from penstock.control.values import MetadataImage, SinkCommit, Topic


class SwitchPlan(NamedTuple):
    """What a switch writes; without `rows` it was made already."""

    image: MetadataImage
    topic: Topic
    rows: Mapping[PartitionKey, PartitionRow]
    partitions: tuple[SwitchedPartition, ...] = ()

    @property
    def is_made(self) -> bool:
        return not self.rows

    @property
    def objects(self) -> list[tuple[int, int, int]]:
        """Of all objects, by id: the id, bytes, and how many extents refer to it."""
        counts = {one.object_id: 0 for one in objects_of(self.partitions)}
        for part in self.partitions:
            for extent in part.extents:
                counts[extent.object_id] += 1
        return [(*one, counts[one.object_id]) for one in objects_of(self.partitions)]


def objects_of(partitions: Iterable[SwitchedPartition]) -> list[SwitchedObject]:
    """All objects of copied partitions, by id."""
    return sorted([one for part in partitions for one in part.objects])


def check_request(
    image: MetadataImage, request: SwitchRequest, found: SwitchRequest | None
) -> SwitchRequest | None:
    """The request of another broker that lives, which goes before this one.

    Raises as `DisklessPlane.open_switch`.
    """
    check_incarnation(image, broker_id=request.broker_id, incarnation=request.incarnation)
    topic = image.topic_by_id(request.topic_id)
    if topic is None:
        raise UnknownTopic(request.topic_id)
    if topic.configs.get(DISKLESS_CONFIG) == "true":
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "false", "true")
    if found is None or found.broker_id == request.broker_id:
        return None
    owner = image.broker(found.broker_id)
    return found if owner is not None and owner.incarnation == found.incarnation else None


def check_share(request: SwitchRequest, found: SwitchRequest | None, share: SwitchShare) -> None:
    """Raise StaleSwitch unless the request is open still; as `check_partitions` besides."""
    if found is None or found.switch_id != request.switch_id:
        raise StaleSwitch(request.topic_id)
    check_partitions(request.topic_id, share.partitions)


def check_partitions(topic_id: UUID, partitions: Sequence[SwitchedPartition]) -> None:
    """Raise SwitchRefused for too much, InvalidCommit for what cannot be a log."""
    extents = sum([len(part.extents) for part in partitions])
    if extents > SWITCH_EXTENTS_MAX:
        raise SwitchRefused(
            f"topic {topic_id} has {extents} extents, the limit is {SWITCH_EXTENTS_MAX}"
        )
    producers = sum([len(part.producers) for part in partitions])
    if producers > SWITCH_PRODUCERS_MAX:
        raise SwitchRefused(
            f"topic {topic_id} remembers {producers} idempotent producers, the limit is"
            f" {SWITCH_PRODUCERS_MAX}"
        )
    for part in partitions:
        flaw = _flaw(part)
        if flaw is not None:
            raise InvalidCommit(f"partition {part.partition} of topic {topic_id}: {flaw}")


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
    if not adjoin(extents):
        return "extents that do not adjoin"
    sizes = {one.object_id: one.size_bytes for one in part.objects}
    for one in extents:
        fits = one.byte_offset + one.size_bytes <= sizes.get(one.object_id, -1)
        totals = (one.size_bytes, one.next_offset - one.base_offset)
        if not fits or one.kind != "segment" or layout_totals(one.layout) != totals:
            return f"the extent at offset {one.base_offset} is not what its object has"
    return None


def all_shares(
    switch: TopicSwitch, request: SwitchRequest | None, stored: Iterable[SwitchShare]
) -> tuple[SwitchShare, ...]:
    """The coordinator's share and those that are stored under its request."""
    own = SwitchShare(
        broker_id=switch.broker_id,
        incarnation=switch.incarnation,
        state="fenced",
        partitions=switch.partitions,
    )
    if switch.switch_id is None:
        return (own,)
    if request is None or request.switch_id != switch.switch_id:
        return ()
    others = [one for one in stored if one.broker_id != own.broker_id and one.state == "fenced"]
    return (own, *others)


def plan_switch(
    image: MetadataImage,
    switch: TopicSwitch,
    shares: Sequence[SwitchShare],
    *,
    states: Mapping[int, ObjectState],
    sinks: Iterable[SinkCommit],
) -> SwitchPlan:
    """What a switch changes; `states` are those of its shares' objects that have a row.

    Raises as `DisklessPlane.switch_topic`.
    """
    check_incarnation(image, broker_id=switch.broker_id, incarnation=switch.incarnation)
    topic = image.topic_by_id(switch.topic_id)
    if topic is None:
        raise UnknownTopic(switch.topic_id)
    if topic.configs.get(DISKLESS_CONFIG) == "true":
        own = objects_of(switch.partitions)
        if all([states.get(one.object_id) == "committed" for one in own]):
            return SwitchPlan(image, topic, {})
        raise StaleTopic(topic.name, DISKLESS_CONFIG, "false", "true")
    if not shares:
        raise StaleSwitch(switch.topic_id)
    _check_shares(image, topic, switch, shares)
    partitions = tuple(
        sorted([one for share in shares for one in share.partitions], key=_partition)
    )
    check_partitions(topic.topic_id, partitions)
    for one in objects_of(partitions):
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
    rows = {(topic.topic_id, part.partition): _row(part) for part in partitions}
    return SwitchPlan(with_topic(image, changed), changed, rows, partitions)


def _partition(part: SwitchedPartition) -> int:
    return part.partition


def _check_shares(
    image: MetadataImage, topic: Topic, switch: TopicSwitch, shares: Sequence[SwitchShare]
) -> None:
    if dict(topic.configs) != dict(switch.expected):
        raise StaleTopic(topic.name, "the config", dict(switch.expected), dict(topic.configs))
    expected = sorted(
        [
            (part.partition, share.broker_id, part.leader_epoch)
            for share in shares
            for part in share.partitions
        ]
    )
    found = [(one.index, one.leader, one.leader_epoch) for one in topic.partitions]
    if expected != found:
        raise StaleTopic(topic.name, "(partition, leader, epoch)", expected, found)
    for share in shares:
        try:
            check_incarnation(image, broker_id=share.broker_id, incarnation=share.incarnation)
        except StaleBroker as stale:
            raise SwitchRefused(
                f"topic {topic.name!r}: {stale} since it stopped its producers; ask again"
            ) from stale


def _row(part: SwitchedPartition) -> PartitionRow:
    size_bytes = sum([extent.size_bytes for extent in part.extents])
    return PartitionRow(0, part.log_start_offset, part.high_watermark, size_bytes)
