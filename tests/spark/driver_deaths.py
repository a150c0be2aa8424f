"""A Spark driver that is killed once at each of its steps, and what its table must hold then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

MORTAL: Final = '''
import os, signal, sys

folder, bootstrap, admin, topic, *steps = sys.argv[1:]

def die(step):
    """Kill this process group once per step, for good."""
    mark = os.path.join(folder, "died-" + step)
    if step in steps and not os.path.exists(mark):
        open(mark, "w").close()
        os.killpg(0, signal.SIGKILL)
'''
"""What a driver's program begins with."""


def outlive(
    program: str,
    folder: Path,
    *arguments: str,
    steps: Sequence[str],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Run a driver until it ends on its own; it must have died once at each step before.

    The arguments are the bootstrap address, the admin address and the topic. `between` looks at
    what each death has left behind.
    """
    command = [sys.executable, "-c", MORTAL + program, str(folder), *arguments, *steps]
    for _ in steps:
        assert _status(command) == -signal.SIGKILL
        between()
    assert _status(command) == 0
    died = {name for name in os.listdir(folder) if name.startswith("died-")}
    assert died == {f"died-{step}" for step in steps}


def _status(command: list[str]) -> int:
    child = subprocess.run(
        command,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()[-3_000:]
    return child.returncode


def assert_each_once(table: DeltaTable, written: pa.Table) -> None:
    """Every value that was written is in the table, and no offset twice."""
    read = table.to_pyarrow_table()
    assert Counter(read["value"].to_pylist()) == Counter(written["value"].to_pylist())
    places = Counter(zip(*read.select(["partition", "offset"]).to_pydict().values(), strict=True))
    assert max(places.values()) == 1
