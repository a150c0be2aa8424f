"""Compaction state of this broker's logs: dirty ratios, clean offsets and failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.storage import LogStore

ROWS_MAX: Final = 1_000
"""Partitions of each kind in one response; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    node_id: int
    store: LogStore


async def compaction(parts: Parts, request: Request) -> dict[str, Any]:
    """Return the state of the last check, dirtiest logs first."""
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
