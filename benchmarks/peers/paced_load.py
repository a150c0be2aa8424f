"""Produce requests at random moments, as many independent producers make them, and their latencies.

The moments are those of a Poisson process, drawn before; a latency counts from the moment at which
a request is due, so that one that has to wait for the client or for another counts as slow.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence

import uvloop

from benchmarks.peers.bare_client import BatchTemplate, Link, produced

LINKS = 16
SEED = 7


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
    return uvloop.run(
        _paced(port, topic, partitions, BatchTemplate(records, value_bytes), per_second, seconds)
    )


async def _paced(
    port: int,
    topic: str,
    partitions: int,
    template: BatchTemplate,
    per_second: float,
    seconds: float,
) -> list[float]:
    dice = random.Random(SEED)
    links = [await Link.open(port) for _ in range(LINKS)]
    gaps = [dice.expovariate(per_second) for _ in range(int(per_second * seconds))]
    due: list[deque[float]] = [deque() for _ in links]
    moment = time.monotonic() + 0.1
    for number, gap in enumerate(gaps):
        moment += gap
        due[number % LINKS].append(moment)
    found = await asyncio.gather(
        *(
            _one(link, topic, number % partitions, template, mine)
            for number, (link, mine) in enumerate(zip(links, due, strict=True))
        )
    )
    for link in links:
        link.close()
    return [latency for part in found for latency in part]


async def _one(
    link: Link, topic: str, partition: int, template: BatchTemplate, due: Sequence[float]
) -> list[float]:
    """One connection: requests leave when they are due, whatever is not answered yet."""

    async def send() -> None:
        for moment in due:
            await asyncio.sleep(max(0.0, moment - time.monotonic()))
            await link.send(template.request(topic, partition))

    sending = asyncio.create_task(send())
    latencies = []
    for moment in due:
        produced(await link.receive())
        latencies.append(time.monotonic() - moment)
    await sending
    return latencies
