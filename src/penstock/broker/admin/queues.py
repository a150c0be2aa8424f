"""Share groups: the progress of each, and dead letters that cannot be written.

Every broker returns the progress in all partitions. It contains no end offsets; callers request
those by ListOffsets. Only the broker that writes a dead letter knows why it is delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, DESCRIBE_GROUP, Needs
from penstock.broker.share.values import RecordState

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.admin.access import Caller
    from penstock.broker.metadata import ClusterMetadata
    from penstock.broker.share.record import ShareState
    from penstock.broker.share.service import ShareService

TROUBLES_MAX: Final = 1000
"""Largest number of share partitions in one response, which also has their total."""


class Parts(Struct, frozen=True, kw_only=True):
    node_id: int
    cluster: ClusterMetadata
    share: ShareService


routes: Final = Routes[Parts, Needs]()


@routes.add("GET /v1/dead-letters", DESCRIBE)
async def dead_letters(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the share partitions whose dead letters this broker cannot write, with the reasons."""
    troubles = list(parts.share.dead_letters.troubles.values())
    return {
        "node_id": parts.node_id,
        "waiting": parts.share.dead_letters.waiting,
        "trouble_count": len(troubles),
        "troubles": [asdict(trouble) for trouble in troubles[:TROUBLES_MAX]],
    }


@routes.add("GET /v1/queues/{group:path}", DESCRIBE_GROUP)
async def queue(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the number of a share group's records in each state, by partition.

    Topics that the caller may not describe are omitted.
    """
    await parts.cluster.refresh()
    caller: Caller = request.state.caller
    group_id = request.path_params["group"]
    names = {topic.topic_id: topic.name for topic in parts.cluster.image.topics.values()}
    states = await parts.share.offsets.of_group(group_id)
    settings = parts.share.settings_of(group_id)
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
