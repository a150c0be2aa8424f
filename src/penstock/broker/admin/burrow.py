"""Responses of LinkedIn's Burrow 1.9 for its users: `/v3/kafka` and below, in its JSON.

The cluster's name is the cluster id. Groups are those that this broker coordinates. A partition in
the state ERR, which Burrow does not have, lost records before the group read them.

Source: Burrow's `core/internal/httpserver/structs.go`, `core/protocol/evaluator.go`, `storage.go`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from penstock.base.http_routes import json_response
from penstock.base.ids import TopicPartition
from penstock.broker.groups.consumer.classic_requests import decode_assignment
from penstock.broker.groups.consumer.events import DescribedConsumerGroup
from penstock.broker.groups.runtime.kinds import DescribedGroup
from penstock.broker.lag.rules import COMMITS_MAX, Commit, State
from penstock.broker.lag.service import SAMPLE_SECONDS, EvaluatedGroup, EvaluatedPartition

if TYPE_CHECKING:
    from penstock.broker.groups.coordinator import AnyGroup
    from penstock.control import MetadataImage

CLUSTER_NOT_FOUND: Final = "cluster not found"
GROUP_NOT_FOUND: Final = "cluster or consumer not found"
TOPIC_NOT_FOUND: Final = "cluster or topic not found"

Owners = Mapping[TopicPartition, tuple[str, str]]
"""Host and client id of the member that has a partition."""


def answer(request: Request, message: str, code: int = 200, **facts: Any) -> Response:
    body = {"error": False, "message": message, **facts, "request": _request(request)}
    return json_response(body, code)


def failure(request: Request, message: str, status: int = 404) -> Response:
    body = {"error": True, "message": message, "request": _request(request)}
    return json_response(body, status)


def _request(request: Request) -> dict[str, str]:
    return {"url": request.url.path, "host": socket.gethostname()}


def cluster_detail(request: Request, image: MetadataImage) -> Response:
    module = {
        "class-name": "kafka",
        "servers": [f"{broker.host}:{broker.port}" for broker in image.brokers],
        "client-profile": {
            "name": "", "client-id": "", "kafka-version": "", "tls": None, "sasl": None,
        },
        "topic-refresh": 0,
        "offset-refresh": int(SAMPLE_SECONDS),
    }  # fmt: skip
    return answer(request, "cluster module detail returned", module=module)


def owners_of(described: AnyGroup | None, image: MetadataImage) -> Owners:
    """Return the members that have each partition of a group; empty if that cannot be decoded."""
    found: dict[TopicPartition, tuple[str, str]] = {}
    if isinstance(described, DescribedGroup):
        for member in described.members:
            with suppress(ValueError):  # the assignment of another protocol type
                for name, indexes in decode_assignment(member.assignment).items():
                    owner = member.client_host, member.client_id
                    found |= {TopicPartition(name, index): owner for index in indexes}
    elif isinstance(described, DescribedConsumerGroup):
        for consumer in described.members:
            owner = consumer.client_host, consumer.client_id
            for topic_id, assigned in consumer.assigned.items():
                topic = image.topic_by_id(UUID(bytes=topic_id))
                if topic is not None:
                    found |= {TopicPartition(topic.name, index): owner for index in assigned}
    return found


def consumer_detail(
    group: EvaluatedGroup, owners: Owners, image: MetadataImage
) -> dict[str, list[dict[str, Any]]]:
    """Return the commits of a group by topic; the index in a list is the partition."""
    topics = {
        topic: [_no_commits() for _ in range(count)]
        for topic, count in _partition_counts(group, image).items()
    }
    for found in group.partitions:
        where = found.where
        owner, client_id = owners.get(where, ("", ""))
        commits = found.window.commits()
        topics[where.topic][where.partition] = {
            "offsets": [None] * (COMMITS_MAX - len(commits)) + [_commit(c) for c in commits],
            "owner": owner,
            "client_id": client_id,
            "current-lag": found.evaluation.lag or 0,
        }
    return topics


def _no_commits() -> dict[str, Any]:
    return {"offsets": [], "owner": "", "client_id": "", "current-lag": 0}


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "offset": commit.offset,
        "timestamp": commit.at_ms,
        "observedAt": commit.at_ms,
        "lag": commit.lag,
    }


def not_found(cluster: str, group_id: str) -> dict[str, Any]:
    """Return the status of an unknown group."""
    return {
        "cluster": cluster,
        "group": group_id,
        "status": State.NOTFOUND.name,
        "complete": 1.0,
        "partitions": [],
        "partition_count": 0,
        "maxlag": None,
        "totallag": 0,
    }


def status(
    group: EvaluatedGroup, owners: Owners, image: MetadataImage, *, all_partitions: bool
) -> dict[str, Any]:
    """Return the status of a group; without `all_partitions` only partitions that are not OK.

    As in Burrow, the partitions are all partitions of the topics in which the group has offsets.
    """
    evaluated = {found.where: found for found in group.partitions}
    rows = [
        _partition(where, evaluated.get(where), owners)
        for topic, count in _partition_counts(group, image).items()
        for where in (TopicPartition(topic, index) for index in range(count))
    ]
    complete = sum(found.window.complete for found in group.partitions)
    return {
        "cluster": image.cluster_id,
        "group": group.group_id,
        "status": min(group.summary.state, State.ERR).name,
        "complete": complete / len(rows) if rows else 0.0,
        "partitions": [row for row in rows if all_partitions or row["status"] != State.OK.name],
        "partition_count": len(rows),
        "maxlag": max(rows, key=lambda row: row["current_lag"], default=None),
        "totallag": group.summary.lag,
    }


def _partition_counts(group: EvaluatedGroup, image: MetadataImage) -> dict[str, int]:
    """Return the number of partitions of each topic in which a group has offsets."""
    counts: dict[str, int] = {}
    for found in group.partitions:
        where, known = found.where, image.topics.get(found.where.topic)
        present = 0 if known is None else len(known.partitions)
        counts[where.topic] = max(counts.get(where.topic, present), where.partition + 1)
    return counts


def _partition(
    where: TopicPartition, found: EvaluatedPartition | None, owners: Owners
) -> dict[str, Any]:
    commits = [] if found is None else found.window.commits()
    owner, client_id = owners.get(where, ("", ""))
    return {
        "topic": where.topic,
        "partition": where.partition,
        "owner": owner,
        "client_id": client_id,
        "status": State.OK.name if found is None else found.evaluation.state.name,
        "start": _commit(commits[0]) if commits else None,
        "end": _commit(commits[-1]) if commits else None,
        "current_lag": 0 if found is None else found.evaluation.lag or 0,
        "complete": len(commits) / COMMITS_MAX,
    }
