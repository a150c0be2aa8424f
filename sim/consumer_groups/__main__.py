"""`python -m sim.consumer_groups FIRST COUNT [PLANT]`: runs seeds, and prints a digest of all."""

from __future__ import annotations

import hashlib
import sys

from sim.consumer_groups.plants import PLANTS, planted
from sim.consumer_groups.world import run


def main() -> None:
    first, count, *names = sys.argv[1:]
    digest = hashlib.sha256()
    for seed in range(int(first), int(first) + int(count)):
        if names:
            with planted(PLANTS[names[0]]) as plant:
                digest.update(run(seed, plant).encode())
        else:
            digest.update(run(seed).encode())
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
