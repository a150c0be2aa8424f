"""Damage found in this broker's logs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.storage import LogStore

ROWS_MAX: Final = 1_000
"""Partitions, and files, in one response; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    node_id: int
    store: LogStore


async def damage(parts: Parts, request: Request) -> dict[str, Any]:
    """Return unrepaired ranges, the first of each partition, and files set aside at start."""
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
