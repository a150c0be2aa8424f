"""Have it said where partitions begin and end now, with one question for all of a kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.partitions.port import LookUp, Partition


async def look_up_watermarks(partitions: Iterable[Partition | None]) -> None:
    """Ask for those that do not know it of themselves; None is left out.

    Raises:
        PenstockError: who knows cannot be asked; the partitions say what they last heard.
    """
    asked: dict[LookUp, list[Any]] = {}
    for partition in partitions:
        if partition is not None and partition.look_up is not None:
            asked.setdefault(partition.look_up, []).append(partition)
    for look_up, together in asked.items():
        await look_up(together)
