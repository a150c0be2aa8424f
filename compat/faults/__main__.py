"""`python -m compat.faults`: see the package's text. Ends with status 1 if something was found."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tests.postgres import programs

from compat.faults.kinds import KINDS
from compat.faults.network import enter
from compat.faults.run import Broken, Plan, run

MANY = 1 << 30


def main() -> int:
    """Run, and say what was found."""
    parser = argparse.ArgumentParser(prog="python -m compat.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=MANY, help="end after so many")
    parser.add_argument("--minutes", type=float, default=MANY, help="begin none after this time")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS])
    arguments = parser.parse_args()
    if arguments.faults == arguments.minutes == MANY:
        parser.error("--faults or --minutes must be given")
    with tempfile.TemporaryDirectory() as fetched:
        programs(Path(fetched))  # inside there is no network to fetch them from
    cuts = enter(["-m", "compat.faults", *sys.argv[1:]])
    if not cuts:
        print("No namespaces of networks are to be had here: nothing is cut.")
    plan = Plan(
        seed=arguments.seed,
        faults=arguments.faults,
        seconds=arguments.minutes * 60,
        kinds=frozenset(arguments.kind or [kind.name for kind in KINDS]),
    )
    directory = Path(tempfile.mkdtemp(prefix="penstock-faults-"))
    try:
        run(plan, directory, cuts=cuts)
    except Broken as error:
        print(f"{error}\nLogs are kept in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
