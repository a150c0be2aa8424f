"""DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

The lag of a partition is -1 if its end offset is unknown. Offsets can be changed only while a group
has no members.

Source: Kafka's JSON definitions of these APIs; KIP-932, KIP-1226 (lag).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.coordination.share import DescribedShareGroup
from penstock.broker.errors import (
    InvalidGroupId,
    UnknownTopicOrPartition,
    error_fields,
    error_number,
)
from penstock.broker.share.record import ShareState
from penstock.broker.share.sessions import Place
from penstock.broker.share.values import RecordState

if TYPE_CHECKING:
    from penstock.broker.coordination.groups import AnyGroup, GroupCoordinator
    from penstock.broker.end_offsets import EndOffsets
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.share.service import ShareService

Entry = dict[str, Any]


class NonEmptyGroup(InvalidError):
    code: ClassVar[str] = "non_empty_group"


class ShareGroupOffsets(Struct, frozen=True, kw_only=True):
    share: ShareService
    cluster: ClusterMetadata
    coordinator: GroupCoordinator
    end_offsets: EndOffsets

    async def _group(self, group_id: str, *, empty: bool) -> DescribedShareGroup:
        """Return the description of a share group; raises PenstockError.

        With `empty` the group must have no members.
        """
        self.coordinator.check_owner(group_id)
        return _checked(group_id, await self.coordinator.describe(group_id), empty=empty)

    # -- DescribeShareGroupOffsets --------------------------------------------------------------

    async def describe_share_group_offsets(self, context: RequestContext, request: Any) -> Entry:
        return {"groups": [await self._described(context, group) for group in request.groups]}

    async def _described(self, context: RequestContext, group: Any) -> Entry:
        rights = context.rights
        try:
            context.authorise("describe", "group", group.group_id)
            await self._group(group.group_id, empty=False)
            states = await self.share.offsets.of_group(group.group_id)
        except PenstockError as error:
            return {"group_id": group.group_id, "topics": (), **error_fields(error)}
        if group.topics is None:
            names = {topic.topic_id: name for name, topic in self.cluster.image.topics.items()}
            selected: dict[str, list[int]] = {}
            for topic_id, index in sorted(states):
                if topic_id in names and rights.allows("describe", "topic", names[topic_id]):
                    selected.setdefault(names[topic_id], []).append(index)
        else:
            selected = {topic.topic_name: list(topic.partitions) for topic in group.topics}
        ends = await self.end_offsets.of(
            TopicPartition(name, index)
            for name, indexes in selected.items()
            if rights.allows("describe", "topic", name)
            for index in indexes
        )
        return {
            "group_id": group.group_id,
            "topics": [
                self._topic(name, indexes, states, ends)
                if rights.allows("describe", "topic", name)
                else _failed_topic(name, indexes, context.refusal("describe", "topic", name))
                for name, indexes in selected.items()
            ],
        }

    def _topic(
        self,
        name: str,
        indexes: Iterable[int],
        states: Mapping[Place, ShareState],
        ends: Mapping[TopicPartition, int],
    ) -> Entry:
        topic = self.cluster.image.topics.get(name)
        if topic is None:
            return _failed_topic(
                name, indexes, UnknownTopicOrPartition(f"topic {name!r} does not exist")
            )
        partitions = []
        for index in indexes:
            state = states.get((topic.topic_id, index))
            end = ends.get(TopicPartition(name, index))
            partitions.append(
                {
                    "partition_index": index,
                    "start_offset": -1 if state is None else state.start,
                    "leader_epoch": 0 if state is None else max(state.leader_epoch, 0),
                    "lag": -1 if state is None or end is None else lag(state, end),
                }
            )
        return {"topic_name": name, "topic_id": topic.topic_id, "partitions": partitions}

    # -- AlterShareGroupOffsets -----------------------------------------------------------------

    async def alter_share_group_offsets(self, context: RequestContext, request: Any) -> Entry:
        group_id: str = request.group_id
        if not group_id.strip():
            raise InvalidGroupId("the group id must not be empty")
        self.coordinator.check_owner(group_id)
        _checked(group_id, await self.coordinator.ensure_share_group(group_id), empty=True)
        offsets: dict[Place, int] = {}
        responses = []
        for topic in request.topics:
            known = self.cluster.image.topics.get(topic.topic_name)
            partitions = []
            for partition in topic.partitions:
                answer: Entry = {"partition_index": partition.partition_index}
                count = 0 if known is None else len(known.partitions)
                if known is None or not 0 <= partition.partition_index < count:
                    answer["error_code"] = error_number(UnknownTopicOrPartition.code)
                    answer["error_message"] = (
                        f"topic {topic.topic_name!r} does not exist"
                        if known is None
                        else f"topic {topic.topic_name!r} has partitions 0 to {count - 1}, not"
                        f" {partition.partition_index}"
                    )
                elif partition.start_offset < 0:
                    answer["error_code"] = error_number("invalid_request")
                    answer["error_message"] = f"offset {partition.start_offset} is below 0"
                else:
                    offsets[known.topic_id, partition.partition_index] = partition.start_offset
                partitions.append(answer)
            responses.append(
                {
                    "topic_name": topic.topic_name,
                    "topic_id": None if known is None else known.topic_id,
                    "partitions": partitions,
                }
            )
        await self.share.offsets.set(group_id, offsets)
        return {"responses": responses}

    # -- DeleteShareGroupOffsets ----------------------------------------------------------------

    async def delete_share_group_offsets(self, context: RequestContext, request: Any) -> Entry:
        await self._group(request.group_id, empty=True)
        known: dict[str, UUID] = {
            topic.topic_name: self.cluster.image.topics[topic.topic_name].topic_id
            for topic in request.topics
            if topic.topic_name in self.cluster.image.topics
        }
        await self.share.offsets.delete(request.group_id, frozenset(known.values()))
        return {
            "responses": [
                {"topic_name": topic.topic_name, "topic_id": known[topic.topic_name]}
                if topic.topic_name in known
                else {
                    "topic_name": topic.topic_name,
                    "topic_id": None,
                    "error_code": error_number(UnknownTopicOrPartition.code),
                    "error_message": f"topic {topic.topic_name!r} does not exist",
                }
                for topic in request.topics
            ]
        }


def _checked(group_id: str, group: AnyGroup | None, *, empty: bool) -> DescribedShareGroup:
    if not isinstance(group, DescribedShareGroup):
        why = "not found" if group is None else "is not a share group"
        raise GroupIdNotFound(f"Group {group_id} {why}.")
    if empty and group.members:
        count = len(group.members)
        raise NonEmptyGroup(f"group {group_id!r} has {count} members; stop them first")
    return group


def _failed_topic(name: str, indexes: Iterable[int], error: PenstockError) -> Entry:
    partition = {"start_offset": -1, "leader_epoch": 0, "lag": -1, **error_fields(error)}
    return {
        "topic_name": name,
        "topic_id": None,
        "partitions": [{"partition_index": index, **partition} for index in indexes],
    }


def lag(state: ShareState, end: int) -> int:
    """Return the number of records below `end` that are neither acknowledged nor archived."""
    resolved = sum(
        run.last - run.first + 1 for run in state.runs if run.state == RecordState.RESOLVED
    )
    return max(0, end - state.start - resolved)
