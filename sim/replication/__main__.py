"""Explore the replication protocol: `python -m sim.replication --help`."""

from __future__ import annotations

import argparse
import sys

from sim.replication.bounds import FULL, QUICK, Bounds
from sim.replication.exploring import Result, explore
from sim.replication.plants import HARMLESS, PLANTS


def show(title: str, result: Result) -> None:
    outcome = "VIOLATED" if result.trace else "holds" if result.complete else "holds so far"
    print(
        f"{title:<76} {outcome:<8} {result.states:>8} states {result.steps:>9} steps,"
        f" depth {result.depth:>2}, {result.cpu_seconds:.1f} CPU s",
        flush=True,
    )


def try_plants(names: list[str], cpu_seconds: float) -> bool:
    """True if each planted bug is found, and nothing harmless is."""
    wrong = []
    for name in names:
        result = explore((PLANTS | HARMLESS)[name].bounds, (PLANTS | HARMLESS)[name], cpu_seconds)
        show(name, result)
        print("\n".join(f"    {line}" for line in result.trace[-1 if len(names) > 1 else 0 :]))
        if bool(result.trace) != (name in PLANTS):
            wrong.append(name)
    if wrong:
        print(f"not as expected: {wrong}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the larger bounds: some minutes")
    parser.add_argument("--list", action="store_true", help="name the planted bugs")
    parser.add_argument("--plants", action="store_true", help="try every planted bug")
    parser.add_argument("--plant", choices=[*PLANTS, *HARMLESS], default="", metavar="NAME")
    parser.add_argument("--seconds", type=float, default=1e9, help="CPU seconds of an exploration")
    for name in ("replicas", "acks", "entries", "claims", "wipes", "deletes"):
        parser.add_argument(f"--{name}", type=int, help="explore these bounds alone")
    parser.add_argument("--syncs", choices=["folded", "separate", "begun"])
    parser.add_argument("--refusals", action="store_true", default=None)
    given = vars(parser.parse_args())
    if given["list"]:
        print("\n".join(f"{name:<34} {plant.what}" for name, plant in (PLANTS | HARMLESS).items()))
        return 0
    if given["plants"] or given["plant"]:
        names = [given["plant"]] if given["plant"] else [*PLANTS, *HARMLESS]
        return 0 if try_plants(names, given["seconds"]) else 1
    chosen = {
        name: given[name] for name in Bounds.__dataclass_fields__ if given.get(name) is not None
    }
    held = True
    for bounds in [Bounds(**chosen)] if chosen else FULL if given["full"] else QUICK:
        result = explore(bounds, cpu_seconds=given["seconds"])
        show(str(bounds), result)
        print("\n".join(result.trace))
        held = held and not result.trace
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
