"""CreateTopics, DeleteTopics, CreatePartitions and DeleteRecords.

`broker/topics/plan.py` checks and plans new topics and partitions.

Source: Kafka's `ControllerApis`; KIP-4, KIP-107, KIP-195, KIP-464, KIP-516, KIP-525, KIP-599.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from msgspec import Struct

from penstock.base.errors import PenstockError
from penstock.broker.configuration.configs import describe_topic, idle_topic_configs, topic_config
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import (
    BadRequest,
    InternalTopic,
    PolicyViolation,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
    error_fields,
    error_number,
    error_of,
)
from penstock.broker.topics.admin import CONCURRENT_CHANGES_MAX, TopicAdmin
from penstock.broker.topics.plan import TopicPlan, TopicSpec
from penstock.control import Topic, UnknownTopic
from penstock.security import CLUSTER, Rights
from penstock.security.authoriser import TopicAuthorisationFailed
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.broker.configuration.settings import BrokerSettings
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.registry import PartitionRegistry
    from penstock.broker.quotas.service import MutationQuota, Quotas
    from penstock.control import ControlPlane
    from penstock.partitions import Partition

logger = logging.getLogger(__name__)

Entry = dict[str, Any]


class Topics(Struct, frozen=True, kw_only=True):
    settings: BrokerSettings
    control: ControlPlane
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    topic_admin: TopicAdmin
    quotas: Quotas

    # -- CreateTopics ---------------------------------------------------------------------------

    async def create_topics(self, context: RequestContext, request: Any) -> Entry:
        counts = Counter(topic.name for topic in request.topics)
        specs = [_spec(topic) for topic in request.topics if counts[topic.name] == 1]
        await self.cluster.refresh()
        quota = self.quotas.mutations(context, strict_from=6)
        plans = [_within(quota, plan) for plan in self.topic_admin.plan(specs)]
        if request.validate_only:
            outcomes: list[TopicPlan | Topic | PenstockError] = list(plans)
        else:
            outcomes = list(await self.topic_admin.create(plans))
        answers = {
            spec.name: self._created(context.rights, plan, outcome)
            for spec, plan, outcome in zip(specs, plans, outcomes, strict=True)
        }
        twice = error_fields(BadRequest("Duplicate topic name."))
        return {
            "throttle_time": self.quotas.mutated(quota),
            "topics": [{"name": name, **answers.get(name, twice)} for name in counts],
        }

    def _created(
        self,
        rights: Rights,
        plan: TopicPlan | PenstockError,
        outcome: TopicPlan | Topic | PenstockError,
    ) -> Entry:
        if isinstance(outcome, PenstockError):
            return {**error_fields(outcome), "configs": ()}
        if isinstance(plan, PenstockError):
            return {**error_fields(plan), "configs": ()}
        topic_id = outcome.topic_id if isinstance(outcome, Topic) else None
        if not rights.allows("describe_configs", "topic", plan.name):
            return {
                "topic_id": topic_id,
                "topic_config_error_code": error_number(TopicAuthorisationFailed.code),
                "num_partitions": -1,
                "replication_factor": -1,
                "configs": (),
            }
        configs = [
            {
                "name": entry.name,
                "value": entry.value,
                "read_only": entry.read_only,
                "config_source": int(entry.source),
                "is_sensitive": entry.sensitive,
            }
            for entry in describe_topic(self.topic_admin.levels(), plan.configs)
        ]
        notes = idle_topic_configs(plan.configs)
        if notes and isinstance(outcome, Topic):
            logger.warning("topic %s: %s", plan.name, "; ".join(notes))
        return {
            "topic_id": topic_id,
            "error_message": "; ".join(notes) or None,
            "num_partitions": len(plan.partitions),
            "replication_factor": len(plan.partitions[0]),
            "configs": configs,
        }

    # -- DeleteTopics ---------------------------------------------------------------------------

    async def delete_topics(self, context: RequestContext, request: Any) -> Entry:
        if not self.settings.delete_topic_enable:
            if context.version < 3:
                raise BadRequest("Topic deletion is disabled.")
            raise TopicDeletionDisabled("topic deletion is disabled: delete.topic.enable is false")
        await self.cluster.refresh()
        if context.version < 6:
            asked = [(name, None) for name in request.topic_names]
        else:
            asked = [(topic.name, topic.topic_id) for topic in request.topics]
        counts = Counter(self._resolved(name, topic_id) for name, topic_id in asked)
        quota = self.quotas.mutations(context, strict_from=5)
        responses: list[Entry] = []
        for start in range(0, len(asked), CONCURRENT_CHANGES_MAX):
            chunk = dict.fromkeys(asked[start : start + CONCURRENT_CHANGES_MAX])
            responses += await asyncio.gather(
                *(self._delete(context, name, topic_id, counts, quota) for name, topic_id in chunk)
            )
        await self.cluster.refresh()
        return {"throttle_time": self.quotas.mutated(quota), "responses": responses}

    def _resolved(self, name: str | None, topic_id: UUID | None) -> object:
        topic = self.cluster.image.topics.get(name) if name is not None else None
        return topic.topic_id if topic is not None else (topic_id or name)

    def _deletable(self, context: RequestContext, name: str | None, topic_id: UUID | None) -> Topic:
        """Return the topic to delete; raises PenstockError.

        A caller that may not describe the topic gets the same error for its name whether or not it
        exists.
        """
        rights = context.rights
        if rights.allows("delete", "cluster", CLUSTER):
            return self._find(name, topic_id)
        if name is not None and topic_id is None:
            context.authorise("describe", "topic", name)
        topic = self._find(name, topic_id)
        if not rights.allows("delete", "topic", topic.name):
            raise context.refusal("delete", "topic", topic.name if name else str(topic_id))
        return topic

    async def _delete(
        self,
        context: RequestContext,
        name: str | None,
        topic_id: UUID | None,
        counts: Mapping[object, int],
        quota: MutationQuota,
    ) -> Entry:
        answer: Entry = {"name": name, "topic_id": topic_id}
        try:
            if counts[self._resolved(name, topic_id)] > 1:
                raise BadRequest("Duplicate topic name or id.")
            topic = self._deletable(context, name, topic_id)
            quota.take(len(topic.partitions))
            await self.control.delete_topic(topic.topic_id)
            return {"name": topic.name, "topic_id": topic.topic_id}
        except UnknownTopic as error:
            gone = (
                UnknownTopicOrPartition(f"topic {name!r} was deleted by another request")
                if name
                else error
            )
            return {**answer, **error_fields(gone)}
        except PenstockError as error:
            return {**answer, **error_fields(error)}

    def _find(self, name: str | None, topic_id: UUID | None) -> Topic:
        if name is not None and topic_id is not None:
            raise BadRequest("You may not specify both topic name and topic id.")
        if name is not None:
            topic = self.cluster.image.topics.get(name)
            if topic is None:
                raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
            return topic
        if topic_id is None:
            raise BadRequest("Neither topic name nor id were specified.")
        known = self.partitions.topics_by_id.get(topic_id.bytes)
        if known is None:
            raise UnknownTopicId(f"topic id {topic_id} does not exist")
        return known.topic

    # -- CreatePartitions -----------------------------------------------------------------------

    async def create_partitions(self, context: RequestContext, request: Any) -> Entry:
        counts = Counter(topic.name for topic in request.topics)
        await self.cluster.refresh()
        quota = self.quotas.mutations(context, strict_from=3)
        results = [
            await self._grow(topic, quota, validate_only=request.validate_only)
            for topic in request.topics
            if counts[topic.name] == 1
        ]
        twice = error_fields(BadRequest("Duplicate topic name."))
        results += [{"name": name, **twice} for name, count in counts.items() if count > 1]
        await self.cluster.refresh()
        await self.topic_admin.led(list(counts))
        return {"throttle_time": self.quotas.mutated(quota), "results": results}

    async def _grow(self, asked: Any, quota: MutationQuota, *, validate_only: bool) -> Entry:
        try:
            topic = self._find(asked.name, None)
            assignments = asked.assignments
            if assignments is not None:
                assignments = [tuple(item.broker_ids) for item in assignments]
            new = self.topic_admin.plan_added(topic, asked.count, assignments)
            quota.take(len(new))
            if not validate_only:
                config = topic_config(self.topic_admin.levels(), topic.configs)
                await self.control.create_partitions(
                    topic_id=topic.topic_id,
                    expected_count=len(topic.partitions),
                    new=new,
                    min_insync_replicas=config.min_insync_replicas,
                )
                await self.cluster.refresh()
        except PenstockError as error:
            return {"name": asked.name, **error_fields(error)}
        return {"name": asked.name}

    # -- DeleteRecords --------------------------------------------------------------------------

    async def delete_records(self, context: RequestContext, request: Any) -> Entry:
        """Delete records in the logs of partitions that this broker leads.

        Respond when the replicas have deleted them too, or after the timeout of the request.
        """
        waiting: list[tuple[Partition, Entry]] = []
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    await self._trimmed(topic.name, partition, waiting)
                    for partition in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        loop = asyncio.get_running_loop()
        until = loop.time() + milliseconds(request.timeout) / 1000
        for partition, answer in waiting:
            try:
                await partition.deleted(answer["low_watermark"], seconds=until - loop.time())
            except PenstockError as error:
                answer |= {"low_watermark": -1, "error_code": error_of(error)[0]}
        return {"topics": topics}

    async def _trimmed(
        self, name: str, partition: Any, waiting: list[tuple[Partition, Entry]]
    ) -> Entry:
        index = partition.partition_index
        answer: Entry = {"partition_index": index, "low_watermark": -1}
        try:
            found = self.partitions.partition(name, index)
            if self.partitions.topics[name].topic.internal:
                raise InternalTopic(name)
            policy = found.config.cleanup_policy
            if "delete" not in policy:
                raise PolicyViolation(
                    f"topic {name!r}: deleting records needs cleanup.policy = delete, not"
                    f" {','.join(policy)}"
                )
            answer["low_watermark"] = await found.delete_records(partition.offset)
            waiting.append((found, answer))
        except PenstockError as error:
            answer["error_code"], _ = error_of(error)
        return answer


def _within(quota: MutationQuota, plan: TopicPlan | PenstockError) -> TopicPlan | PenstockError:
    try:
        if not isinstance(plan, PenstockError):
            quota.take(len(plan.partitions))
    except PenstockError as error:
        return error
    return plan


def _spec(topic: Any) -> TopicSpec:
    return TopicSpec(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((item.partition_index, item.broker_ids) for item in topic.assignments),
        configs=tuple((config.name, config.value) for config in topic.configs),
    )
