"""Explore every crash of a log store: `python -m sim.storage --help`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from sim.storage.exploring import explore
from sim.storage.plants import PLANTS, planted
from sim.storage.scenarios import SCENARIOS, Scenario


def try_plants(names: Sequence[str]) -> bool:
    """True if each planted bug is found."""
    missed = []
    for name in names:
        result = planted(PLANTS[name])
        print(f"{name:<34} {result}\n    {result.violation or 'NOT FOUND'}", flush=True)
        if not result.violation:
            missed.append(name)
    if missed:
        print(f"not found: {missed}")
    return not missed


def explore_all(scenarios: Sequence[Scenario], seeds: Sequence[int], states: int | None) -> bool:
    """True if everything holds. What the dice do not change is explored with the first seed."""
    total, crashes, cpu_seconds, held = 0, 0, 0.0, True
    for scenario in scenarios:
        for seed in seeds if scenario.name.startswith("mixed") else seeds[:1]:
            result = explore(scenario, seed, states=states)
            total, crashes = total + result.states, crashes + result.crashes
            cpu_seconds += result.cpu_seconds
            print(f"{scenario.name:<16} seed {seed:<4} {result}", flush=True)
            if result.violation:
                held = False
                print(f"VIOLATED: {result.violation}", flush=True)
    print(f"{total} states of {crashes} crashes, {cpu_seconds:.0f} CPU s"
          f"{'' if held else ', VIOLATED'}")  # fmt: skip
    return held


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.storage", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--scenario", choices=names, metavar="NAME", help="one of --list")
    parser.add_argument("--states", type=int, help="so many of each scenario, as the seed chooses")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--mixed", type=int, default=4, help="seeds of the scenario that has dice")
    parser.add_argument("--list", action="store_true", help="name scenarios and planted bugs")
    parser.add_argument("--plants", action="store_true", help="try every planted bug")
    parser.add_argument("--plant", choices=list(PLANTS), default="", metavar="NAME")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the store says of each torn end that it cuts it
    if given.list:
        for scenario in SCENARIOS:
            print(f"{scenario.name:<34} {(scenario.run.__doc__ or '').splitlines()[0]}")
        print("\n".join(f"{name:<34} {plant.what}" for name, plant in PLANTS.items()))
        return 0
    if given.plants or given.plant:
        return 0 if try_plants([given.plant] if given.plant else list(PLANTS)) else 1
    chosen = [scenario for scenario in SCENARIOS if given.scenario in (None, scenario.name)]
    seeds = range(given.seed, given.seed + given.mixed)
    return 0 if explore_all(chosen, seeds, given.states) else 1


if __name__ == "__main__":
    sys.exit(main())
