"""Lookup of start and end offsets, with one request for all partitions of a kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.partitions.port import LookUp, Partition


async def look_up_watermarks(partitions: Iterable[Partition | None]) -> None:
    """Update the offsets of partitions that depend on a lookup; skip None.

    Raises:
        PenstockError: the lookup failed; the partitions keep their last offsets.
    """
    asked: dict[LookUp, list[Any]] = {}
    for partition in partitions:
        if partition is not None and partition.look_up is not None:
            asked.setdefault(partition.look_up, []).append(partition)
    for look_up, together in asked.items():
        await look_up(together)
