"""Bugs of compaction to be found: each breaks one rule, and the checks have to notice."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from penstock.control import DisklessPlane
from penstock.control.values.diskless import SegmentSwap
from penstock.control.values.errors import StaleExtents
from penstock.diskless.compaction import Compactor
from penstock.diskless.consolidation import SegmentWork
from sim.diskless.compaction import Plant


class _Late:
    """A store whose objects are there only when something else is asked of it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._waits: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, pieces: Any) -> None:
        self._waits.append((key, pieces))

    async def get(self, key: str, start: int, size_bytes: int) -> Any:
        waits, self._waits = self._waits, []
        for wait in waits:
            await self._inner.put(*wait)
        return await self._inner.get(key, start, size_bytes)


class _SwapsFirst(Compactor):
    """Swaps the rows before the object is there."""

    def __init__(self, *arguments: Any, store: Any, **options: Any) -> None:
        super().__init__(*arguments, store=_Late(store), **options)


class _WonRaces(SegmentWork):
    async def swap(self, swap: SegmentSwap) -> None:
        with suppress(StaleExtents):
            await super().swap(swap)


class _TakesLostRacesForWon(Compactor):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._segments.__class__ = _WonRaces


class _NotesTheLastAlone(Compactor):
    """Notes keys of the newest extent alone."""

    async def _pass(self, target: Any, found: Any) -> None:
        await super()._pass(target, found._replace(first_dirty=found.extents[-1].base_offset))


class _SwapsBlindly:
    """A plane that swaps whatever is there now."""

    def __init__(self, inner: DisklessPlane) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def swap_extents(self, swap: SegmentSwap) -> None:
        start, end = swap.replaced[0].base_offset, swap.replaced[-1].next_offset
        there = await self._inner.extents(
            swap.topic_id, swap.partition, start=start, end=end, limit=10_000
        )
        if (there[0].base_offset, there[-1].next_offset) == (start, end):
            swap = replace(swap, replaced=tuple(there))
        await self._inner.swap_extents(swap)


class SwapsFirst(Plant):
    compactor = _SwapsFirst


class LosesTombstones(Plant):
    """Lets them go with the next pass, whatever their time."""

    delete_retention_ms = -(10**9)


class TakesLostRacesForWon(Plant):
    compactor = _TakesLostRacesForWon


class NotesTheLastAlone(Plant):
    compactor = _NotesTheLastAlone


class SwapsBlindly(Plant):
    def plane(self, plane: DisklessPlane) -> Any:
        return _SwapsBlindly(plane)


PLANTS: dict[str, type[Plant]] = {
    "swaps first": SwapsFirst,
    "loses tombstones": LosesTombstones,
    "takes lost races for won": TakesLostRacesForWon,
    "notes the last alone": NotesTheLastAlone,
    "swaps blindly": SwapsBlindly,
}
