"""State of the cluster, topics, groups, logs and queues as JSON, without reading files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import asdict

from penstock.base.errors import PenstockError
from penstock.base.http_routes import Routes
from penstock.base.ids import TopicPartition
from penstock.base.metrics import Metrics, Sample, gauge, gauges
from penstock.broker.admin.access import DESCRIBE, DESCRIBE_GROUP, DESCRIBE_TOPIC, Needs, caller_of
from penstock.broker.groups.coordinator import GroupCoordinator, GroupIdNotFound
from penstock.broker.net.errors import UnknownTopicOrPartition
from penstock.broker.share.values import RecordState
from penstock.partitions import look_up_watermarks

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.broker.admin.burrow import Owners
    from penstock.broker.lag.service import EvaluatedGroup, LagService
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.migration import TopicMigrations
    from penstock.broker.partitions.registry import PartitionRegistry, ServedTopic
    from penstock.broker.partitions.replicas import Replicas
    from penstock.broker.share.service import ShareService
    from penstock.broker.share.stored import ShareState
    from penstock.broker.transactions.link import EndOffsets
    from penstock.control import CommittedOffset, ControlPlane
    from penstock.partitions.local import LocalPartition
    from penstock.partitions.tiering import TierService
    from penstock.partitions.tiers.part import TieredPart
    from penstock.storage import LogStore


TROUBLED_MAX: Final = 1000
"""Largest number of replicas in one response, which also has their total."""


class TopicViews(Struct, frozen=True, kw_only=True):
    node_id: int
    control: ControlPlane
    cluster: ClusterMetadata
    partitions: PartitionRegistry
    coordinator: GroupCoordinator
    end_offsets: EndOffsets
    migrations: TopicMigrations
    replicas: Replicas | None
    lag: Callable[[], LagService]

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /v1/losses", DESCRIBE)
    async def losses(self, request: Request) -> dict[str, Any]:
        """Return the records that unclean elections have lost, newest election first."""
        await self.cluster.refresh()
        names = {topic.topic_id: topic.name for topic in self.cluster.image.topics.values()}
        rows = [
            {
                "topic": names.get(partition_loss.topic_id, str(partition_loss.topic_id)),
                "partition": partition_loss.partition,
                "epoch": partition_loss.sealed,
                "from_offset": partition_loss.from_offset,
                "broker": partition_loss.broker,
                "missing": partition_loss.missing,
                "at_ms": partition_loss.at_ms,
            }
            for partition_loss in await self.control.partition_losses()
        ]
        return {"losses": rows}

    @routes.add("GET /v1/copies", DESCRIBE)
    async def copies(self, request: Request) -> dict[str, Any]:
        """Return the number of this broker's replicas, and the replicas with a problem.

        A replica has a problem if it is offline or may lack records; the response has the reason.
        """
        logs = [] if self.replicas is None else list(self.replicas.replication.logs.values())
        troubled = [(log, why) for log in logs if (why := log.copy.trouble)]
        return {
            "node_id": self.node_id,
            "count": len(logs),
            "troubled_count": len(troubled),
            "troubled": [
                {
                    "topic": log.log.topic_partition.topic,
                    "partition": log.log.topic_partition.partition,
                    "why": why,
                }
                for log, why in troubled[:TROUBLED_MAX]
            ],
        }

    @routes.add("GET /v1/cluster", DESCRIBE)
    async def show_cluster(self, request: Request) -> dict[str, Any]:
        """Return the registered brokers, the numbers of topics and partitions, and this broker's
        id.
        """
        await self.cluster.refresh()
        image = self.cluster.image
        return {
            "cluster_id": image.cluster_id,
            "node_id": self.node_id,
            "metadata_version": image.version,
            "brokers": [
                {
                    "broker_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                    "roles": broker.roles,
                    "epoch": broker.epoch,
                }
                for broker in image.brokers
            ],
            "topic_count": len(image.topics),
            "partition_count": sum(len(topic.partitions) for topic in image.topics.values()),
        }

    @routes.add("GET /v1/topics", DESCRIBE)
    async def topics(self, request: Request) -> dict[str, Any]:
        """Return every topic, with the size and offset span of its partitions on this broker."""
        await self.cluster.refresh()
        topics = self.partitions.topics
        await look_up_watermarks(
            partition for topic in topics.values() for partition in topic.partitions
        )
        return {"topics": [_summary(topics[name]) for name in sorted(topics)]}

    @routes.add("GET /v1/topics/{topic}", DESCRIBE_TOPIC)
    async def topic(self, request: Request) -> dict[str, Any]:
        """Return a topic and its partitions; offsets are null if another broker leads the
        partition.
        """
        await self.cluster.refresh()
        name = request.path_params["topic"]
        found = self.partitions.topics.get(name)
        if found is None:
            raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
        await look_up_watermarks(found.partitions)
        return {
            **_summary(found),
            "configs": dict(found.topic.configs),
            "switch": self.migrations.view(found.topic.topic_id),
            "partitions": [self._partition(found, index) for index in range(len(found.partitions))],
        }

    @routes.add("GET /v1/groups", DESCRIBE)
    async def groups(self, request: Request) -> dict[str, Any]:
        listed = await self.coordinator.list_groups()
        return {
            "groups": [
                {
                    "group_id": group.group_id,
                    "state": group.state,
                    "protocol_type": group.protocol_type,
                }
                for group in listed
            ]
        }

    @routes.add("GET /v1/groups/{group:path}", DESCRIBE_GROUP)
    async def group(self, request: Request) -> dict[str, Any]:
        """Return a group's members, committed offsets and evaluated lag, from its coordinator only.

        Topics that the caller may not describe are omitted.
        """
        from penstock.broker.admin.lag import group_row, partition_row, visible

        caller = caller_of(request)
        group_id = request.path_params["group"]
        coordinator = self.coordinator
        coordinator.check_owner(group_id)
        described = await coordinator.describe(group_id)
        if described is None:
            raise GroupIdNotFound(f"group {group_id!r} does not exist")
        committed = await self.control.committed_offsets(group_id, None)
        evaluated = visible(await self.lag().group(group_id, committed), caller.sees)
        offsets = {
            TopicPartition(offset.topic, offset.partition): offset
            for offset in committed
            if caller.sees(offset.topic)
        }
        ends = await self.end_offsets.of(offsets)
        rows = [_position(offset, ends.get(place)) for place, offset in offsets.items()]
        return {
            "group_id": group_id,
            "state": described.state,
            "protocol_type": described.protocol_type,
            "protocol": described.protocol,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                }
                for member in described.members
            ],
            "offsets": rows,
            "lag_records": sum(row["lag_records"] or 0 for row in rows),
            "lag": group_row(evaluated)
            | {"partitions": [partition_row(found) for found in evaluated.partitions]},
        }

    def _partition(self, topic: ServedTopic, index: int) -> dict[str, Any]:
        partition, log = self.cluster.shown(topic.topic)[index], topic.partitions[index]
        row: dict[str, Any] = {
            "partition": index,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replicas": partition.replicas,
            "isr": partition.isr,
        }
        for name in (
            "log_start_offset",
            "high_watermark",
            "last_stable_offset",
            "log_end_offset",
            "size_bytes",
            "segment_count",
        ):
            row[name] = None if log is None or log.high_watermark < 0 else getattr(log, name)
        return row


def _summary(served: ServedTopic) -> dict[str, Any]:
    logs = [log for log in served.partitions if log is not None]
    partitions = served.topic.partitions
    unknown = served.diskless and not logs  # this broker has no object store
    return {
        "topic": served.topic.name,
        "topic_id": str(served.topic.topic_id),
        "internal": served.topic.internal,
        "diskless": served.diskless,
        "partition_count": len(partitions),
        "replication_factor": len(partitions[0].replicas) if partitions else 0,
        "size_bytes": None if unknown else sum(log.size_bytes for log in logs),
        "offset_span": (
            None
            if unknown
            else sum(max(0, log.high_watermark - log.log_start_offset) for log in logs)
        ),
    }


def _position(offset: CommittedOffset, end: int | None) -> dict[str, Any]:
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "commit_timestamp_ms": offset.commit_timestamp_ms,
        "high_watermark": end,
        "lag_records": None if end is None else max(0, end - offset.offset),
    }


ROWS_MAX: Final = 1_000
"""Largest number of partitions of each kind, and of files, in one response with their total."""
TIERED_ROWS_MAX: Final = 10_000
"""Largest number of tiered partitions in one response, which also has their total."""


class LogViews(Struct, frozen=True, kw_only=True):
    node_id: int
    store: LogStore
    tiers: TierService | None

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /v1/damage", DESCRIBE)
    async def damage(self, request: Request) -> dict[str, Any]:
        """Return unrepaired damage of logs, and the files that were set aside at start.

        Of each partition only the first damaged range is returned.
        """
        found = self.store.damages
        kept = await asyncio.to_thread(lambda: self.store.set_aside)
        return {
            "node_id": self.node_id,
            "partition_count": len(found),
            "partitions": [
                {"topic": where.topic, "partition": where.partition, "reason": reasons[0]}
                for where, reasons in list(found.items())[:ROWS_MAX]
            ],
            "set_aside_count": len(kept),
            "set_aside": kept[:ROWS_MAX],
        }

    @routes.add("GET /v1/compaction", DESCRIBE)
    async def compaction(self, request: Request) -> dict[str, Any]:
        """Return the dirty ratio, clean offset and failure of each log at its last check.

        Logs with the highest dirty ratio come first.
        """
        ratios, failed = self.store.dirty_ratios, self.store.uncleanable
        dirtiest = sorted(ratios.items(), key=lambda item: -item[1])[:ROWS_MAX]
        return {
            "node_id": self.node_id,
            "partition_count": len(ratios),
            "partitions": [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "dirty_ratio": round(ratio, 4),
                    "clean_offset": self.store.clean_offset(where),
                }
                for where, ratio in dirtiest
            ],
            "uncleanable_count": len(failed),
            "uncleanable": [
                {"topic": where.topic, "partition": where.partition, "reason": reason}
                for where, reason in list(failed.items())[:ROWS_MAX]
            ],
        }

    @routes.add("GET /v1/tiers", DESCRIBE, ("topic",))
    async def show_tiers(self, request: Request) -> dict[str, Any]:
        """Return local and archived ranges, and copy failures, of tiered partitions on this broker.

        `topic` selects one topic. Values that are not known are null. Followers report their
        partitions too, because their local files differ. Only the leader knows the copy lag.
        """
        service, selected = self.tiers, request.query_params.get("topic")
        hosted = [] if service is None else list(service.hosted.items())
        found = [
            _tiered(partition, part)
            for partition, part in hosted
            if selected in (None, partition.topic_partition.topic)
        ]
        kept = sorted(found[:TIERED_ROWS_MAX], key=lambda row: (row["topic"], row["partition"]))
        return {
            "node_id": self.node_id,
            "enabled": service is not None and service.enabled,
            "store": "" if service is None else service.store_url,
            "partition_count": len(found),
            "partitions": kept,
        }


def _tiered(partition: LocalPartition, part: TieredPart) -> dict[str, Any]:
    core, where = part.core, partition.topic_partition
    bounds, measured = core.bounds, partition.leads and core.measured
    return {
        "topic": where.topic,
        "partition": where.partition,
        "leads": partition.leads,
        "copies": part.copies,
        "start_offset": part.start_offset if core.known else None,
        "tiered_end": part.tiered_end if core.known else None,
        "local_start": part.log.log_start_offset,
        "end_offset": partition.log_end_offset,
        "tiered_bytes": 0 if bounds is None else bounds.size_bytes,
        "tiered_segments": 0 if bounds is None else bounds.segments,
        "local_bytes": part.log.size_bytes,
        "lag_bytes": core.lag_bytes if measured else None,
        "lag_segments": core.lag_segments if measured else None,
        "lag_grows": measured and core.lag_grows,
        "failures": core.failures,
        "error": core.error,
    }


# Metrics of consumer groups, under the names that kafka_exporter uses, for existing dashboards.
#
# Committed offsets are those that the evaluation of lag keeps in memory. If the groups of this
# broker are unknown, a scrape has `penstock_group_metrics_missing` = 1 and all metrics but those of
# groups.


logger = logging.getLogger(__name__)

GROUPS_MAX: Final = 1_000
"""Largest number of groups whose members and offsets one scrape returns."""

GROUPS_SECONDS: Final = 5.0
"""Time limit of a scrape to read all groups. Prometheus' limit for a scrape is ten seconds."""


class GroupMetrics(Metrics):
    missing = gauge(
        "penstock_group_metrics_missing",
        "1 while groups and their offsets could not be read for this scrape, else 0.",
    )
    members: dict[str, int] = gauges(
        "kafka_consumergroup_members", "Members of a group.", "consumergroup"
    )
    offsets: dict[tuple[str, str, str], int] = gauges(
        "kafka_consumergroup_current_offset",
        "Committed offset of a group in a partition.",
        "consumergroup",
        "topic",
        "partition",
    )
    lags: dict[tuple[str, str, str], int] = gauges(
        "kafka_consumergroup_lag",
        "Records between a group's committed offset and the high watermark. High watermarks of"
        " partitions that other brokers lead may be up to 15 seconds old.",
        "consumergroup",
        "topic",
        "partition",
    )


class GroupMetricsSource(Struct, frozen=True, kw_only=True):
    coordinator: GroupCoordinator
    end_offsets: EndOffsets
    lag: Callable[[], LagService]

    async def group_samples(self) -> Iterable[Sample]:
        """Return members, offsets, lag and state of all groups of this coordinator.

        If the reading of any group fails or takes too long, return only the metric that reports
        missing group metrics.
        """
        metrics, evaluated = await self.group_metrics(with_state=True)
        if metrics.missing:
            return metrics.samples()
        from penstock.broker.admin.lag import lag_samples

        return [*metrics.samples(), *lag_samples(evaluated)]

    async def group_metrics(
        self, *, with_state: bool
    ) -> tuple[GroupMetrics, Sequence[EvaluatedGroup]]:
        """Return the metrics of groups and, `with_state`, the evaluations of their lag."""
        evaluated: Sequence[EvaluatedGroup] = ()
        try:
            async with asyncio.timeout(GROUPS_SECONDS):
                metrics = await self._groups()
                if with_state:
                    evaluated = await self.lag().groups()
        except (PenstockError, TimeoutError) as error:
            logger.warning(
                "metrics of groups are missing in a scrape: %s",
                str(error) or "reading them timed out",
            )
            metrics = GroupMetrics()
            metrics.missing = 1
        return metrics, evaluated

    async def _groups(self) -> GroupMetrics:
        metrics = GroupMetrics()
        committed = await self.lag().offsets()
        names = [group.group_id for group in (await self.coordinator.list_groups())[:GROUPS_MAX]]
        ends = await self.end_offsets.recent(
            where for name in names for where in committed.get(name, ())
        )
        for name in names:
            described = await self.coordinator.describe(name)
            metrics.members[name] = len(described.members) if described is not None else 0
            for where, offset in committed.get(name, {}).items():
                labels = (name, where.topic, str(where.partition))
                metrics.offsets[labels] = offset
                if where in ends:
                    metrics.lags[labels] = max(0, ends[where] - offset)
        return metrics


class LagViews(GroupMetricsSource, frozen=True, kw_only=True):
    """Evaluated lag of groups: own JSON, Burrow's answers, and kafka_exporter's metrics."""

    node_id: int
    control: ControlPlane
    cluster: ClusterMetadata
    partitions: PartitionRegistry

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /v1/lag", DESCRIBE, ("state",))
    async def groups(self, request: Request) -> dict[str, Any]:
        """Return the evaluated lag of this broker's groups, those in the worst states first.

        `state` selects the groups in one state. Topics that the caller may not describe are
        omitted.
        """
        from penstock.broker.admin.lag import group_list, visible

        caller, state = caller_of(request), request.query_params.get("state")
        groups = [visible(group, caller.sees) for group in await self.lag().groups()]
        return group_list(self.node_id, groups, state)

    @routes.add("GET /metrics/kafka_exporter", Needs(operation="describe", metrics=True))
    async def exporter(self, request: Request) -> Response:
        """Return the cluster's metrics under kafka_exporter's names, as Prometheus text.

        They are those of the partitions that this broker leads, and of the groups that it
        coordinates.
        """
        from starlette.responses import Response

        from penstock.base.http_routes import METRICS_TYPE
        from penstock.base.metrics import render
        from penstock.broker.admin.lag import exporter_samples

        groups, _ = await self.group_metrics(with_state=False)
        samples = exporter_samples(
            self.node_id, self.cluster, self.partitions, groups.offsets, groups.lags
        )
        text = await asyncio.to_thread(render, [*samples, *groups.samples()])
        return Response(text, headers={"content-type": METRICS_TYPE})

    @routes.add("GET /v3/kafka", DESCRIBE)
    async def clusters(self, request: Request) -> Response:
        """Return the cluster id as the only cluster, as Burrow does."""
        from penstock.broker.admin import burrow

        names = [self.cluster.image.cluster_id]
        return burrow.answer(request, "cluster list returned", clusters=names)

    @routes.add("GET /v3/kafka/{cluster}", DESCRIBE)
    async def cluster_detail(self, request: Request) -> Response:
        """Return the brokers of the cluster, as Burrow does."""
        from penstock.broker.admin import burrow

        if not self._is_this(request):
            return burrow.failure(request, "cluster module not found")
        return burrow.cluster_detail(request, self.cluster.image)

    @routes.add("GET /v3/kafka/{cluster}/consumer", DESCRIBE)
    async def consumers(self, request: Request) -> Response:
        """Return the ids of this broker's groups, as Burrow does."""
        from penstock.broker.admin import burrow

        if not self._is_this(request):
            return burrow.failure(request, burrow.CLUSTER_NOT_FOUND)
        names = await self.lag().ids()
        return burrow.answer(request, "consumer list returned", consumers=names)

    @routes.add("GET /v3/kafka/{cluster}/consumer/{group:path}/status", DESCRIBE_GROUP)
    async def consumer_status(self, request: Request) -> Response:
        """Return a group's state, and its partitions that are not OK, as Burrow does."""
        return await self._status(request, all_partitions=False)

    @routes.add("GET /v3/kafka/{cluster}/consumer/{group:path}/lag", DESCRIBE_GROUP)
    async def consumer_lag(self, request: Request) -> Response:
        """Return a group's state and all of its partitions, as Burrow does."""
        return await self._status(request, all_partitions=True)

    @routes.add("GET /v3/kafka/{cluster}/consumer/{group:path}", DESCRIBE_GROUP)
    async def consumer(self, request: Request) -> Response:
        """Return the last commits of a group by topic and partition, as Burrow does."""
        from penstock.broker.admin import burrow

        found = await self._found(request)
        if found is None:
            return burrow.failure(request, burrow.GROUP_NOT_FOUND)
        topics = burrow.consumer_detail(*found, self.cluster.image)
        return burrow.answer(request, "consumer detail returned", topics=topics)

    @routes.add("GET /v3/kafka/{cluster}/topic", DESCRIBE)
    async def burrow_topics(self, request: Request) -> Response:
        """Return the names of the topics that the caller may describe, as Burrow does."""
        from penstock.broker.admin import burrow

        if not self._is_this(request):
            return burrow.failure(request, burrow.CLUSTER_NOT_FOUND)
        names = sorted(filter(caller_of(request).sees, self.cluster.image.topics))
        return burrow.answer(request, "topic list returned", topics=names)

    @routes.add("GET /v3/kafka/{cluster}/topic/{topic}", DESCRIBE_TOPIC)
    async def burrow_topic(self, request: Request) -> Response:
        """Return the end offsets of a topic's partitions, as Burrow does."""
        from penstock.broker.admin import burrow

        topic = self.cluster.image.topics.get(request.path_params["topic"])
        if topic is None or not self._is_this(request):
            return burrow.failure(request, burrow.TOPIC_NOT_FOUND)
        places = [TopicPartition(topic.name, row.index) for row in topic.partitions]
        ends = await self.end_offsets.of(places)
        offsets = [ends[where] for where in places if where in ends]
        return burrow.answer(request, "topic offsets returned", offsets=offsets)

    @routes.add("GET /v3/kafka/{cluster}/topic/{topic}/consumers", DESCRIBE_TOPIC)
    async def burrow_topic_consumers(self, request: Request) -> Response:
        """Return this broker's groups with offsets in a topic, as Burrow does."""
        from penstock.broker.admin import burrow

        if not self._is_this(request):
            return burrow.failure(request, burrow.CLUSTER_NOT_FOUND)
        names = await self.lag().groups_of(request.path_params["topic"])
        return burrow.answer(request, "consumers of topic returned", consumers=names)

    def _is_this(self, request: Request) -> bool:
        return bool(request.path_params["cluster"] == self.cluster.image.cluster_id)

    async def _found(self, request: Request) -> tuple[EvaluatedGroup, Owners] | None:
        """Return a group's evaluation and the members of its partitions; None if it is unknown."""
        from penstock.broker.admin.burrow import owners_of
        from penstock.broker.admin.lag import visible

        group_id = request.path_params["group"]
        if not self._is_this(request):
            return None
        self.coordinator.check_owner(group_id)
        described = await self.coordinator.describe(group_id)
        if described is None:
            return None
        committed = await self.control.committed_offsets(group_id, None)
        group = await self.lag().group(group_id, committed)
        owners = owners_of(described, self.cluster.image)
        return visible(group, caller_of(request).sees), owners

    async def _status(self, request: Request, *, all_partitions: bool) -> Response:
        from penstock.broker.admin import burrow

        cluster, group_id = request.path_params["cluster"], request.path_params["group"]
        found = await self._found(request)
        if found is None:
            status = burrow.not_found(cluster, group_id)
            return burrow.answer(request, "consumer status returned", 404, status=status)
        status = burrow.status(*found, self.cluster.image, all_partitions=all_partitions)
        return burrow.answer(request, "consumer status returned", status=status)


# Share groups: the progress of each, and dead letters that cannot be written.
#
# Every broker returns the progress in all partitions. It contains no end offsets; callers request
# those by ListOffsets. Only the broker that writes a dead letter knows why it is delayed.


TROUBLES_MAX: Final = 1000
"""Largest number of share partitions in one response, which also has their total."""


class QueueViews(Struct, frozen=True, kw_only=True):
    node_id: int
    cluster: ClusterMetadata
    share: ShareService

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /v1/dead-letters", DESCRIBE)
    async def dead_letters(self, request: Request) -> dict[str, Any]:
        """Return the share partitions whose dead letters this broker cannot write, with the
        reasons.
        """
        troubles = list(self.share.dead_letters.troubles.values())
        return {
            "node_id": self.node_id,
            "waiting": self.share.dead_letters.waiting,
            "trouble_count": len(troubles),
            "troubles": [asdict(trouble) for trouble in troubles[:TROUBLES_MAX]],
        }

    @routes.add("GET /v1/queues/{group:path}", DESCRIBE_GROUP)
    async def queue(self, request: Request) -> dict[str, Any]:
        """Return the number of a share group's records in each state, by partition.

        Topics that the caller may not describe are omitted.
        """
        await self.cluster.refresh()
        caller = caller_of(request)
        group_id = request.path_params["group"]
        names = {topic.topic_id: topic.name for topic in self.cluster.image.topics.values()}
        states = await self.share.offsets.of_group(group_id)
        settings = self.share.settings_of(group_id)
        dead_letter_topic = settings.dead_letter_topic
        return {
            "group_id": group_id,
            "dead_letter_topic": dead_letter_topic
            if dead_letter_topic and caller.sees(dead_letter_topic)
            else None,
            "delivery_count_limit": settings.limits.delivery_count_limit,
            "partitions": sorted(
                (
                    {"topic": names[topic_id], "partition": index, **_counts(state)}
                    for (topic_id, index), state in states.items()
                    if topic_id in names and caller.sees(names[topic_id])
                ),
                key=lambda row: (row["topic"], row["partition"]),
            ),
        }


def _counts(state: ShareState) -> dict[str, int]:
    counts = dict.fromkeys(RecordState, 0)
    for run in state.runs:
        counts[run.state] += run.records
    return {
        "start_offset": state.start,
        "end_offset": state.runs[-1].last + 1 if state.runs else state.start,
        "available": counts[RecordState.AVAILABLE],
        "acquired": counts[RecordState.ACQUIRED],
        "archiving": counts[RecordState.ARCHIVING],
    }
