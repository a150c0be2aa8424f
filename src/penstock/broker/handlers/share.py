"""ShareFetch and ShareAcknowledge; DescribeShareGroupOffsets, AlterShareGroupOffsets, and deletion.

Source: `ShareFetchRequest.json`, `ShareAcknowledgeRequest.json`; KIP-932, KIP-1206, KIP-1222.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.base.ids import TopicPartition
from penstock.broker.fetch.operation import FETCH_WAIT_SECONDS_MAX, FetchHub
from penstock.broker.groups.coordinator import AnyGroup, GroupCoordinator, GroupIdNotFound
from penstock.broker.groups.share import DescribedShareGroup
from penstock.broker.net.connection import Buffer, RequestContext
from penstock.broker.net.errors import (
    InvalidGroupId,
    UnknownTopicOrPartition,
    error_fields,
    error_number,
)
from penstock.broker.net.listeners import endpoints_of
from penstock.broker.share.acknowledging import Answers
from penstock.broker.share.fetching import ShareFetching
from penstock.broker.share.sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    InvalidShareRequest,
    InvalidShareSessionEpoch,
    Place,
    ShareSession,
)
from penstock.broker.share.stored import ShareState
from penstock.broker.share.values import RecordState
from penstock.wire.kafka.fetch import encode_response
from penstock.wire.kafka.framing import Endpoint, milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.share.service import ShareService
    from penstock.broker.transactions.link import EndOffsets


class ShareRecords(Struct, frozen=True, kw_only=True):
    share: ShareService
    fetch_hub: FetchHub
    partitions: PartitionRegistry
    cluster: ClusterMetadata
    clock: Clock
    quotas: Quotas
    settings: BrokerSettings
    stopping: asyncio.Event

    async def share_fetch(self, context: RequestContext, request: Any) -> list[Buffer]:
        """Apply acknowledgements, then acquire and return records of the session's partitions."""
        partitions, acknowledgements = _named(request)
        if request.share_session_epoch == INITIAL_EPOCH and acknowledgements:
            raise InvalidShareRequest(
                "the first request of a share session must not contain acknowledgements"
            )
        if getattr(request, "is_renew_ack", False) and (request.max_records or request.max_bytes):
            raise InvalidShareRequest(
                "a request that renews locks must not fetch: set max_records and max_bytes to 0"
            )
        session = self._session(context, request)
        last = request.share_session_epoch == FINAL_EPOCH
        if not last:
            forgotten = [
                (topic.topic_id, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ]
            session.update(partitions, forgotten)
        answers = await self._acknowledge(context, session, acknowledgements)
        throttled = self.quotas.active and self.quotas.before_fetch(context)
        if not last and not throttled:
            fetching = ShareFetching(
                answers,
                session,
                self.share.settings_of(request.group_id),
                request,
                shares=self.share.shares,
                hub=self.fetch_hub,
                bytes_max=self._bytes_max(context),
            )
            seconds = min(milliseconds(request.max_wait) / 1000, FETCH_WAIT_SECONDS_MAX)
            await fetching.run(0 if self.stopping.is_set() else seconds)
        await answers.acknowledged()
        if last:
            self.share.sessions.end(session, said=True)
        return encode_response(
            list(answers.by_topic().items()),
            lock_timeout_ms=self._lock_timeout_ms(request),
            endpoints=self._leaders(context, answers),
        )

    async def share_acknowledge(self, context: RequestContext, request: Any) -> dict[str, Any]:
        """Apply acknowledgements; respond when they are stored."""
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch(
                "ShareAcknowledge cannot open a share session: send ShareFetch first"
            )
        _, acknowledgements = _named(request)
        session = self._session(context, request)
        answers = await self._acknowledge(context, session, acknowledgements)
        await answers.acknowledged()
        if request.share_session_epoch == FINAL_EPOCH:
            self.share.sessions.end(session, said=True)
        return {
            "acquisition_lock_timeout": self._lock_timeout_ms(request),
            "responses": [
                {
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": partition.index,
                            "error_code": partition.acknowledge_error,
                            "error_message": partition.acknowledge_message,
                            "current_leader": {
                                "leader_id": partition.leader[0],
                                "leader_epoch": partition.leader[1],
                            },
                        }
                        for partition in partitions
                    ],
                }
                for topic_id, partitions in answers.by_topic().items()
            ],
            "node_endpoints": [
                {"node_id": node_id, "host": host, "port": port, "rack": rack}
                for node_id, host, port, rack in self._leaders(context, answers)
            ],
        }

    def _session(self, context: RequestContext, request: Any) -> ShareSession:
        """Open or continue the share session of a request; raises PenstockError."""
        if not request.group_id or not request.member_id:
            raise InvalidGroupId("group id and member id must not be empty")
        key, epoch = (request.group_id, request.member_id), request.share_session_epoch
        sessions, now = self.share.sessions, context.started
        connection, owner = context.connection, context.connection.principal
        if epoch == INITIAL_EPOCH:
            return sessions.begin(key, connection, owner=owner, now=now)
        return sessions.next_request(key, epoch, connection, owner=owner, now=now)

    async def _acknowledge(
        self, context: RequestContext, session: ShareSession, acknowledgements: Acknowledgements
    ) -> Answers:
        group_id, member = session.key
        answers = Answers(
            group_id,
            member,
            shares=self.share.shares,
            partitions=self.partitions,
            renews=self.share.settings_of(group_id).renews,
            context=context,
        )
        await answers.open([place for place, _ in acknowledgements])
        for place, batches in acknowledgements:
            answers.acknowledge(place, batches)
        return answers

    def _bytes_max(self, context: RequestContext) -> int:
        quota = self.quotas.fetch_bytes_max(context) if self.quotas.active else None
        most = self.settings.fetch_max_bytes
        return most if quota is None else min(most, quota)

    def _lock_timeout_ms(self, request: Any) -> int:
        return self.share.settings_of(request.group_id).limits.lock_duration_ms

    def _leaders(self, context: RequestContext, answers: Answers) -> list[Endpoint]:
        named = [answer.leader[0] for answer in answers.found.values() if answer.leader[0] >= 0]
        return endpoints_of(self.cluster.image, named, context.connection.listener)


Acknowledgements = list[tuple[Place, Sequence[Any]]]
"""Acknowledgement batches of a request by partition."""


def _named(request: Any) -> tuple[list[Place], Acknowledgements]:
    partitions, acknowledgements = [], []
    for topic in request.topics:
        for partition in topic.partitions:
            partition_key = (topic.topic_id, partition.partition_index)
            partitions.append(partition_key)
            if partition.acknowledgement_batches:
                acknowledgements.append((partition_key, partition.acknowledgement_batches))
    return partitions, acknowledgements


# DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.
#
# The lag of a partition is -1 if its end offset is unknown. Offsets can be changed only while a
# group has no members.
#
# Source: Kafka's JSON definitions of these APIs; KIP-932, KIP-1226 (lag).


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
