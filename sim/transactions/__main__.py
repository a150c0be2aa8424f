"""Explore the transaction coordinator: `python -m sim.transactions --help`."""

from __future__ import annotations

import argparse
import sys

from sim.transactions.bounds import FULL, QUICK
from sim.transactions.exploring import Result, explore
from sim.transactions.plants import PLANTS


def show(title: str, result: Result) -> None:
    outcome = "VIOLATED" if result.trace else "holds" if result.complete else "so far"
    print(
        f"{title:<40} {outcome:<8} {result.states:>8} states {result.steps:>9} steps,"
        f" depth {result.depth:>2}, {result.cpu_seconds:.1f} CPU s",
        flush=True,
    )
    print("\n".join(f"    {line}" for line in result.trace))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the larger bounds: some minutes")
    parser.add_argument("--plants", action="store_true", help="try every planted bug")
    given = parser.parse_args()
    if given.plants:
        results = {name: explore(plant.bounds, plant.kind) for name, plant in PLANTS.items()}
        for name, result in results.items():
            show(name, result)
        return 0 if all(result.trace for result in results.values()) else 1
    held = True
    for bounds in FULL if given.full else QUICK:
        result = explore(bounds)
        show(str(bounds), result)
        held = held and not result.trace
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
