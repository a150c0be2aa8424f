"""ElectLeaders: makes the first replica of each partition its leader again.

The leaders hand over (`broker/replicas.py`), so no record is lost. An unclean election lets the
remaining replicas continue; records that only the others have are lost, which is recorded.

Source: KIP-183, KIP-460; `electLeaders` of Kafka's `ReplicationControlManager`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import PenstockError
from penstock.broker.admin_errors import BadRequest
from penstock.broker.connection import RequestContext
from penstock.broker.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
    UnknownTopicOrPartition,
    error_of,
)
from penstock.replication.peer_format import PartitionKey
from penstock.replication.service import HAND_OVER_MS
from penstock.wire.kafka.primitives import milliseconds

if TYPE_CHECKING:
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.replicas import Replicas
    from penstock.control import MetadataImage, Partition

_PREFERRED: Final = 0
_UNCLEAN: Final = 1

Asked = tuple[str, int]
Outcomes = dict[Asked, PenstockError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    cluster: ClusterMetadata
    replicas: Replicas | None


async def elect_leaders(parts: Parts, context: RequestContext, request: Any) -> dict[str, Any]:
    kind = getattr(request, "election_type", _PREFERRED)
    if kind not in (_PREFERRED, _UNCLEAN):
        raise BadRequest(f"election type {kind}: must be 0 (preferred) or 1 (unclean)")
    await parts.cluster.refresh()
    image = parts.cluster.image
    outcomes: Outcomes = {}
    successors: dict[Asked, Partition] = {}
    for asked in _asked(image, request):
        try:
            successors[asked] = _to_elect(image, asked, unclean=kind == _UNCLEAN)
        except PenstockError as error:
            outcomes[asked] = error
    if kind == _UNCLEAN:
        outcomes |= await _elect_uncleanly(parts, successors, milliseconds(request.timeout) / 1000)
    else:
        limit_ms = min(milliseconds(request.timeout), HAND_OVER_MS)
        outcomes |= await _elect(parts, successors, limit_ms / 1000)
    if request.topic_partitions is None:
        outcomes = {
            asked: outcome
            for asked, outcome in outcomes.items()
            if not isinstance(outcome, ElectionNotNeeded)
        }
    return {"replica_election_results": _results(outcomes)}


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
    """Return the partition, whose first replica can lead it and does not."""
    name, number = asked
    topic = image.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition(f"topic {name!r} does not exist")
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartition(f"partition {name}-{number} does not exist")
    row = topic.partitions[number]
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
    """Return whether a majority of the replicas is registered."""
    return (
        sum([image.broker(replica) is not None for replica in row.replicas])
        > len(row.replicas) // 2
    )


async def _elect_uncleanly(
    parts: Parts, successors: dict[Asked, Partition], seconds: float
) -> Outcomes:
    keys = _keys(parts.cluster.image, successors)
    elected: set[PartitionKey] = set()
    if parts.replicas is not None:
        elected = await parts.replicas.elect_uncleanly(list(keys.values()), seconds)
    return {
        asked: None
        if keys[asked] in elected
        else EligibleLeadersNotAvailable(
            f"{asked[0]}-{asked[1]}: none of its replicas {row.replicas} took over within"
            f" {seconds:g} s; all registered replicas must respond first"
        )
        for asked, row in successors.items()
    }


def _keys(image: MetadataImage, successors: dict[Asked, Partition]) -> dict[Asked, PartitionKey]:
    return {
        asked: PartitionKey(image.topics[asked[0]].topic_id.bytes, row.index)
        for asked, row in successors.items()
    }


async def _elect(parts: Parts, successors: dict[Asked, Partition], seconds: float) -> Outcomes:
    keys = _keys(parts.cluster.image, successors)
    elected: set[PartitionKey] = set()
    if parts.replicas is not None:
        by_key = {keys[asked]: row.replicas[0] for asked, row in successors.items()}
        elected = await parts.replicas.elect(by_key, seconds)
    return {
        asked: None
        if keys[asked] in elected
        else PreferredLeaderNotAvailable(
            f"{asked[0]}-{asked[1]}: broker {row.replicas[0]} did not take over from broker"
            f" {row.leader} within {seconds:g} s"
        )
        for asked, row in successors.items()
    }


def _results(outcomes: Outcomes) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, number), outcome in outcomes.items():
        code, message = (0, None) if outcome is None else error_of(outcome)
        entry = {"partition_id": number, "error_code": code, "error_message": message}
        topics.setdefault(name, []).append(entry)
    return [{"topic": name, "partition_result": rows} for name, rows in topics.items()]
