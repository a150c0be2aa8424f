"""StreamsGroupHeartbeat and StreamsGroupDescribe, and the internal topics of Kafka Streams.

The core in `broker/groups/streams/` handles the requests. A response that names missing internal
topics is sent after this module has created them; their errors are part of the status. Members get
tasks in the response to a later heartbeat.

Version notes: version 1 (KIP-1331) has descriptions of topologies. The broker stores none and asks
for none, so they are always reported as not stored.

Source: KIP-1071, KIP-1331; Kafka's `StreamsGroupHeartbeatRequest.json` and the other messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from penstock.base.errors import PenstockError
from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.modern.core import HeartbeatResponse
from penstock.broker.groups.runtime.assignors import Partitions
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.streams import (
    DescribedStreamsGroup,
    InternalTopic,
    Status,
    StreamsHeartbeat,
    StreamsResponse,
    Subtopology,
    Topology,
)
from penstock.broker.groups.streams.assignor import ACTIVE, STANDBY, WARMUP, Task
from penstock.broker.groups.streams.group import DescribedStreamsMember
from penstock.broker.groups.streams.topology import Configured
from penstock.broker.handlers.groups import description, find_group, undescribed, unexpected
from penstock.broker.handlers.metadata import NEVER_STRICT
from penstock.broker.net.errors import error_number
from penstock.broker.requests.access import NOT_ASKED, operations_of
from penstock.broker.topics.plan import TopicSpec
from penstock.security import CLUSTER
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.broker.net.connection import RequestContext
    from penstock.broker.quotas.service import Quotas
    from penstock.broker.topics.admin import TopicAdmin

Entry = dict[str, Any]

TASK_OFFSET_INTERVAL_MS: Final = 60_000
ACCEPTABLE_RECOVERY_LAG: Final = 10_000
"""Kafka's defaults; the coordinator assigns no warm-up tasks, so clients do not use them."""
NOT_STORED: Final = 1
"""Status in the response to a client that requests the description of the topology."""
ALREADY_EXISTS: Final = "topic_already_exists"
_ROLES: Final = {"active_tasks": ACTIVE, "standby_tasks": STANDBY, "warmup_tasks": WARMUP}


class StreamsGroups(Struct, frozen=True, kw_only=True):
    """Handlers of streams groups; `creating` are groups whose internal topics are being created."""

    coordinator: GroupCoordinator
    topic_admin: TopicAdmin
    quotas: Quotas
    creating: set[str] = field(default_factory=set)

    async def streams_group_heartbeat(self, context: RequestContext, request: Any) -> Entry:
        self.coordinator.check_owner(request.group_id)
        topology = None if request.topology is None else _topology(request.topology)
        _authorise(context, topology)
        response = await self.coordinator.call(_heartbeat(context, request, topology))
        if isinstance(response, Refused):
            return {
                "error_code": error_number(response.error),
                "error_message": response.message,
                **_beat(request.member_id, 0, 0),
            }
        if isinstance(response, StreamsResponse):
            problems = await self._create(context, request.group_id, response.configured.missing)
            return _answer(context, response, problems)
        if not isinstance(response, HeartbeatResponse):
            raise unexpected(response)
        return _beat(response.member_id, response.epoch, 0)

    async def _create(
        self, context: RequestContext, group_id: str, missing: tuple[InternalTopic, ...]
    ) -> str:
        """Create internal topics; return the errors as text, empty if there are none."""
        if not missing or group_id in self.creating:
            return ""
        rights = context.rights
        creates = rights.allows("create", "cluster", CLUSTER)
        forbidden = [
            topic.name
            for topic in missing
            if not creates and not rights.allows("create", "topic", topic.name)
        ]
        if forbidden:
            for name in forbidden:
                context.refusal("create", "topic", name)
            return f"Unauthorized to CREATE on topics {', '.join(forbidden)}."
        self.creating.add(group_id)
        try:
            quota = self.quotas.mutations(context, strict_from=NEVER_STRICT)
            quota.take(sum([topic.partitions for topic in missing]))
            results = await self.topic_admin.create(self.topic_admin.plan([*map(_spec, missing)]))
        except PenstockError as error:
            return f"Internal topics could not be created: {error}"
        finally:
            self.creating.discard(group_id)
        problems = [
            f"{topic.name}: {result}"
            for topic, result in zip(missing, results, strict=True)
            if isinstance(result, PenstockError) and result.code != ALREADY_EXISTS
        ]
        return f"Internal topics could not be created: {'; '.join(problems)}" if problems else ""

    async def streams_group_describe(self, context: RequestContext, request: Any) -> Entry:
        asked = request.include_authorized_operations
        stored = NOT_STORED if getattr(request, "include_topology_description", False) else 0
        return {
            "groups": [
                {
                    **await self._described(context, group_id),
                    "group_id": group_id,
                    "topology_description_status": stored,
                    "authorized_operations": (
                        operations_of(context.rights, "group", group_id) if asked else NOT_ASKED
                    ),
                }
                for group_id in request.group_ids
            ]
        }

    async def _described(self, context: RequestContext, group_id: str) -> Entry:
        try:
            group = await find_group(self.coordinator, group_id, DescribedStreamsGroup, "streams")
            sources = group.configured.sources.values()
            _authorise(context, group.topology, chain.from_iterable(sources))
        except PenstockError as error:
            return {**undescribed(error), "topology": None, "assignor_name": None}
        return {
            **description(group),
            "topology": _described_topology(group),
            "members": [_member(member) for member in group.members],
        }


def _authorise(
    context: RequestContext, topology: Topology | None, sources: Iterable[str] = ()
) -> None:
    """Require that the client may describe all topics of a topology, and `sources`."""
    named = frozenset() if topology is None else topology.topics
    for name in sorted(named.union(sources)):
        context.authorise("describe", "topic", name)


# -- requests -------------------------------------------------------------------------------


def _heartbeat(
    context: RequestContext, request: Any, topology: Topology | None
) -> StreamsHeartbeat:
    tags, endpoint, offsets = request.client_tags, request.user_endpoint, request.task_offsets
    return StreamsHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.client_host}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        owned=_owned(request),
        topology=topology,
        process_id=request.process_id,
        endpoint=None if endpoint is None else (endpoint.host, endpoint.port),
        tags=None if tags is None else tuple((tag.key, tag.value) for tag in tags),
        held=None
        if offsets is None
        else frozenset([Task(item.subtopology_id.encode(), item.partition) for item in offsets]),
        endpoint_epoch=request.endpoint_information_epoch,
        shutdown=request.shutdown_application,
    )


def _owned(request: Any) -> Partitions | None:
    """Return the tasks of all roles; None if the member reports no change."""
    owned: dict[bytes, frozenset[int]] = {}
    for name, role in _ROLES.items():
        tasks = getattr(request, name)
        if tasks is None:
            return None
        for item in tasks:
            if item.partitions:
                key = role + item.subtopology_id.encode()
                owned[key] = owned.get(key, frozenset()).union(item.partitions)
    return owned


def _topology(found: Any) -> Topology:
    return Topology(epoch=found.epoch, subtopologies=tuple(map(_subtopology, found.subtopologies)))


def _subtopology(found: Any) -> Subtopology:
    repartition = tuple(map(_internal_topic, found.repartition_source_topics))
    return Subtopology(
        subtopology_id=found.subtopology_id,
        source_topics=tuple(found.source_topics),
        source_regexes=tuple(found.source_topic_regex),
        repartition_sinks=tuple(found.repartition_sink_topics),
        repartition_sources=repartition,
        changelogs=tuple(map(_internal_topic, found.state_changelog_topics)),
        copartition_groups=tuple(
            (
                *_at(found.source_topics, group.source_topics),
                *_at(found.source_topic_regex, group.source_topic_regex),
                *_at([topic.name for topic in repartition], group.repartition_source_topics),
            )
            for group in found.copartition_groups
        ),
    )


def _at(names: Any, indexes: Iterable[int]) -> Iterator[str]:
    return (names[index] for index in indexes if 0 <= index < len(names))


def _internal_topic(found: Any) -> InternalTopic:
    return InternalTopic(
        name=found.name,
        partitions=found.partitions,
        replication_factor=found.replication_factor,
        configs=tuple((config.key, config.value) for config in found.topic_configs),
    )


def _spec(topic: InternalTopic) -> TopicSpec:
    return TopicSpec(
        name=topic.name,
        partition_count=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=topic.configs,
    )


# -- responses ------------------------------------------------------------------------------


def _beat(member_id: str, epoch: int, interval_ms: int) -> Entry:
    return {
        "member_id": member_id,
        "member_epoch": epoch,
        "heartbeat_interval": interval_ms,
        "acceptable_recovery_lag": ACCEPTABLE_RECOVERY_LAG,
        "task_offset_interval": TASK_OFFSET_INTERVAL_MS,
        "status": (),
        **dict.fromkeys(_ROLES),
        "endpoint_information_epoch": 0,
        "partitions_by_user_endpoint": None,
    }


def _answer(context: RequestContext, response: StreamsResponse, problems: str) -> Entry:
    statuses = [
        {
            "status_code": int(status),
            "status_detail": (
                f"{detail}; {problems}"
                if problems and status is Status.MISSING_INTERNAL_TOPICS
                else detail
            ),
        }
        for status, detail in response.statuses
    ]
    endpoints = response.endpoints
    return {
        **_beat(response.member_id, response.epoch, response.heartbeat_interval_ms),
        "status": statuses,
        **({} if response.assigned is None else _tasks(response.assigned)),
        "endpoint_information_epoch": response.endpoint_epoch,
        "partitions_by_user_endpoint": None
        if endpoints is None
        else [
            {
                "user_endpoint": {"host": host, "port": port},
                "active_partitions": _read(context, response.configured, tasks, (ACTIVE,)),
                "standby_partitions": _read(context, response.configured, tasks, (STANDBY, WARMUP)),
            }
            for (host, port), tasks in endpoints
        ],
    }


def _read(
    context: RequestContext, configured: Configured, tasks: Partitions, roles: tuple[bytes, ...]
) -> list[Entry]:
    """Return the source partitions that tasks read, of topics that the client may describe."""
    found: dict[str, set[int]] = {}
    for key, numbers in tasks.items():
        if key[:1] not in roles:
            continue
        for topic in configured.sources.get(key[1:].decode(), ()):
            count = configured.counts[topic]
            found.setdefault(topic, set()).update(n for n in numbers if n < count)
    return [
        {"topic": topic, "partitions": sorted(numbers)}
        for topic, numbers in sorted(found.items())
        if numbers and context.rights.allows("describe", "topic", topic)
    ]


def _tasks(tasks: Partitions) -> Entry:
    return {
        name: [
            {"subtopology_id": key[1:].decode(), "partitions": sorted(numbers)}
            for key, numbers in sorted(tasks.items())
            if key[:1] == role
        ]
        for name, role in _ROLES.items()
    }


def _described_topology(group: DescribedStreamsGroup) -> Entry | None:
    topology, configured = group.topology, group.configured
    if topology is None:
        return None
    internal = topology.internal_topics
    return {
        "epoch": topology.epoch,
        "subtopologies": [
            {
                "subtopology_id": sub.subtopology_id,
                "source_topics": [
                    name for name in configured.sources[sub.subtopology_id] if name not in internal
                ],
                "repartition_sink_topics": sub.repartition_sinks,
                "state_changelog_topics": _topics(sub.changelogs, configured),
                "repartition_source_topics": _topics(sub.repartition_sources, configured),
            }
            for sub in topology.subtopologies
        ]
        if configured.sources
        else None,
    }


def _topics(topics: Iterable[InternalTopic], configured: Configured) -> list[Entry]:
    return [
        {
            "name": topic.name,
            "partitions": configured.counts[topic.name],
            "replication_factor": topic.replication_factor,
            "topic_configs": [{"key": key, "value": value} for key, value in topic.configs],
        }
        for topic in topics
    ]


def _member(member: DescribedStreamsMember) -> Entry:
    endpoint = member.endpoint
    return {
        "member_id": member.member_id,
        "member_epoch": member.epoch,
        "instance_id": member.group_instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process_id,
        "user_endpoint": None if endpoint is None else {"host": endpoint[0], "port": endpoint[1]},
        "client_tags": [{"key": key, "value": value} for key, value in member.tags],
        "task_offsets": (),
        "task_end_offsets": (),
        "assignment": _tasks(member.tasks),
        "target_assignment": _tasks(member.target_tasks),
        "is_classic": False,
    }
