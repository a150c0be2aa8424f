"""OffsetCommit, OffsetFetch, OffsetDelete, TxnOffsetCommit: committed offsets of consumer groups.

The group coordinator validates members. Offsets are written directly to the control plane, which
batches the commits of all connections and responds when they are durable. They are not cached.

The offsets of a transaction are staged in the control plane, separately from the committed ones.
They are applied or discarded when the transaction commits or aborts
(`control/operations/coordination.py`). From version 5 on TxnOffsetCommit adds the group to the
transaction; before, the client sends AddOffsetsToTxn.

The member is checked before the offsets are staged and again afterwards. A member that was replaced
before the second check is rejected, and its producer aborts. A member that is replaced later is no
problem: the new owner of its partitions requests stable offsets and waits for the staged ones.

The position of a whole group's error in OffsetFetch depends on the version. Version 1 has it on
every partition, versions 2 to 7 at the top level, and later versions on the group.

Source: Kafka's `OffsetMetadataManager` and `GroupCoordinatorService.commitTransactionalOffsets`;
KIP-98, KIP-211 (retention), KIP-320 (leader epochs), KIP-447 (stable offsets), KIP-496 (deletion),
KIP-709 (many groups), KIP-848 (topic ids), KIP-890.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError
from penstock.broker.groups.coordinator import GroupCoordinator, GroupIdNotFound
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.kinds import CommitCheck, FetchCheck
from penstock.broker.groups.runtime.saving import CoordinatorNotAvailable
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import (
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_number,
    error_of,
)
from penstock.client.errors import is_retriable
from penstock.control import CommittedOffset, NotInTransaction, OpenTransaction, Topic
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.base.system import Clock
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.transactions.link import TransactionLink
    from penstock.control import ControlPlane

NO_OFFSET: Final = -1
UTF_16_BYTES: Final = 2
"""Bytes of a character, as Java's clients and Apache Kafka count characters."""
TOP_LEVEL_ERROR_VERSION: Final = 2
GROUPS_VERSION: Final = 8
TOPIC_IDS_VERSION: Final = 10
GROUP_NOT_FOUND_VERSION: Final = 9
"""First version of OffsetCommit that distinguishes an unknown group from an old generation."""
MEMBER_EPOCHS_VERSION: Final = 9
"""First version of OffsetCommit and OffsetFetch with member epochs."""
ILLEGAL_GENERATION: Final = "illegal_generation"

UNSTABLE: Final = "unstable_offset_commit"
"""Error of an offset that an open transaction may change. It is only returned to clients that
require stable offsets, and they retry."""

INVALID_GROUP_ID: Final = "invalid_group_id"
CONCURRENT: Final = "concurrent_transactions"
FENCED: Final = "producer_fenced"
OLD_EPOCH: Final = "invalid_producer_epoch"
STALE_MEMBER_EPOCH: Final = "stale_member_epoch"
ABORTABLE: Final = "transaction_abortable"
ABORTABLE_VERSION: Final = 4
"""First version of TxnOffsetCommit with the error TRANSACTION_ABORTABLE."""
STALE_EPOCH_VERSION: Final = 6
"""First version of TxnOffsetCommit with the errors STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND."""
ADDS_GROUP_VERSION: Final = 5
"""First version of TxnOffsetCommit that adds the group to the transaction."""

Entry = dict[str, Any]
PartitionKey = tuple[str, int]
Committed = dict[PartitionKey, CommittedOffset]


class Offsets(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    control: ControlPlane
    clock: Clock
    partitions: PartitionRegistry
    coordinator: GroupCoordinator
    transaction_link: TransactionLink

    # -- OffsetCommit ---------------------------------------------------------------------------

    async def offset_commit(self, context: RequestContext, request: Any) -> Entry:
        coordinator = self.coordinator
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
        now_ms = self.clock.now_ms()
        retention_ms = milliseconds(getattr(request, "retention_time", NO_OFFSET))
        expire_ms = None if retention_ms < 0 else now_ms + retention_ms
        accepted: list[CommittedOffset] = []
        topics = [
            {
                **_identity(asked),
                "partitions": self._accept(asked, accepted, now_ms=now_ms, expire_ms=expire_ms),
            }
            for asked in request.topics
        ]
        if accepted:
            await coordinator.commit(request.group_id, accepted)
        return {"topics": topics}

    def _accept(
        self,
        asked: Any,
        accepted: list[CommittedOffset],
        *,
        now_ms: int,
        expire_ms: int | None = None,
    ) -> list[Entry]:
        """Check the offsets of one topic; append valid ones to `accepted`, return the results."""
        try:
            topic = self._topic_of(asked)
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
            code = self._refusal(topic, index, metadata)
            answers.append(
                {"partition_index": index, "error_code": error_number(code) if code else 0}
            )
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

    def _topic_of(self, asked: Any) -> Topic:
        """Return the topic of a request element; raises UnknownTopicId, UnknownTopicOrPartition."""
        if hasattr(asked, "topic_id"):
            by_id = (
                self.partitions.topics_by_id.get(asked.topic_id.bytes) if asked.topic_id else None
            )
            if by_id is None:
                raise UnknownTopicId(f"topic id {asked.topic_id} does not exist")
            return by_id.topic
        by_name = self.partitions.topics.get(asked.name)
        if by_name is None:
            raise UnknownTopicOrPartition(f"topic {asked.name!r} does not exist")
        return by_name.topic

    def _refusal(self, topic: Topic, index: int, metadata: str) -> str:
        if not 0 <= index < len(topic.partitions):
            return UnknownTopicOrPartition.code
        limit = self.settings.offset_metadata_max_bytes
        if metadata and len(metadata.encode("utf-16-le")) // UTF_16_BYTES > limit:
            return OffsetMetadataTooLarge.code
        return ""

    # -- OffsetFetch ----------------------------------------------------------------------------

    async def offset_fetch(self, context: RequestContext, request: Any) -> Entry:
        if context.version >= GROUPS_VERSION:
            stable = request.require_stable
            return {
                "groups": [await self._group(context, group, stable) for group in request.groups]
            }
        answer = await self._group(context, request, getattr(request, "require_stable", False))
        number = answer["error_code"]
        if number and context.version < TOP_LEVEL_ERROR_VERSION:
            answer["topics"] = [_failed_topic(topic, number) for topic in request.topics]
        return answer

    async def _group(self, context: RequestContext, asked: Any, require_stable: bool) -> Entry:
        group_id, topics, rights = asked.group_id, asked.topics, context.rights
        try:
            context.authorise("describe", "group", group_id)
            self.coordinator.check_owner(group_id)
            refused = await self._refuse_member(context, asked)
            if refused is not None:
                number = error_number(refused.error)
                return {"group_id": group_id, "topics": (), "error_code": number}
            keys = None if topics is None else self._keys(topics)
            by_key, unstable = await self._committed(group_id, keys, require_stable)
        except PenstockError as error:
            number, _ = error_of(error)
            return {"group_id": group_id, "topics": (), "error_code": number}
        if topics is None:
            by_key = {
                key: offset
                for key, offset in by_key.items()
                if rights.allows("describe", "topic", key[0])
            }
            answers = self._all_topics(by_key, unstable, by_id=context.version >= TOPIC_IDS_VERSION)
        else:
            answers = [self._topic(context, topic, by_key, unstable) for topic in topics]
        return {"group_id": group_id, "topics": answers, "error_code": 0}

    async def _refuse_member(self, context: RequestContext, asked: Any) -> Refused | None:
        if context.version < MEMBER_EPOCHS_VERSION:
            return None
        if asked.member_id is None and asked.member_epoch < 0:
            return None
        return await self.coordinator.check_fetch(
            FetchCheck(group_id=asked.group_id, member_id=asked.member_id, epoch=asked.member_epoch)
        )

    async def _committed(
        self, group_id: str, keys: Sequence[PartitionKey] | None, require_stable: bool
    ) -> tuple[Committed, Collection[PartitionKey]]:
        """Return committed offsets; with `require_stable` also the partitions with unstable ones.

        `keys` of None means all partitions of the group.
        """
        if require_stable:
            stable = await self.control.stable_offsets(group_id, keys)
            found, unstable = stable.committed, stable.unstable
        else:
            found, unstable = await self.control.committed_offsets(group_id, keys), ()
        return {(offset.topic, offset.partition): offset for offset in found}, unstable

    def _keys(self, topics: Iterable[Any]) -> list[PartitionKey]:
        keys: list[PartitionKey] = []
        for asked in topics:
            name = self._name(asked)
            if name is not None:
                keys += [(name, index) for index in asked.partition_indexes]
        return keys

    def _name(self, asked: Any) -> str | None:
        if not hasattr(asked, "topic_id"):
            return str(asked.name)
        found = self.partitions.topics_by_id.get(asked.topic_id.bytes) if asked.topic_id else None
        return None if found is None else found.topic.name

    def _topic(
        self,
        context: RequestContext,
        asked: Any,
        by_key: Committed,
        unstable: Collection[PartitionKey],
    ) -> Entry:
        name = self._name(asked)
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
        self, by_key: Committed, unstable: Collection[PartitionKey], *, by_id: bool
    ) -> list[Entry]:
        topics: dict[str, list[Entry]] = {}
        ids: dict[str, UUID] = {}
        for (name, index), offset in sorted(by_key.items()):
            if by_id and name not in self.partitions.topics:
                continue
            ids[name] = offset.topic_id
            position = _position(index, offset, unstable=(name, index) in unstable)
            topics.setdefault(name, []).append(position)
        return [
            {"name": name, "topic_id": ids[name], "partitions": partitions}
            for name, partitions in topics.items()
        ]

    # -- OffsetDelete ---------------------------------------------------------------------------

    async def offset_delete(self, context: RequestContext, request: Any) -> Entry:
        subscribed = await self.coordinator.subscribed(
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
                code = self._undeletable(asked.name, index, subscribed)
                if not code:
                    deleted.append((asked.name, index))
                partitions.append(
                    {"partition_index": index, "error_code": error_number(code) if code else 0}
                )
            topics.append({"name": asked.name, "partitions": partitions})
        if deleted:
            await self.coordinator.delete_offsets(request.group_id, deleted)
        return {"topics": topics}

    def _undeletable(self, name: str, index: int, subscribed: frozenset[str]) -> str:
        topic = self.partitions.topics.get(name)
        if topic is None or not 0 <= index < len(topic.topic.partitions):
            return UnknownTopicOrPartition.code
        return SubscribedToTopic.code if name in subscribed else ""

    # -- TxnOffsetCommit -------------------------------------------------------------------------

    async def txn_offset_commit(self, context: RequestContext, request: Any) -> Entry:
        accepted: list[CommittedOffset] = []
        now_ms = self.clock.now_ms()
        topics = [
            {**_identity(asked), "partitions": self._accept(asked, accepted, now_ms=now_ms)}
            for asked in request.topics
        ]
        if accepted:
            number = await self._stage(context.version, request, accepted)
            for partition in (partition for topic in topics for partition in topic["partitions"]):
                partition["error_code"] = partition["error_code"] or number
        return {"topics": topics}

    async def _stage(self, version: int, request: Any, offsets: list[CommittedOffset]) -> int:
        """Stage offsets of a transaction; return the number of an error, or 0."""
        group_id = request.group_id
        if not group_id:
            return error_number(INVALID_GROUP_ID)
        check = CommitCheck(
            group_id=group_id,
            member_id=getattr(request, "member_id", ""),
            group_instance_id=getattr(request, "group_instance_id", None),
            generation=getattr(request, "generation_id", -1),
            transactional=True,
        )
        transaction = OpenTransaction(
            transactional_id=request.transactional_id,
            producer_id=int(request.producer_id),
            producer_epoch=int(request.producer_epoch),
        )
        coordinator = self.coordinator
        try:
            refused = await coordinator.check_commit(check)
            if refused is None:
                if version >= ADDS_GROUP_VERSION:
                    await self._add_group(transaction, group_id)
                await coordinator.commit(group_id, offsets, transaction)
                refused = await coordinator.check_commit(check)
        except NotInTransaction as error:
            return error_number(ABORTABLE if version >= ABORTABLE_VERSION else error.code)
        except PenstockError as error:
            return error_number(OLD_EPOCH if error.code == FENCED else error.code)
        return 0 if refused is None else _member_error(refused, version)

    async def _add_group(self, transaction: OpenTransaction, group_id: str) -> None:
        """Add the group to the transaction.

        Retriable errors of the transaction coordinator become CoordinatorNotAvailable.
        """
        try:
            await self.transaction_link.add_group(transaction, group_id)
        except PenstockError as error:
            number, _ = error_of(error)
            if number != error_number(CONCURRENT) and is_retriable(number):
                raise CoordinatorNotAvailable(str(error)) from error
            raise


class OffsetMetadataTooLarge(InvalidError):
    """Committed offset whose metadata text exceeds `offset.metadata.max.bytes`."""

    code: ClassVar[str] = "offset_metadata_too_large"


class SubscribedToTopic(InvalidError):
    """Deletion of offsets of a topic to which a member of the group subscribes."""

    code: ClassVar[str] = "group_subscribed_to_topic"


def _identity(asked: Any) -> Entry:
    return {"name": getattr(asked, "name", None), "topic_id": getattr(asked, "topic_id", None)}


def _refused(request: Any, number: int) -> Entry:
    """Return a response with the same error on every partition.

    OffsetCommit has no top-level error.
    """
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


def _member_error(refused: Refused, version: int) -> int:
    """Return the Kafka error number for a member that the group coordinator rejected.

    Responses before version 6 do not include STALE_MEMBER_EPOCH, so ILLEGAL_GENERATION replaces it.
    """
    stale = refused.error == STALE_MEMBER_EPOCH and version < STALE_EPOCH_VERSION
    return error_number(ILLEGAL_GENERATION if stale else refused.error)
