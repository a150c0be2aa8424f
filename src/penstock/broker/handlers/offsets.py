"""OffsetCommit, OffsetFetch, OffsetDelete: committed offsets of consumer groups.

The group coordinator validates members. Offsets go directly to the control plane, which batches the
commits of all connections and responds when they are durable; nothing is cached here.

Errors of a whole group are on every partition in version 1 of OffsetFetch, at the top from 2, on
the group from 8.

Source: Kafka's `OffsetMetadataManager`; KIP-211 (retention), KIP-320 (leader epochs), KIP-447
(stable offsets), KIP-496 (deletion), KIP-709 (many groups), KIP-848 (topic ids).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol
from uuid import UUID

from penstock.base.errors import InvalidError, PenstockError
from penstock.broker.connection import RequestContext
from penstock.broker.coordination.core import Refused
from penstock.broker.coordination.group_events import CommitCheck, FetchCheck
from penstock.broker.coordination.groups import GroupIdNotFound
from penstock.broker.errors import UnknownTopicId, UnknownTopicOrPartition, error_number, error_of
from penstock.control import CommittedOffset, Topic
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.coordination.groups import GroupCoordinator
    from penstock.broker.partition_registry import PartitionRegistry
    from penstock.broker.settings import BrokerSettings
    from penstock.control import ControlPlane

NO_OFFSET: Final = -1
TOP_LEVEL_ERROR_VERSION: Final = 2
GROUPS_VERSION: Final = 8
TOPIC_IDS_VERSION: Final = 10
GROUP_NOT_FOUND_VERSION: Final = 9
MEMBER_EPOCHS_VERSION: Final = 9
"""First version of OffsetCommit and OffsetFetch with member epochs."""
"""First version of OffsetCommit that distinguishes an unknown group from an old generation."""
ILLEGAL_GENERATION: Final = "illegal_generation"

UNSTABLE: Final = "unstable_offset_commit"
"""An open transaction may change the offset; clients that require stable offsets retry."""

Entry = dict[str, Any]
PartitionKey = tuple[str, int]
Committed = dict[PartitionKey, CommittedOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    settings: BrokerSettings
    control: ControlPlane
    clock: Clock
    partitions: PartitionRegistry
    coordinator: GroupCoordinator


class Topics(Protocol):
    """Parts that validate offsets."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def partitions(self) -> PartitionRegistry: ...


class OffsetMetadataTooLarge(InvalidError):
    """The metadata text exceeds `offset.metadata.max.bytes`."""

    code: ClassVar[str] = "offset_metadata_too_large"


class SubscribedToTopic(InvalidError):
    """A member of the group subscribes to the topic of the offsets to delete."""

    code: ClassVar[str] = "group_subscribed_to_topic"


def topic_of(parts: Topics, asked: Any) -> Topic:
    """Return the topic of an element; raises UnknownTopicId, UnknownTopicOrPartition."""
    if hasattr(asked, "topic_id"):
        by_id = parts.partitions.topics_by_id.get(asked.topic_id.bytes) if asked.topic_id else None
        if by_id is None:
            raise UnknownTopicId(f"topic id {asked.topic_id} does not exist")
        return by_id.topic
    by_name = parts.partitions.topics.get(asked.name)
    if by_name is None:
        raise UnknownTopicOrPartition(f"topic {asked.name!r} does not exist")
    return by_name.topic


def _identity(asked: Any) -> Entry:
    return {"name": getattr(asked, "name", None), "topic_id": getattr(asked, "topic_id", None)}


# -- OffsetCommit ---------------------------------------------------------------------------


async def offset_commit(parts: Parts, context: RequestContext, request: Any) -> Entry:
    coordinator = parts.coordinator
    refused = await coordinator.check_commit(
        CommitCheck(
            group_id=request.group_id,
            member_id=request.member_id,
            group_instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id_or_member_epoch,
            knows_epochs=context.version >= MEMBER_EPOCHS_VERSION,
        )
    )
    if refused is not None:
        code = refused.error
        if code == ILLEGAL_GENERATION and context.version >= GROUP_NOT_FOUND_VERSION:
            known = await coordinator.describe(request.group_id)
            code = code if known is not None else GroupIdNotFound.code
        return _refused(request, error_number(code))
    now_ms = parts.clock.now_ms()
    retention_ms = milliseconds(getattr(request, "retention_time", NO_OFFSET))
    expire_ms = None if retention_ms < 0 else now_ms + retention_ms
    accepted: list[CommittedOffset] = []
    topics = [
        {
            **_identity(asked),
            "partitions": accept(parts, asked, accepted, now_ms=now_ms, expire_ms=expire_ms),
        }
        for asked in request.topics
    ]
    if accepted:
        await coordinator.commit(request.group_id, accepted)
    return {"topics": topics}


def _refused(request: Any, number: int) -> Entry:
    """Return the same error on every partition: OffsetCommit has no top-level error."""
    return {
        "topics": [
            {
                **_identity(asked),
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": number}
                    for partition in asked.partitions
                ],
            }
            for asked in request.topics
        ]
    }


def accept(
    parts: Topics,
    asked: Any,
    accepted: list[CommittedOffset],
    *,
    now_ms: int,
    expire_ms: int | None = None,
) -> list[Entry]:
    """Check the partitions of one topic, and append valid offsets to `accepted`."""
    try:
        topic = topic_of(parts, asked)
    except PenstockError as error:
        number, _ = error_of(error)
        return [
            {"partition_index": partition.partition_index, "error_code": number}
            for partition in asked.partitions
        ]
    answers: list[Entry] = []
    for partition in asked.partitions:
        index = partition.partition_index
        metadata = partition.committed_metadata or ""
        code = _refusal(parts, topic, index, metadata)
        answers.append({"partition_index": index, "error_code": error_number(code) if code else 0})
        if not code:
            accepted.append(
                CommittedOffset(
                    topic_id=topic.topic_id,
                    topic=topic.name,
                    partition=index,
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", NO_OFFSET),
                    metadata=metadata,
                    commit_timestamp_ms=now_ms,
                    expire_timestamp_ms=expire_ms,
                )
            )
    return answers


def _refusal(parts: Topics, topic: Topic, index: int, metadata: str) -> str:
    if not 0 <= index < len(topic.partitions):
        return UnknownTopicOrPartition.code
    limit = parts.settings.offset_metadata_max_bytes
    if len(metadata) > limit or len(metadata.encode()) > limit:
        return OffsetMetadataTooLarge.code
    return ""


# -- OffsetFetch ----------------------------------------------------------------------------


async def offset_fetch(parts: Parts, context: RequestContext, request: Any) -> Entry:
    if context.version >= GROUPS_VERSION:
        stable = request.require_stable
        return {"groups": [await _group(parts, context, group, stable) for group in request.groups]}
    answer = await _group(parts, context, request, getattr(request, "require_stable", False))
    number = answer["error_code"]
    if number and context.version < TOP_LEVEL_ERROR_VERSION:
        answer["topics"] = [_failed_topic(topic, number) for topic in request.topics]
    return answer


async def _group(parts: Parts, context: RequestContext, asked: Any, require_stable: bool) -> Entry:
    group_id, topics, rights = asked.group_id, asked.topics, context.rights
    try:
        if not rights.allows("describe", "group", group_id):
            raise context.refusal("describe", "group", group_id)
        parts.coordinator.check_owner(group_id)
        refused = await _refuse_member(parts, context, asked)
        if refused is not None:
            number = error_number(refused.error)
            return {"group_id": group_id, "topics": (), "error_code": number}
        keys = None if topics is None else _keys(parts, topics)
        by_key, unstable = await _committed(parts, group_id, keys, require_stable)
    except PenstockError as error:
        number, _ = error_of(error)
        return {"group_id": group_id, "topics": (), "error_code": number}
    if topics is None:
        by_key = {
            key: offset
            for key, offset in by_key.items()
            if rights.allows("describe", "topic", key[0])
        }
        answers = _all_topics(parts, by_key, unstable, by_id=context.version >= TOPIC_IDS_VERSION)
    else:
        answers = [_topic(parts, context, topic, by_key, unstable) for topic in topics]
    return {"group_id": group_id, "topics": answers, "error_code": 0}


async def _refuse_member(parts: Parts, context: RequestContext, asked: Any) -> Refused | None:
    if context.version < MEMBER_EPOCHS_VERSION:
        return None
    if asked.member_id is None and asked.member_epoch < 0:
        return None
    return await parts.coordinator.check_fetch(
        FetchCheck(group_id=asked.group_id, member_id=asked.member_id, epoch=asked.member_epoch)
    )


async def _committed(
    parts: Parts, group_id: str, keys: Sequence[PartitionKey] | None, require_stable: bool
) -> tuple[Committed, Collection[PartitionKey]]:
    """Return offsets, and the partitions whose offsets are unstable, if requested."""
    if require_stable:
        stable = await parts.control.stable_offsets(group_id, keys)
        found, unstable = stable.committed, stable.unstable
    else:
        found, unstable = await parts.control.committed_offsets(group_id, keys), ()
    return {(offset.topic, offset.partition): offset for offset in found}, unstable


def _keys(parts: Parts, topics: Iterable[Any]) -> list[PartitionKey]:
    keys: list[PartitionKey] = []
    for asked in topics:
        name = _name(parts, asked)
        if name is not None:
            keys += [(name, index) for index in asked.partition_indexes]
    return keys


def _name(parts: Parts, asked: Any) -> str | None:
    if not hasattr(asked, "topic_id"):
        return str(asked.name)
    found = parts.partitions.topics_by_id.get(asked.topic_id.bytes) if asked.topic_id else None
    return None if found is None else found.topic.name


def _topic(
    parts: Parts,
    context: RequestContext,
    asked: Any,
    by_key: Committed,
    unstable: Collection[PartitionKey],
) -> Entry:
    name = _name(parts, asked)
    if name is None:
        return _failed_topic(asked, error_number(UnknownTopicId.code))
    if not context.rights.allows("describe", "topic", name):
        return _failed_topic(asked, error_of(context.refusal("describe", "topic", name))[0])
    return {
        **_identity(asked),
        "partitions": [
            _position(index, by_key.get((name, index)), unstable=(name, index) in unstable)
            for index in asked.partition_indexes
        ],
    }


def _all_topics(
    parts: Parts, by_key: Committed, unstable: Collection[PartitionKey], *, by_id: bool
) -> list[Entry]:
    topics: dict[str, list[Entry]] = {}
    ids: dict[str, UUID] = {}
    for (name, index), offset in sorted(by_key.items()):
        if by_id and name not in parts.partitions.topics:
            continue
        ids[name] = offset.topic_id
        position = _position(index, offset, unstable=(name, index) in unstable)
        topics.setdefault(name, []).append(position)
    return [
        {"name": name, "topic_id": ids[name], "partitions": partitions}
        for name, partitions in topics.items()
    ]


def _position(index: int, offset: CommittedOffset | None, *, unstable: bool) -> Entry:
    if offset is None or unstable:
        return {
            "partition_index": index,
            "committed_offset": NO_OFFSET,
            "metadata": "",
            "error_code": error_number(UNSTABLE) if unstable else 0,
        }
    return {
        "partition_index": index,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
    }


def _failed_topic(asked: Any, number: int) -> Entry:
    return {
        **_identity(asked),
        "partitions": [
            {
                "partition_index": index,
                "committed_offset": NO_OFFSET,
                "metadata": "",
                "error_code": number,
            }
            for index in asked.partition_indexes
        ],
    }


# -- OffsetDelete ---------------------------------------------------------------------------


async def offset_delete(parts: Parts, context: RequestContext, request: Any) -> Entry:
    subscribed = await parts.coordinator.subscribed(
        request.group_id, (topic.name for topic in request.topics)
    )
    if isinstance(subscribed, Refused):
        return {"error_code": error_number(subscribed.error), "topics": ()}
    deleted: list[PartitionKey] = []
    topics = []
    for asked in request.topics:
        partitions = []
        for partition in asked.partitions:
            index = partition.partition_index
            code = _undeletable(parts, asked.name, index, subscribed)
            if not code:
                deleted.append((asked.name, index))
            partitions.append(
                {"partition_index": index, "error_code": error_number(code) if code else 0}
            )
        topics.append({"name": asked.name, "partitions": partitions})
    if deleted:
        await parts.coordinator.delete_offsets(request.group_id, deleted)
    return {"topics": topics}


def _undeletable(parts: Parts, name: str, index: int, subscribed: frozenset[str]) -> str:
    topic = parts.partitions.topics.get(name)
    if topic is None or not 0 <= index < len(topic.topic.partitions):
        return UnknownTopicOrPartition.code
    return SubscribedToTopic.code if name in subscribed else ""
