"""What a store is asked to do while the power may fail: a scenario for each thing that it does, and
one in which the dice choose.

To add one, write a function of a `World` and put it into `SCENARIOS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from sim.storage.world import CONFIG, Bounds, World

STEPS = 40
"""Steps of a scenario that the dice make."""


class Scenario(NamedTuple):
    """What is done, and to what store."""

    name: str
    run: Callable[[World], None]
    bounds: Bounds = Bounds()


def append(world: World) -> None:
    """Leaders' appends to several partitions, some of them made durable together."""
    for number in range(4):
        world.append(0, commit=number % 2 == 1)
        world.append(1, count=3, size=200, producer=False, commit=False)
        world.append(2)
    world.lead(0)
    world.append(0)
    world.checkpoint()
    world.append(0)


def replicate(world: World) -> None:
    """Runs of batches as leaders stamped them, over epochs."""
    world.promise(0, 2, commit=False)
    for number in range(4):
        world.replicate(0, counts=(2, 1, 3), risen=number % 2, commit=number % 2 == 0)
        world.replicate(1, size=150)
    world.checkpoint()
    world.replicate(0, counts=(1, 1), risen=1)


def truncate(world: World) -> None:
    """Cuts of what waits, of what the journal has, of what is synced; and appends behind them."""
    for _ in range(4):
        world.replicate(0, counts=(2, 2), size=90)
    world.truncate(0, 13)
    world.replicate(0, risen=1)
    world.checkpoint()
    world.replicate(0, counts=(2, 2))
    world.write(0)
    world.truncate(0, 5)
    world.replicate(0, counts=(3, 3), risen=1, commit=False)
    world.replicate(1)
    world.checkpoint()
    world.truncate(0, 3, commit=False)
    world.replicate(0, size=30, risen=1)
    world.truncate(0, 0)
    world.replicate(0, counts=(1,), risen=1)


def promise(world: World) -> None:
    """Promises and limbo, of a log that never has a record too."""
    world.promise(0)
    world.replicate(1, commit=False)
    world.promise(1, 3)
    world.checkpoint()
    world.limbo(0, 4)
    world.promise(0, 2)
    world.promise(1, commit=False)
    world.limbo(1, 2)
    world.restart(clean=True)
    world.promise(0)
    world.checkpoint()
    world.limbo(0, -1)
    world.restart(clean=False)
    world.promise(1)


def roll(world: World) -> None:
    """Segments that are full, and what is written of them."""
    for number in range(9):
        world.append(0, size=200)
        if number in (3, 6):
            world.write(0)
        if number == 4:
            world.checkpoint()
        if number == 5:
            world.roll(0)


def snapshot(world: World) -> None:
    """A producer's state at rolls, checkpoints, and at a cut below them."""
    for number in range(5):
        world.replicate(0, size=180)
        if number % 2:
            world.checkpoint()
    world.truncate(0, 5)
    world.replicate(0, counts=(1, 1), producer=False)
    world.checkpoint()
    world.replicate(0, counts=(2,))
    world.restart(clean=True)
    world.replicate(0, counts=(2,))


def checkpoint(world: World) -> None:
    """A journal that is full again and again."""
    for number in range(20):
        world.append(number % 3, size=120, producer=number % 2 == 0)
        if number == 4:
            world.restart(clean=False)
    world.checkpoint()
    world.restart(clean=True)
    world.append(0)


def times(world: World) -> None:
    """Timestamps that fall: the newest entry of a time index is about a segment's first batch."""
    world.falling = True
    for _ in range(6):
        world.replicate(0, size=120)
        world.checkpoint()
    world.roll(0)
    world.replicate(0)
    world.checkpoint()


def retention(world: World) -> None:
    """Segments that are too many, and records that are deleted."""
    for number in range(8):
        world.append(0, size=200)
        world.append(1, size=100)
        if number % 3 == 2:
            world.checkpoint()
            world.upkeep()
    world.delete_records(1, 5)
    world.upkeep()
    world.upkeep()
    world.append(0)
    world.append(1)


def upload(world: World) -> None:
    """Segments that are copied to the archive, and then go by local retention."""
    for number in range(9):
        world.append(0, size=200)
        if number % 3 == 2:
            world.checkpoint()
            world.upkeep()
            world.upload(0)
            world.upkeep()
    world.upkeep()
    world.append(0)


def delete(world: World) -> None:
    """Partitions that are deleted, and made again under the same name."""
    world.append(0, size=200)
    world.append(1)
    world.checkpoint()
    world.append(0)
    world.delete(0)
    world.append(1)
    world.append(0)
    world.upkeep()
    world.delete(0)
    world.append(0, count=3)
    world.checkpoint()
    world.delete(1)
    world.upkeep()
    world.append(0)


def transact(world: World) -> None:
    """Transactions that end either way, and a cut among them."""
    for number in range(6):
        world.transact(0, number % 3, commit=number % 2 == 0)
        if number % 2:
            world.end_transaction(0, number % 3, commits=number % 3 == 0)
        if number == 3:
            world.checkpoint()
    world.end_transaction(0, 0, commits=False)
    world.checkpoint()
    world.truncate(0, 9)
    world.transact(0, 1)
    world.end_transaction(0, 1, commits=False)
    world.checkpoint()
    world.truncate(0, 4)
    for producer in (1, 2, 1, 2, 1):
        world.transact(0, producer)
    world.checkpoint()
    world.transact(0, 2)


def begin(world: World) -> None:
    """Logs that begin anew, with and without what their producers had sent."""
    world.replicate(0, counts=(2, 2), size=150)
    world.begin(0, 10, told=True)
    world.replicate(0, risen=1)
    world.checkpoint()
    world.begin(0, 12, told=False, commit=False)
    world.replicate(0, risen=1, counts=(2, 1), size=200)
    world.begin(1, 5, told=True)
    world.checkpoint()
    world.begin(1, 5, told=False)
    world.replicate(1)


def unsynced(world: World) -> None:
    """What is acknowledged before it is synced is there after a checkpoint."""
    for number in range(10):
        world.append(number % 2, size=150, producer=number % 3 > 0)
        if number in (4, 7):
            world.checkpoint()
        if number == 5:
            world.roll(0)
        if number == 8:
            world.restart(clean=True)


def compact(world: World) -> None:
    """Passes over a log of few keys: what is deleted stays so, whichever swap was the last."""
    for number in range(6):
        world.put(0, [number % 3, 3], commit=number % 2 == 1)
    world.put(0, [number % 2 for number in range(9)])
    world.put(0, [1, 3], value=None)
    world.compact(0)
    world.clock.ms += HORIZON_MS
    world.put(0, [0, 4])
    world.compact(0)
    world.put(0, [4, 5], commit=False)
    world.put(1, [7])
    world.restart(clean=False)
    world.put(0, [5], value=None)
    world.compact(0)


def large(world: World) -> None:
    """Appends that go to their segments first, among small ones, cuts, epochs and restarts."""
    world.append(0, size=30)
    world.append(0, size=200)
    world.append(1, size=200, commit=False)
    world.append(0, size=30, commit=False)
    world.append(0, size=150)
    world.append(2, size=200)
    world.replicate(3, counts=(2, 2), size=120)
    world.replicate(3, size=30)
    world.truncate(3, 3)
    world.replicate(3, counts=(1, 2), size=150, risen=1)
    world.checkpoint()
    world.replicate(3, counts=(2, 1), size=150, risen=1)
    world.truncate(3, 4, commit=False)
    world.replicate(3, counts=(2,), size=200, risen=1)
    world.restart(clean=False)
    world.replicate(3, counts=(1,), size=200)
    world.append(0, size=200)
    world.transact(1, 5)
    world.append(1, size=200)
    world.checkpoint()
    world.replicate(3, counts=(1,), size=200, risen=1)
    world.restart(clean=True)
    world.append(0, size=220)


def mixed(world: World) -> None:
    """Anything, as the dice have it."""
    for _ in range(STEPS):
        anything(world)
    world.commit()


def anything(world: World) -> None:
    """One step."""
    dice = world.dice
    partition = dice.randrange(3)
    held = world.now(partition)
    commit = dice.random() < 0.6
    counts = tuple(dice.randint(1, 3) for _ in range(dice.randint(1, 3)))
    some: dict[str, Callable[[], None]] = {
        "append": lambda: world.replicate(
            partition, counts=counts, risen=int(dice.random() < 0.2),
            size=dice.choice([30, 90, 200]), producer=dice.random() < 0.5, commit=commit,
        ),
        "cut": lambda: world.truncate(
            partition, dice.randint(held.start, held.end), commit=commit
        ),
        "begin": lambda: world.begin(
            partition, held.end + dice.randint(0, 3), told=dice.random() < 0.5, commit=commit
        ),
        "promise": lambda: world.promise(partition, dice.randint(0, 2), commit=commit),
        "limbo": lambda: world.limbo(partition, dice.randint(-1, 9), commit=commit),
        "commit": world.commit,
        "checkpoint": world.checkpoint,
        "write": lambda: world.write(partition),
        "restart": lambda: world.restart(clean=dice.random() < 0.5),
        "delete": lambda: world.delete(partition),
        "delete_records": lambda: world.delete_records(
            partition, dice.randint(held.start, world.log(partition).durable_offset)
        ),
        "upkeep": world.upkeep,
    }  # fmt: skip
    weights = [16, 5, 1, 4, 2, 8, 2, 2, 1, 1, 1, 1]
    some[dice.choices(list(some), weights)[0]]()


HORIZON_MS = 1_000
COMPACTED = Bounds(
    config=replace(
        CONFIG, cleanup_policy=("compact",), segment_bytes=300, min_cleanable_dirty_ratio=0.0,
        delete_retention_ms=HORIZON_MS,
    )
)  # fmt: skip


LARGE = Bounds(journal_append_bytes_max=170)
TIERED = Bounds(config=replace(CONFIG, remote_storage_enable=True, local_retention_bytes=500))
SMALL = Bounds(config=replace(CONFIG, retention_bytes=900))
SCENARIOS = [
    Scenario("append", append),
    Scenario("replica append", replicate),
    Scenario("truncate", truncate),
    Scenario("promise", promise),
    Scenario("roll", roll),
    Scenario("snapshot", snapshot),
    Scenario("checkpoint", checkpoint),
    Scenario("times", times),
    Scenario("retention", retention, SMALL),
    Scenario("upload", upload, TIERED),
    Scenario("deletion", delete),
    Scenario("transactions", transact),
    Scenario("begin anew", begin),
    Scenario("compaction", compact, COMPACTED),
    Scenario("policy interval", unsynced, Bounds("interval")),
    Scenario("policy os", unsynced, Bounds("os")),
    Scenario("large appends", large, LARGE),
    Scenario("mixed", mixed),
    Scenario("mixed, large", mixed, LARGE),
]
