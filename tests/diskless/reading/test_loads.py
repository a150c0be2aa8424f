"""Running loads are deduplicated, bounded and stopped."""

from __future__ import annotations

import asyncio

from penstock.diskless.reading.loads import Loads


async def test_nothing_is_begun_twice_and_not_more_than_the_bound() -> None:
    loads, done = Loads[str](2), asyncio.Event()

    async def work(*names: str) -> None:
        try:
            await done.wait()
        finally:
            loads.end(names)

    assert loads.fresh(["a", "b", "a"]) == ["a", "b"]
    loads.begin(["a"], work("a"))
    assert loads.fresh(["a", "b"]) == ["b"]
    loads.begin(["b"], work("b"))
    assert loads.fresh(["c"]) == [], "two are under way"
    done.set()
    async with asyncio.timeout(60):
        while not loads.fresh(["c"]):
            await asyncio.sleep(0)
    assert loads.fresh(["a", "b", "c"]) == ["a", "b", "c"]


async def test_the_end_cancels_what_is_under_way_and_nothing_begins_after_it() -> None:
    loads, ended = Loads[int](10), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    loads.begin([1], work())
    await asyncio.sleep(0)
    await loads.stop()
    assert ended == [1]
    assert loads.fresh([2]) == []
    await loads.stop()


async def test_what_is_the_same_ends_together() -> None:
    loads, done = Loads[str](10), asyncio.Event()

    async def work() -> None:
        await done.wait()
        loads.end(["a"])

    loads.is_same("a", "b")
    assert loads.fresh(["b"]) == ["b"], "nothing is under way that it could be"
    loads.begin(["a"], work())
    loads.is_same("a", "b")
    assert loads.fresh(["a", "b", "c"]) == ["c"]
    done.set()
    async with asyncio.timeout(60):
        while not loads.fresh(["a"]):
            await asyncio.sleep(0)
    assert loads.fresh(["a", "b"]) == ["a", "b"]
