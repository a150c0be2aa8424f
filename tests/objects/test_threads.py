"""Blocking calls on a bounded set of threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.objects import StoreClosed, StoreThrottled
from penstock.objects.threads import Threads


async def test_results_and_errors_come_back() -> None:
    threads = Threads("test", threads_max=2, waiting_max=2)
    assert await threads.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    await threads.close()


async def test_no_more_threads_and_no_more_waiting_than_allowed() -> None:
    threads = Threads("test-bounded", threads_max=2, waiting_max=3)
    gate = threading.Event()
    running = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(5)]
    await asyncio.wait(running, timeout=0)
    with pytest.raises(StoreThrottled, match="5 calls run or wait, the limit is 5"):
        await threads.run(gate.wait)
    names = [thread.name for thread in threading.enumerate()]
    assert sum(name.startswith("test-bounded") for name in names) == 2
    gate.set()
    assert await asyncio.gather(*running) == [True] * 5
    assert await threads.run(lambda: 1) == 1
    await threads.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("test-bounded") for name in names)


async def test_a_cancelled_call_runs_to_its_end() -> None:
    threads = Threads("test", threads_max=1, waiting_max=1)
    gate, ended = threading.Event(), threading.Event()

    def job() -> None:
        gate.wait(60)
        ended.set()

    call = asyncio.ensure_future(threads.run(job))
    await asyncio.wait([call], timeout=0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not ended.is_set()
    gate.set()
    await threads.close()
    assert ended.is_set()


async def test_closing_waits_for_running_calls_and_rejects_new_ones() -> None:
    threads = Threads("test", threads_max=1, waiting_max=9)
    gate = threading.Event()
    calls = [asyncio.ensure_future(threads.run(gate.wait)) for _ in range(3)]
    await asyncio.wait(calls, timeout=0)
    closing = asyncio.ensure_future(threads.close())
    await asyncio.wait([closing], timeout=0)
    with pytest.raises(StoreClosed):
        await threads.run(gate.wait)
    assert not closing.done()
    gate.set()
    await closing
    assert await asyncio.gather(*calls) == [True] * 3
    await threads.close()


def test_one_set_serves_several_loops() -> None:
    threads = Threads("test", threads_max=1, waiting_max=1)
    for number in range(3):
        assert asyncio.run(threads.run(lambda number=number: number)) == number  # type: ignore[misc]
    asyncio.run(threads.close())
    assert threads.outstanding == 0
