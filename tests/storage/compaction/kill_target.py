"""A process that writes to a compacted log, and has it compacted by threads, until it is killed.

    python -m tests.storage.compaction.kill_target DIRECTORY SEED STEPS [START]

It waits for a line. With START it opens the store only then; otherwise it has opened it, and prints
its threads. Before each append it prints the append as JSON:
`["send", OFFSET, NOW, PAIRS, PRODUCER, TRANSACTIONAL]` or `["end", OFFSET, PRODUCER, COMMITS]`;
and `=` when it is acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import penstock.storage.compaction.rewriting  # noqa: F401 - or a kill finds it being loaded
from penstock.storage import StorageError
from tests.storage.compaction.keyed import Keyed, Pair

KEYS = 9
PRODUCERS = [(-1, False), (3, False), (5, True), (6, True)]
"""Those that send, and which of them in transactions."""
STEP_MS, LIFE_MS = 10, 1_000

Texts = Sequence[tuple[str, str | None]]


def opened(directory: Path, life: int) -> Keyed:
    """The log, in the so manieth life of its process."""
    place = Keyed(
        directory, log_cleaner_threads=2, log_checkpoint_bytes=1 << 16,
        log_cleaner_io_buffer_size=1 << 14,
    )  # fmt: skip
    place.configure(segment_bytes=3000, delete_retention_ms=4 * STEP_MS)
    place.harness.clock.ms += life * LIFE_MS
    return place


def pairs(texts: Texts) -> list[Pair]:
    """Keys and values as bytes."""
    return [(key.encode(), None if value is None else value.encode()) for key, value in texts]


def say(*what: object) -> None:
    print(json.dumps(what), flush=True)


def send(place: Keyed, dice: random.Random) -> None:
    texts = [
        (f"key {dice.randrange(KEYS)}", None if dice.random() < 0.2 else dice.randbytes(20).hex())
        for _ in range(dice.randint(1, 5))
    ]
    producer, transactional = dice.choice(PRODUCERS)
    say("send", place.log.log_end_offset, place.now_ms, texts, producer, transactional)
    codec = dice.choice([0, 0, 4])
    place.send(pairs(texts), codec=codec, producer_id=producer, transactional=transactional)
    print("=", flush=True)


def end(place: Keyed, dice: random.Random) -> None:
    producer, commits = dice.choice([5, 6]), dice.random() < 0.6
    say("end", place.log.log_end_offset, producer, commits)
    place.end(producer, commits=commits)
    print("=", flush=True)


async def run(place: Keyed, dice: random.Random, steps: int) -> None:
    store = place.harness.store
    for _ in range(steps):
        for _ in range(dice.randint(1, 6)):
            send(place, dice)
        for _ in range(dice.randint(0, 2)):
            end(place, dice)
        place.log.state.roll()
        ended: asyncio.Future[StorageError | None] = asyncio.Future()
        store.checkpoint(ended.set_result)
        if dice.random() < 0.7:
            await ended
        place.harness.clock.ms += STEP_MS
        store.housekeeping(place.now_ms)
        await asyncio.sleep(0.001 * dice.randint(0, 3))
    store.close()


def start(directory: Path, seed: int) -> Keyed:
    """The log, with a loop and threads."""
    place = opened(directory, seed)
    store = place.harness.store
    store.attach(asyncio.get_running_loop().call_soon_threadsafe)
    for worker in (store._syncer, *(slot.worker for slot in store._cleaner._slots)):
        worker.submit(threading.get_native_id, lambda *_: None)
        worker.drain()
    return place


async def main() -> None:
    directory, seed, steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if at_start := sys.argv[4:]:
        print("ready", flush=True)
        sys.stdin.readline()
    place = start(directory, seed)
    if not at_start:
        threads = {thread.name: thread.native_id for thread in threading.enumerate()}
        print("ready", json.dumps(threads), flush=True)
        sys.stdin.readline()
    await run(place, random.Random(seed), steps)


if __name__ == "__main__":
    asyncio.run(main())
