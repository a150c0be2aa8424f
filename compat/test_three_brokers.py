"""Three brokers with copies of every partition under faults: see `compat/faults`.

`PENSTOCK_FAULTS_MINUTES` and `PENSTOCK_FAULTS_SEED` set how long the long run is, and its faults.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEED = os.environ.get("PENSTOCK_FAULTS_SEED", "3")
MINUTES = os.environ.get("PENSTOCK_FAULTS_MINUTES", "20")


def _run(*arguments: str) -> None:
    command = [sys.executable, "-m", "compat.faults", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    assert done.returncode == 0
    if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
        assert "nothing is cut" not in done.stdout


@pytest.mark.long
@pytest.mark.timeout(420)
def test_nothing_is_lost_or_doubled_in_the_first_faults() -> None:
    _run("--seed", "1", "--minutes", "0.5")


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_nothing_is_lost_or_doubled_for_longer() -> None:
    _run("--seed", SEED, "--minutes", MINUTES)
