"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

ElectLeaders makes the preferred replica of each partition its leader. The current leader hands over
to it (`broker/partitions/replicas.py`), so no record is lost. An unclean election makes one of the
remaining replicas the leader. Records that only the missing replicas have are lost, and the control
plane records the loss.

A reassignment is stored in the control plane. The partition's leader carries it out
(`broker/partitions/leadership.py`).

Source: KIP-183, KIP-455, KIP-460, KIP-860; `electLeaders` and `alterPartitionReassignments` of
Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.base.errors import InvalidError, PenstockError, RetriableError
from penstock.broker.configuration.configs import topic_config
from penstock.broker.metadata.leaders import is_diskless
from penstock.broker.net.connection import RequestContext
from penstock.broker.net.errors import (
    BadRequest,
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
    error_of,
)
from penstock.broker.topics.plan import check_assignment, check_reachable, check_roles
from penstock.control import Reassignment
from penstock.replication.peer_format import PartitionKey
from penstock.replication.service import HAND_OVER_MS
from penstock.wire.kafka.framing import milliseconds

if TYPE_CHECKING:
    from penstock.broker.configuration.configs import Levels
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.partitions.replicas import Replicas
    from penstock.broker.topics.admin import TopicAdmin
    from penstock.control import ControlPlane, MetadataImage, Partition, Topic

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Asked = tuple[str, int]
Outcomes = dict[Asked, PenstockError | None]


class Replication(Struct, frozen=True, kw_only=True):
    cluster: ClusterMetadata
    control: ControlPlane
    topic_admin: TopicAdmin
    replicas: Replicas | None

    # -- ElectLeaders ---------------------------------------------------------------------------

    async def elect_leaders(self, context: RequestContext, request: Any) -> dict[str, Any]:
        kind = getattr(request, "election_type", _PREFERRED)
        if kind not in (_PREFERRED, _UNCLEAN):
            raise BadRequest(f"election type {kind}: must be 0 (preferred) or 1 (unclean)")
        await self.cluster.refresh()
        image = self.cluster.image
        outcomes: Outcomes = {}
        successors: dict[Asked, Partition] = {}
        for asked in _asked(image, request):
            try:
                successors[asked] = _to_elect(image, asked, unclean=kind == _UNCLEAN)
            except PenstockError as error:
                outcomes[asked] = error
        if kind == _UNCLEAN:
            outcomes |= await self._elect_uncleanly(
                successors, milliseconds(request.timeout) / 1000
            )
        else:
            limit_ms = min(milliseconds(request.timeout), HAND_OVER_MS)
            outcomes |= await self._elect(successors, limit_ms / 1000)
        if request.topic_partitions is None:
            outcomes = {
                asked: outcome
                for asked, outcome in outcomes.items()
                if not isinstance(outcome, ElectionNotNeeded)
            }
        results = _by_topic(outcomes, "partition_id")
        return {
            "replica_election_results": [
                {"topic": name, "partition_result": rows} for name, rows in results.items()
            ]
        }

    async def _elect_uncleanly(
        self, successors: dict[Asked, Partition], seconds: float
    ) -> Outcomes:
        keys = _keys(self.cluster.image, successors)
        elected: set[PartitionKey] = set()
        if self.replicas is not None:
            elected = await self.replicas.elect_uncleanly(list(keys.values()), seconds)
        return {
            asked: None
            if keys[asked] in elected
            else EligibleLeadersNotAvailable(
                f"{asked[0]}-{asked[1]}: none of its replicas {row.replicas} became leader within"
                f" {seconds:g} s; all of them that are registered must respond first"
            )
            for asked, row in successors.items()
        }

    async def _elect(self, successors: dict[Asked, Partition], seconds: float) -> Outcomes:
        keys = _keys(self.cluster.image, successors)
        elected: set[PartitionKey] = set()
        if self.replicas is not None:
            by_key = {keys[asked]: row.replicas[0] for asked, row in successors.items()}
            elected = await self.replicas.elect(by_key, seconds)
        return {
            asked: None
            if keys[asked] in elected
            else PreferredLeaderNotAvailable(
                f"{asked[0]}-{asked[1]}: broker {row.replicas[0]} did not become leader instead of"
                f" broker {row.leader} within {seconds:g} s"
            )
            for asked, row in successors.items()
        }

    # -- reassignments --------------------------------------------------------------------------

    async def alter_partition_reassignments(
        self, context: RequestContext, request: Any
    ) -> dict[str, Any]:
        change_factor = getattr(request, "allow_replication_factor_change", True)
        await self.cluster.refresh()
        outcomes: Outcomes = {}
        orders: dict[Asked, Reassignment] = {}
        minimums = Minimums(self.topic_admin.levels())
        for topic in request.topics:
            for partition in topic.partitions:
                asked = topic.name, partition.partition_index
                try:
                    orders[asked] = reassignment_of(
                        self.cluster.image,
                        minimums,
                        asked,
                        partition.replicas,
                        change_factor=change_factor,
                    )
                    outcomes[asked] = None
                except PenstockError as error:
                    outcomes[asked] = error
        try:
            async with asyncio.timeout(milliseconds(request.timeout) / 1000):
                refused = await self.control.reassign(list(orders.values()))
                await self.cluster.refresh()
        except TimeoutError as error:
            raise TimedOut(
                "the control plane did not respond within the timeout of the request. List the"
                " reassignments before retrying, because it may have stored them"
            ) from error
        outcomes |= {
            asked: refused[order.key] for asked, order in orders.items() if order.key in refused
        }
        return {
            "error_code": 0,
            "error_message": None,
            "allow_replication_factor_change": change_factor,
            "responses": [
                {"name": name, "partitions": rows}
                for name, rows in _by_topic(outcomes, "partition_index").items()
            ],
        }

    async def list_partition_reassignments(
        self, context: RequestContext, request: Any
    ) -> dict[str, Any]:
        await self.cluster.look()
        topics = self.cluster.image.topics
        selected: Iterable[tuple[str, Iterable[int] | None]] = [(name, None) for name in topics]
        if request.topics is not None:
            selected = [(topic.name, topic.partition_indexes) for topic in request.topics]
        found = {
            name: [
                _ongoing(row)
                for row in topics[name].partitions
                if row.move and (numbers is None or row.index in numbers)
            ]
            for name, numbers in selected
            if name in topics
        }
        return {
            "error_code": 0,
            "error_message": None,
            "topics": [{"name": name, "partitions": rows} for name, rows in found.items() if rows],
        }


class Minimums:
    """Values of `min.insync.replicas`, computed once for topics with equal configurations."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._known: dict[frozenset[tuple[str, str]], int] = {}

    def of(self, topic: Topic) -> int:
        key = frozenset(topic.configs.items())
        if key not in self._known:
            config = topic_config(self._levels, topic.configs)
            self._known[key] = config.min_insync_replicas
        return self._known[key]


def reassignment_of(
    image: MetadataImage,
    minimums: Minimums,
    asked: Asked,
    replicas: Sequence[int] | None,
    *,
    change_factor: bool = True,
) -> Reassignment:
    """Return the reassignment to store; a cancellation if `replicas` is None.

    `change_factor` means that the number of replicas may change.

    Raises:
        PenstockError: the reassignment is invalid.
    """
    topic, row = _found(image, asked)
    if is_diskless(topic):
        raise InvalidReplicaAssignment(
            f"topic {topic.name!r} is diskless: its records are in the object store, not on brokers"
        )
    if replicas is None:
        if not row.move:
            raise NotInProgress(f"{topic.name}-{row.index} has no reassignment in progress")
        return Reassignment(topic.topic_id, row.index, None)
    factor = None if change_factor else len(row.target or row.replicas)
    if factor not in (None, len(replicas)):
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} has {factor} replicas, but the request has"
            f" {len(replicas)} and does not allow a change of the replication factor"
        )
    placed = check_assignment(
        replicas, image.brokers, partition=row.index, replication_factor=factor
    )
    check_roles([placed], image, holding=row.copies)
    check_reachable(topic.name, [tuple({*row.replicas, *placed})], image)
    minimum = minimums.of(topic)
    if len(placed) < minimum and {*placed} != {*row.replicas}:
        raise InvalidReplicationFactor(
            f"{topic.name}-{row.index} would have {len(placed)} replicas, fewer than"
            f" min.insync.replicas = {minimum}"
        )
    return Reassignment(topic.topic_id, row.index, placed)


class NotInProgress(InvalidError):
    """Cancellation for a partition without a reassignment."""

    code: ClassVar[str] = "no_reassignment_in_progress"


class TimedOut(RetriableError):
    """Reassignments that the control plane did not confirm in time; the outcome is unknown."""

    code: ClassVar[str] = "request_timed_out"


def _found(image: MetadataImage, asked: Asked) -> tuple[Topic, Partition]:
    name, number = asked
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartition(f"partition {name}-{number} does not exist")
    return topic, topic.partitions[number]


def _ongoing(row: Partition) -> dict[str, Any]:
    return {
        "partition_index": row.index,
        "replicas": row.copies,
        "adding_replicas": row.adding,
        "removing_replicas": row.removing,
    }


def _asked(image: MetadataImage, request: Any) -> Iterable[Asked]:
    if request.topic_partitions is None:
        return [
            (name, row.index) for name, topic in image.topics.items() for row in topic.partitions
        ]
    return dict.fromkeys(
        (topic_partition.topic, n)
        for topic_partition in request.topic_partitions
        for n in topic_partition.partitions
    )


def _to_elect(image: MetadataImage, asked: Asked, *, unclean: bool) -> Partition:
    """Return a partition whose leader the election may change.

    Raises:
        ElectionNotNeeded: the preferred replica leads it; if `unclean`, a majority of its replicas
            is registered.
        PreferredLeaderNotAvailable: the preferred replica is not in sync or not registered.
    """
    (name, number), (_, row) = asked, _found(image, asked)
    live = image.broker(row.leader) is not None
    if live and (row.leader == row.replicas[0] if not unclean else _has_quorum(image, row)):
        raise ElectionNotNeeded(f"broker {row.leader} already leads {name}-{number}")
    if unclean:
        return row
    preferred = row.replicas[0]
    if preferred not in row.isr or image.broker(preferred) is None:
        raise PreferredLeaderNotAvailable(
            f"{name}-{number}: broker {preferred} is not in sync; replicas in sync: {row.isr}"
        )
    return row


def _has_quorum(image: MetadataImage, row: Partition) -> bool:
    """Return whether the brokers of more than half of the replicas are registered."""
    return (
        sum([image.broker(replica) is not None for replica in row.replicas])
        > len(row.replicas) // 2
    )


def _keys(image: MetadataImage, successors: dict[Asked, Partition]) -> dict[Asked, PartitionKey]:
    return {
        asked: PartitionKey(image.topics[asked[0]].topic_id.bytes, row.index)
        for asked, row in successors.items()
    }


def _by_topic(outcomes: Outcomes, index: str) -> dict[str, list[dict[str, Any]]]:
    """Return the results by topic; `index` is the name of the field for the partition number."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, number), outcome in outcomes.items():
        code, message = (0, None) if outcome is None else error_of(outcome)
        entry = {index: number, "error_code": code, "error_message": message}
        topics.setdefault(name, []).append(entry)
    return topics
