"""Copies of the committed offsets of a source's groups; offsets are the same on both sides."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.client.groups import Committed
from penstock.client.protocol import TopicAndPartition

GROUP_TYPES: Final = ("", "classic", "consumer")
"""Types of groups that commit offsets; the empty type is that of brokers before Kafka 3.8."""


def copy_groups(source: Client, target: Client, topics: Collection[str]) -> dict[str, str]:
    """Copy committed offsets of topics to the target; return the reason for each failed group.

    An offset above the end of the target's log is copied as that end, so that a group never skips
    records that are not copied yet. Groups with members on the target are not changed.

    Raises:
        PenstockError: a cluster does not answer.
    """
    failed: dict[str, str] = {}
    ends = {
        (topic, partition): offset
        for topic in topics
        for partition, offset in target.list_offsets(topic).items()
    }
    for group in source.list_groups():
        if group.group_type.lower() not in GROUP_TYPES:
            continue
        try:
            _copy(source, target, group.group_id, ends)
        except PenstockError as error:
            failed[group.group_id] = str(error)
    return failed


def _copy(source: Client, target: Client, group: str, ends: dict[TopicAndPartition, int]) -> None:
    found = source.committed(group)
    wanted = {
        place: Committed(offset=min(item.offset, ends[place]), metadata=item.metadata)
        for place, item in found.items()
        if place in ends
    }
    if not wanted:
        return
    there = target.committed(group, wanted)
    by_metadata: dict[str, dict[TopicAndPartition, int]] = {}
    for place, item in wanted.items():
        known = there.get(place)
        if known is None or (known.offset, known.metadata) != (item.offset, item.metadata):
            by_metadata.setdefault(item.metadata, {})[place] = item.offset
    for metadata, offsets in by_metadata.items():
        target.commit_offsets(group, offsets, metadata=metadata)
