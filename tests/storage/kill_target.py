"""A process that appends and prints what was acknowledged, until it is killed.

    python -m tests.storage.kill_target DIRECTORY SEED [STEPS]

With STEPS it makes no more turns than that, begins when a line comes, and has retention.

One line per group: partition, first sequence, count and base offset of each append in it, after the
store's callback. Producers are idempotent; sequences continue those of the log.

One more partition is a replica. A line `+ NUMBER KIND VALUE FILL` comes before each thing that is
done to it: `append` VALUE records in a batch filled with FILL, `cut` at offset VALUE, `promise`
epoch VALUE; a line `= NUMBER` when all up to that one are durable.

Another one has transactions, of which nothing is printed: what its log knows of them must be what
its batches say.
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from itertools import count
from pathlib import Path

from penstock.records.header import TRANSACTIONAL_FLAG
from penstock.records.transactions import UNGUARDED, Marker
from penstock.storage import LogConfig, PartitionLog, StorageError
from tests.storage.batches import Harness, batch, stamped

PARTITIONS = 3
REPLICA = PARTITIONS
"""The partition that is a replica."""

TRANSACTIONS = PARTITIONS + 1
"""The partition that has transactions."""


RETAINED = LogConfig(
    segment_bytes=1 << 16, retention_ms=-1, retention_bytes=1 << 18, file_delete_delay_ms=0
)


def acknowledge(line: str, future: asyncio.Future[StorageError | None]) -> None:
    if future.result() is None:
        print(line, flush=True)


class Replica:
    """Does things to the replica, and says so before."""

    def __init__(self, harness: Harness, dice: random.Random) -> None:
        self._log = harness.log(REPLICA)
        self._dice = dice
        self.number = 0

    def step(self) -> None:
        log, dice = self._log, self._dice
        end = log.log_end_offset
        kind = dice.choice(["append", "append", "append", "cut", "promise"])
        fill = dice.randrange(256)
        value = {
            "append": dice.randint(1, 5),
            "cut": dice.randint(max(log.log_start_offset, end - 10), end),
            "promise": log.replica.promised + dice.randint(0, 1),
        }[kind]
        self.number += 1
        print(f"+ {self.number} {kind} {value} {fill}", flush=True)
        if kind == "append":
            size = dice.choice([40, 500, 30_000])
            epoch = max(log.replica.promised, log.leader_epoch)
            log.replica.append(stamped(value, end, epoch, fill=fill, size=size), now_ms=1)
        elif kind == "cut":
            log.replica.truncate(value, floor=0)
        else:
            log.replica.promise(value)


def step_of_transaction(log: PartitionLog, dice: random.Random) -> None:
    """A batch of a producer, or the end of its transaction."""
    producer_id = dice.randrange(5)
    if dice.random() < 0.4:
        log.transactions.append_marker(Marker(producer_id, 0, 0, dice.random() < 0.5), now_ms=1)
        return
    last = {producer.producer_id: producer.last_sequence for producer in log.producers()}
    data = batch(
        dice.randint(1, 3), size=dice.choice([40, 9000]), producer_id=producer_id, epoch=0,
        sequence=last.get(producer_id, -1) + 1, attributes=TRANSACTIONAL_FLAG,
    )  # fmt: skip
    log.append(data, now_ms=1, guard=UNGUARDED)


def sequences_of(harness: Harness) -> list[int]:
    """The next one of each partition."""
    sequences = [0] * PARTITIONS
    for partition in range(PARTITIONS):
        for entry in harness.log(partition).producers():
            sequences[partition] = entry.last_sequence + 1
    return sequences


def append(harness: Harness, dice: random.Random, sequences: list[int]) -> str:
    """To one of the partitions; what is to be printed of it."""
    partition = dice.randrange(PARTITIONS)
    records, first = dice.randint(1, 5), sequences[partition]
    data = batch(
        records, size=dice.choice([40, 500, 30_000]), fill=first, producer_id=partition, epoch=0,
        sequence=first,
    )  # fmt: skip
    base = harness.append(data, partition)
    sequences[partition] += records
    return f"{partition} {first} {records} {base}"


async def run(directory: Path, seed: int, steps: int | None) -> None:
    dice = random.Random(seed)
    harness = Harness(
        directory,
        config=RETAINED if steps else LogConfig(segment_bytes=1 << 18, retention_ms=-1),
        journal_file_bytes=1 << 20,
        journal_files_max=2,
        log_checkpoint_bytes=1 << 19,
        tail_cache_bytes=1 << 18,
        log_retention_check_interval_ms=1,
    )
    harness.store.attach(asyncio.get_running_loop().call_soon_threadsafe)
    sequences = sequences_of(harness)
    replica = Replica(harness, dice)
    print("ready", flush=True)
    if steps:
        sys.stdin.readline()
    for _ in count() if steps is None else range(steps):
        waiting = []
        for _ in range(dice.choice([1, 1, 2, 8])):
            lines = list[str]()
            for _ in range(dice.choice([0, 2, 4])):
                step_of_transaction(harness.log(TRANSACTIONS), dice)
            for _ in range(dice.choice([0, 1, 3])):
                replica.step()
            many = dice.choice([1, 3])
            lines += [append(harness, dice, sequences) for _ in range(many)]
            future: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
            harness.store.flush(future.set_result)
            future.add_done_callback(partial(acknowledge, "|".join(lines)))
            number = replica.number
            if number:
                future.add_done_callback(partial(acknowledge, f"= {number}"))
            waiting.append(future)
        harness.store.commit_pending()
        if steps:
            harness.clock.ms += 10
            harness.store.housekeeping(harness.clock.ms)
        if dice.random() < 0.5:
            await asyncio.gather(*waiting)
        await asyncio.sleep(0)
    harness.store.close()


if __name__ == "__main__":
    asyncio.run(
        run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else None)
    )
