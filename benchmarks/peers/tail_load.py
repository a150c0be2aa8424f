"""A steady producer and the consumers at the end of its log, in one process, so on one clock.

    python -m benchmarks.peers.tail_load PORT LIVE_TOPIC POLLED_TOPIC

The producer sends batches at a steady pace, in turn to the partitions of two topics. Consumers of
the live topic always wait for more; those of the polled topic, one per partition, come
now and then for what has gathered, as a micro-batch does. What is measured:

- a batch's way from the producer to each waiting consumer, and of that the part after the
  acknowledgement: what the broker takes to deliver what it has committed;
- the time from each of their requests to its answer, most of which is waiting for more;
- the time from a poll until all is there that was there then.

It says `ready`; `start` begins, and `stop` waits for what was acknowledged to arrive and answers
with JSON. A batch that does not arrive, or not in order, is an error.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque

import uvloop

from benchmarks.peers.bare_client import (
    BatchTemplate,
    Link,
    batches,
    fetch_request,
    fetched,
    produced,
)
from benchmarks.peers.orders import serve_orders

PARTITIONS = 2
"""Of each topic."""
CONSUMERS = 4
POLL_SECONDS = 1.0
RECORDS_PER_SECOND = 2_000
BATCH_RECORDS = 20
VALUE_BYTES = 1024
WAIT_MS = 500
PARTITION_BYTES = 1 << 20
DRAIN_SECONDS = 10.0
Place = tuple[str, int, int]


class Tail:
    """The whole load. Times are monotonic seconds."""

    def __init__(self, port: int, live: str, polled: str) -> None:
        self._port = port
        self._live, self._polled = live, polled
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._count = 0
        self._sent: dict[Place, float] = {}
        self._acked: dict[Place, float] = {}
        self._seen: list[dict[Place, float]] = [{} for _ in range(CONSUMERS)]
        self._fetches: list[tuple[float, float]] = []
        self._polls: list[tuple[float, float]] = []

    async def order(self, line: str) -> str:
        """Start, or stop and tell."""
        if line == "start":
            ways = [(topic, part) for topic in (self._live, self._polled) for part in
                    range(PARTITIONS)]  # fmt: skip
            work = [self._produce(*way, number) for number, way in enumerate(ways)]
            work += [self._consume(seen) for seen in self._seen]
            work += [self._poll(partition) for partition in range(PARTITIONS)]
            self._tasks = [asyncio.create_task(coroutine) for coroutine in work]
            return "started"
        self._stopping = True
        await self._drain()
        return json.dumps(self._found())

    async def _drain(self) -> None:
        """Wait until all is acknowledged and delivered; raise what a task raised."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            for task in self._tasks:
                if task.done():
                    task.result()
            live = [place for place in self._acked if place[0] == self._live]
            if len(self._acked) == self._count and all(
                len(seen) == len(live) for seen in self._seen
            ):
                return
            await asyncio.sleep(0.02)
        delivered = [len(seen) for seen in self._seen]
        raise RuntimeError(
            f"{self._count} sent, {len(self._acked)} acknowledged, {delivered} delivered"
        )

    def _found(self) -> dict[str, list[tuple[float, float, float]] | list[tuple[float, float]]]:
        deliveries = [
            (at, at - self._sent[place], at - self._acked[place])
            for seen in self._seen
            for place, at in seen.items()
        ]
        acks = [(at, at - self._sent[place]) for place, at in self._acked.items()]
        return {
            "deliveries": sorted(deliveries),
            "acks": sorted(acks),
            "fetches": self._fetches,
            "polls": self._polls,
        }

    async def _produce(self, topic: str, partition: int, number: int) -> None:
        link = await Link.open(self._port)
        under_way: deque[float] = deque()
        template = BatchTemplate(BATCH_RECORDS, VALUE_BYTES)
        pace = 2 * PARTITIONS * BATCH_RECORDS / RECORDS_PER_SECOND
        due = time.monotonic() + pace * number / (2 * PARTITIONS)
        reading: asyncio.Task[None] | None = None
        while not self._stopping:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            # from the time at which it should leave: waiting to be sent counts
            under_way.append(due)
            self._count += 1
            await link.send(template.request(topic, partition))
            due += pace
            if reading is None or reading.done():
                if reading is not None:
                    reading.result()
                work = self._acknowledged(link, topic, partition, under_way)
                reading = asyncio.create_task(work)
        if reading is not None:
            await reading
        link.close()

    async def _acknowledged(
        self, link: Link, topic: str, partition: int, under_way: deque[float]
    ) -> None:
        """Read acknowledgements while there are any to come."""
        while under_way:
            place = (topic, partition, produced(await link.receive()))
            self._sent[place] = under_way.popleft()
            self._acked[place] = time.monotonic()

    async def _consume(self, seen: dict[Place, float]) -> None:
        link = await Link.open(self._port)
        positions = dict.fromkeys(range(PARTITIONS), 0)
        while True:
            asked = time.monotonic()
            await self._ask(link, self._live, positions)
            frame = await link.receive()
            at = time.monotonic()
            self._fetches.append((asked, at - asked))
            for place in _advance(frame, positions):
                seen[place] = at

    async def _poll(self, partition: int) -> None:
        link = await Link.open(self._port)
        positions = {partition: 0}
        due = time.monotonic() + POLL_SECONDS * partition / PARTITIONS
        while not self._stopping:
            due += POLL_SECONDS
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            asked = time.monotonic()
            end = positions[partition] + 1
            while positions[partition] < end:
                await self._ask(link, self._polled, positions)
                frame = await link.receive()
                if end == positions[partition] + 1:
                    end = max(part.high_watermark for part in fetched(frame))
                _advance(frame, positions)
            self._polls.append((asked, time.monotonic() - asked))

    async def _ask(self, link: Link, topic: str, positions: dict[int, int]) -> None:
        await link.send(
            fetch_request(topic, positions, max_wait_ms=WAIT_MS, partition_bytes=PARTITION_BYTES)
        )


def _advance(frame: memoryview, positions: dict[int, int]) -> list[Place]:
    """The batches of an answer; positions move over them, in order."""
    found: list[Place] = []
    for part in fetched(frame):
        if part.error:
            raise RuntimeError(f"{part.topic}-{part.partition}: error code {part.error}")
        for base_offset, next_offset in batches(part.records):
            if next_offset <= positions[part.partition]:
                continue
            if base_offset != positions[part.partition]:
                raise RuntimeError(
                    f"{part.topic}-{part.partition}: offset {base_offset} came,"
                    f" {positions[part.partition]} was due"
                )
            positions[part.partition] = next_offset
            found.append((part.topic, part.partition, base_offset))
    return found


async def main() -> None:
    port, live, polled = sys.argv[1:]
    await serve_orders("", Tail(int(port), live, polled).order)


if __name__ == "__main__":
    uvloop.run(main())
