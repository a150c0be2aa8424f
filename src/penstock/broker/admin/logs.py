"""State of this broker's logs: damage, compaction and tiering, from memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Needs

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.partitions.local import LocalPartition
    from penstock.partitions.tiering.part import TieredPart
    from penstock.partitions.tiering.service import TierService
    from penstock.storage import LogStore

ROWS_MAX: Final = 1_000
"""Largest number of partitions of each kind, and of files, in one response with their total."""
TIERED_ROWS_MAX: Final = 10_000
"""Largest number of tiered partitions in one response, which also has their total."""


class Parts(Struct, frozen=True, kw_only=True):
    node_id: int
    store: LogStore
    tiers: TierService | None


routes: Final = Routes[Parts, Needs]()


@routes.add("GET /v1/damage", DESCRIBE)
async def damage(parts: Parts, request: Request) -> dict[str, Any]:
    """Return unrepaired damage of logs, and the files that were set aside at start.

    Of each partition only the first damaged range is returned.
    """
    found = parts.store.damages
    kept = await asyncio.to_thread(lambda: parts.store.set_aside)
    return {
        "node_id": parts.node_id,
        "partition_count": len(found),
        "partitions": [
            {"topic": where.topic, "partition": where.partition, "reason": reasons[0]}
            for where, reasons in list(found.items())[:ROWS_MAX]
        ],
        "set_aside_count": len(kept),
        "set_aside": kept[:ROWS_MAX],
    }


@routes.add("GET /v1/compaction", DESCRIBE)
async def compaction(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the dirty ratio, clean offset and failure of each log at its last check.

    Logs with the highest dirty ratio come first.
    """
    ratios, failed = parts.store.dirty_ratios, parts.store.uncleanable
    dirtiest = sorted(ratios.items(), key=lambda item: -item[1])[:ROWS_MAX]
    return {
        "node_id": parts.node_id,
        "partition_count": len(ratios),
        "partitions": [
            {
                "topic": where.topic,
                "partition": where.partition,
                "dirty_ratio": round(ratio, 4),
                "clean_offset": parts.store.clean_offset(where),
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
async def tiers(parts: Parts, request: Request) -> dict[str, Any]:
    """Return local and archived ranges, and copy failures, of tiered partitions on this broker.

    `topic` selects one topic. Values that are not known are null. Followers report their partitions
    too, because their local files differ. Only the leader knows the copy lag.
    """
    service, selected = parts.tiers, request.query_params.get("topic")
    hosted = [] if service is None else list(service.hosted.items())
    found = [
        _tiered(partition, part)
        for partition, part in hosted
        if selected in (None, partition.topic_partition.topic)
    ]
    kept = sorted(found[:TIERED_ROWS_MAX], key=lambda row: (row["topic"], row["partition"]))
    return {
        "node_id": parts.node_id,
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
