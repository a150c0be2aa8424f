"""Lagging consumers: each reads one partition of a topic from its start, as fast as it gets it.

    python -m benchmarks.peers.replay_load PORT TOPIC CONSUMERS

They begin one after the other, since consumers that were away do not come back at one instant, and
begin anew when they have read all. `start` lets them in; `stop` ends them and answers with JSON:
what came when, as [monotonic seconds, bytes], and the answers that were errors.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

import uvloop

from benchmarks.peers.bare_client import Link, batches, fetch_request, fetched
from benchmarks.peers.orders import serve_orders

BETWEEN_SECONDS = 0.2
WAIT_MS = 500
PARTITION_BYTES = 1 << 20
"""`max.partition.fetch.bytes`, as clients have it."""
PAUSE_SECONDS = 0.1


class Replay:
    """The consumers, and what came for them."""

    def __init__(self, port: int, topic: str, consumers: int) -> None:
        self._port, self._topic, self._consumers = port, topic, consumers
        self._tasks: list[asyncio.Task[None]] = []
        self._came: list[tuple[float, int]] = []
        self._errors: Counter[int] = Counter()

    async def order(self, line: str) -> str:
        """Start, or stop and tell."""
        if line == "start":
            self._tasks = [asyncio.create_task(self._read(part)) for part in range(self._consumers)]
            return "started"
        for task in self._tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return json.dumps({"came": self._came, "errors": dict(self._errors)})

    async def _read(self, partition: int) -> None:
        await asyncio.sleep(partition * BETWEEN_SECONDS)
        link = await Link.open(self._port)
        position = 0
        try:
            while True:
                request = fetch_request(
                    self._topic,
                    {partition: position},
                    max_wait_ms=WAIT_MS,
                    partition_bytes=PARTITION_BYTES,
                )
                await link.send(request)
                for part in fetched(await link.receive()):
                    if part.error:
                        self._errors[part.error] += 1
                        await asyncio.sleep(PAUSE_SECONDS)
                    position = max([position, *(end for _, end in batches(part.records))])
                    self._came.append((time.monotonic(), len(part.records)))
                    if position >= part.high_watermark:
                        position = 0
        finally:
            link.close()


async def main() -> None:
    port, topic, consumers = sys.argv[1:]
    await serve_orders("", Replay(int(port), topic, int(consumers)).order)


if __name__ == "__main__":
    uvloop.run(main())
