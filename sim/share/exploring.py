"""Every order of events within bounds, breadth first: no way to a violation is shorter."""

from __future__ import annotations

from dataclasses import dataclass

from sim.share.model import Bounds, Plant, Violation, World, check, steps


@dataclass(frozen=True, slots=True)
class Result:
    """How many states there are within the bounds; the way to a violation, if there is one."""

    states: int
    trace: tuple[str, ...]


NOTHING = Plant()


def explore(bounds: Bounds, plant: Plant = NOTHING) -> Result:
    """Look at every state within `bounds.depth` events of the beginning."""
    begin = World()
    came: dict[World, tuple[World, str] | None] = {begin: None}
    layer = [begin]
    for _ in range(bounds.depth):
        found: list[World] = []
        for world in layer:
            for name, step in steps(world, plant, bounds):
                try:
                    after = step()
                    if after is None or after in came:
                        continue
                    check(after, plant)
                except Violation as violation:
                    return Result(len(came), (*_way(came, world), name, f"VIOLATED: {violation}"))
                came[after] = world, name
                found.append(after)
        layer = found
    return Result(len(came), ())


def _way(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    names: list[str] = []
    step = came[world]
    while step is not None:
        world, name = step
        names.append(name)
        step = came[world]
    return names[::-1]
