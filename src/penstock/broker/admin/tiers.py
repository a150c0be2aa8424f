"""Tiered partitions of this broker: local and archived ranges, and copy failures, from memory.

Followers report theirs too, because local files differ; only the leader has the copy lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.partitions.local import LocalPartition
    from penstock.partitions.tiering.part import TieredPart
    from penstock.partitions.tiering.service import TierService

ROWS_MAX: Final = 10_000
"""Partitions in one response; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    node_id: int
    tiers: TierService | None


async def tiers(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the tiered partitions on this broker, of one topic with `topic`; null is unknown."""
    service, selected = parts.tiers, request.query_params.get("topic")
    hosted = [] if service is None else list(service.hosted.items())
    found = [
        _row(partition, part)
        for partition, part in hosted
        if selected in (None, partition.topic_partition.topic)
    ]
    return {
        "node_id": parts.node_id,
        "enabled": service is not None and service.enabled,
        "store": "" if service is None else service.store_url,
        "partition_count": len(found),
        "partitions": sorted(found[:ROWS_MAX], key=lambda row: (row["topic"], row["partition"])),
    }


def _row(partition: LocalPartition, part: TieredPart) -> dict[str, Any]:
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
