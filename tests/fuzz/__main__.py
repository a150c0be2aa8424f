"""Fuzzer of parsers that read bytes before authentication, for long manual runs.

    pip install atheris
    python -m tests.fuzz [TARGET] [options of libFuzzer, as -max_total_time=3600]

Without a target, each input goes to the target that its first byte chooses. Atheris is not a
dependency of the project; without it, mutations without coverage are tried until the process is
stopped.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.mutation import mutated

INSTRUMENTED = ("penstock", "joserfc")


def main(arguments: Sequence[str]) -> None:
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        _without_coverage()
        return
    with atheris.instrument_imports(include=INSTRUMENTED):
        found = importlib.import_module("tests.fuzz.targets")
    named = {name: one for name, one in found.targets().items() if name in arguments}
    chosen = list((named or found.targets()).values())

    def run(data: bytes) -> None:
        if data:
            chosen[data[0] % len(chosen)](data[1:])

    seeds = [bytes([number]) + seed for number, one in enumerate(chosen) for seed in one.seeds] + [
        bytes([number]) + word for number, one in enumerate(chosen) for word in one.words
    ]
    _fuzz(atheris, run, seeds, [argument for argument in arguments if argument not in named])


def _fuzz(
    atheris: object, run: Callable[[bytes], None], seeds: Sequence[bytes], options: Sequence[str]
) -> None:
    with TemporaryDirectory() as directory:
        for number, seed in enumerate(seeds):
            (Path(directory) / f"seed-{number}").write_bytes(seed)
        atheris.Setup([sys.argv[0], directory, "-max_len=20000", *options], run)  # type: ignore[attr-defined]
        atheris.Fuzz()  # type: ignore[attr-defined]


def _without_coverage() -> None:
    from tests.fuzz.targets import targets

    seed = time.time_ns()
    print(f"no atheris: mutations of seed {seed}, until interrupted")
    dice = random.Random(seed)
    while True:
        for target in targets().values():
            target(mutated(target, dice))


if __name__ == "__main__":
    main(sys.argv[1:])
