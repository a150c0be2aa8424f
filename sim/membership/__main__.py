"""`python -m sim.membership --seed 0 --count 1000`: many stories, and what they came to.

Prints one line: stories, events, what happened how often, and a digest of all of it, by which runs
under different hash seeds can be compared. `--tell` tells the stories, `--members` fixes how many
brokers there are. `--figures` measures instead: how long a death takes to be known, and what the
gossip costs.
"""

from __future__ import annotations

import argparse
import hashlib
from collections import Counter

from sim.membership.figures import figures
from sim.membership.world import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m sim.membership")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--members", type=int, default=0)
    parser.add_argument("--tell", action="store_true")
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    if options.figures:
        for line in figures(options.count):
            print(line, flush=True)
        return
    digest, events = hashlib.sha256(), 0
    seen: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        world = run(seed, members=options.members)
        events += world.events
        seen.update(+world.watch.seen)
        digest.update(world.digest().encode())
        if options.tell:
            for told in world.trace:
                print(seed, *told)
    happened = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()))
    print(
        f"{options.count} stories, {events} events ({happened}), digest {digest.hexdigest()[:16]}"
    )


if __name__ == "__main__":
    main()
