"""Running a scenario, and checking what every crash of it leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from penstock.base.errors import PenstockError
from sim.disk import Disk
from sim.storage.checks import check, recovered
from sim.storage.crashes import Crash, crashes
from sim.storage.logs import Log, Violation, require
from sim.storage.recording import Point, RecordedDisk
from sim.storage.scenarios import Scenario
from sim.storage.world import Allowed, World

RECOVERIES = 6
"""Crashes of a scenario whose recovery is broken off at each of its own calls."""


Archive = Callable[[int], Mapping[str, bytes]]
Allow = Callable[[int], Mapping[int, Allowed]]


@dataclass(slots=True)
class Result:
    """What came of it; `violation` is the first one, with the way to it."""

    calls: int = 0
    crashes: int = 0
    states: int = 0
    cpu_seconds: float = 0.0
    violation: str = ""
    seen: set[tuple[int, int]] = field(default_factory=set)
    recovered: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.calls:>5} calls {self.crashes:>7} crashes {self.states:>7} states"
            f" {self.cpu_seconds:>7.1f} CPU s"
        )


def explore(
    scenario: Scenario, seed: int = 0, *, states: int | None = None, recoveries: int = RECOVERIES
) -> Result:
    """Check crashes of a scenario: all, or that many that the seed chooses.

    States are counted that differ in what is on the disk or in what may be there.
    """
    result, began = Result(), time.process_time()
    try:
        world = World(seed, scenario.bounds)
        scenario.run(world)
        dice = random.Random(f"{scenario.name}-{seed}")
        _explore(scenario, world.points, world.allowed, result, dice, states, world.archive_at)
        some = None if states is None else 1 + states // (4 * recoveries)
        for image, allowed in _recoveries(world, dice, recoveries):
            disk = RecordedDisk(image)
            recovered(disk, scenario.bounds)
            _explore(scenario, disk.points, partial(_always, allowed), result, dice, some)
    except Violation as violation:
        result.violation = str(violation)
    except PenstockError as error:
        result.violation = f"{scenario.name}: {type(error).__name__}: {error}"
    result.cpu_seconds = time.process_time() - began
    return result


def _explore(
    scenario: Scenario, points: list[Point], allowed_after: Allow, result: Result,
    dice: random.Random, states: int | None, archive_at: Archive = lambda calls: {},
) -> None:  # fmt: skip
    """Check what crashes after each of the calls leave."""
    result.calls += len(points) - 1
    for point, (what, changes) in _chosen(points, dice, states):
        allowed = allowed_after(point.number)
        image = point.disk.image(changes)
        result.crashes += 1
        key = image.fingerprint(), hash(tuple(allowed.items()))
        if key in result.seen:
            continue
        result.seen.add(key)
        result.states += 1
        try:
            there = image.contents()
            for path, data in archive_at(point.number).items():
                require(
                    there.get(path) == data, f"{path} is not in the archive as it was put there"
                )
            check(image, allowed, scenario.bounds, result.recovered)
        except Violation as violation:
            raise Violation(
                f"{scenario.name}: power lost after call {point.number} ({point.call}),"
                f" {what} of {len(point.disk.pending)} survives: {violation}"
            ) from violation


def _always(allowed: Mapping[int, Allowed], calls: int) -> Mapping[int, Allowed]:
    return allowed


def _chosen(
    points: list[Point], dice: random.Random, states: int | None
) -> Iterator[tuple[Point, Crash]]:
    if states is None:
        for point in points:
            for crash in crashes(point.disk.pending, dice):
                yield point, crash
        return
    for _ in range(states):
        point = dice.choice(points)
        yield point, dice.choice(list(crashes(point.disk.pending, dice)))


def _recoveries(
    world: World, dice: random.Random, count: int
) -> Iterator[tuple[Disk, Mapping[int, Allowed]]]:
    """Some disks after a crash, and what a recovery of them finds: what all must find."""
    for _ in range(count):
        point = dice.choice(world.points)
        _, changes = dice.choice(list(crashes(point.disk.pending, dice)))
        image = point.disk.image(changes)
        _, found = recovered(image.copy(), world.bounds)
        allowed = world.allowed(point.number)
        yield image, {where: Allowed(_same(found.get(where), allowed[where])) for where in allowed}


def _same(found: Log | None, allowed: Allowed) -> tuple[Log | None, ...]:
    held = None if found is None else found.held
    return tuple(log for log in allowed.logs if (None if log is None else log.held) == held)
