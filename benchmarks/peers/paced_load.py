"""Requests at random moments, as many independent producers make them, and their latencies.

The moments are those of a Poisson process, drawn before; a latency counts from the moment at which
a request is due, so that one that has to wait for the client or for another counts as slow. A
thread of its own keeps the time: loops round timers to milliseconds, as much as a sync takes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import uvloop

from benchmarks.peers.bare_client import BatchTemplate, Link, produced, versions, versions_request
from penstock.apps.loads.figures import moments

LINKS = 16
SEED = 7

MakeRequest = Callable[[int], bytes]
"""From the number of a connection to a request."""
Check = Callable[[memoryview], object]


def paced(
    port: int,
    topic: str,
    *,
    partitions: int,
    records: int,
    value_bytes: int,
    per_second: float,
    seconds: float,
) -> list[float]:
    """Send batches of so many records at so many moments per second; seconds until each answer."""
    template = BatchTemplate(records, value_bytes)

    def request(link: int) -> bytes:
        return template.request(topic, link % partitions)

    return uvloop.run(_paced(port, request, produced, per_second, seconds))


def paced_echo(port: int, *, per_second: float, seconds: float) -> list[float]:
    """The same with requests that a broker answers at once, without writing anything."""
    request = versions_request()
    return uvloop.run(_paced(port, lambda _: request, versions, per_second, seconds))


async def _paced(
    port: int, request: MakeRequest, check: Check, per_second: float, seconds: float
) -> list[float]:
    dice = random.Random(SEED)
    links = [await Link.open(port) for _ in range(LINKS)]
    count = int(per_second * seconds)
    due: list[asyncio.Queue[float]] = [asyncio.Queue() for _ in links]
    counts = [len(range(number, count, LINKS)) for number in range(LINKS)]
    loop = asyncio.get_running_loop()

    def keep_time() -> None:
        begin = time.monotonic() + 0.1
        for number, moment in enumerate(moments(begin, count, per_second, dice.random)):
            time.sleep(max(0.0, moment - time.monotonic()))
            loop.call_soon_threadsafe(due[number % LINKS].put_nowait, moment)

    with ThreadPoolExecutor(1) as pool:
        keeping = loop.run_in_executor(pool, keep_time)
        found = await asyncio.gather(
            *(
                _one(link, number, request, check, due[number], counts[number])
                for number, link in enumerate(links)
            )
        )
        await keeping
    for link in links:
        link.close()
    return [latency for part in found for latency in part]


async def _one(
    link: Link,
    number: int,
    request: MakeRequest,
    check: Check,
    due: asyncio.Queue[float],
    count: int,
) -> Sequence[float]:
    """One connection: requests leave when they are due, whatever is not answered yet."""
    moments: list[float] = []

    async def send() -> None:
        for _ in range(count):
            moments.append(await due.get())
            await link.send(request(number))

    sending = asyncio.create_task(send())
    latencies = []
    for place in range(count):
        check(await link.receive())
        latencies.append(time.monotonic() - moments[place])
    await sending
    return latencies
