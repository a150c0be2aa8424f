"""The targets of fuzzing: some inputs each time, a minute of them by `make test-long`."""

from __future__ import annotations

import random
import time

import pytest

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import targets

SECONDS = 60.0
INPUTS = 150
NAMES = list(targets())


def check(name: str, data: bytes) -> None:
    try:
        targets()[name](data)
    except Exception as error:
        raise AssertionError(f"{name} does not stand {data!r}") from error


@pytest.mark.parametrize("name", NAMES)
def test_mutations(name: str) -> None:
    target, dice = targets()[name], random.Random(17)
    for seed in target.seeds:
        check(name, seed)
        for size in range(0, len(seed), max(1, len(seed) // 50)):
            check(name, seed[:size])
    for _ in range(INPUTS):
        check(name, mutated(target, dice))


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("default")
def test_a_minute_of_mutations() -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    dice, until, count = random.Random(seed), time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        for name in NAMES:
            check(name, mutated(targets()[name], dice))
            count += 1
    assert count > 100 * len(NAMES)
