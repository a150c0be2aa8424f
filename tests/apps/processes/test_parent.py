"""The parent of processes, with children that do nothing else than end, or do not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal, sys, time
from pathlib import Path
from penstock.apps.serve.parent import Parent, ProcessEnded

def stubborn(alive, ready):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready()
    time.sleep(60)

def ends(alive, ready):
    ready()
    while not told.exists():  # before all are ready, the end of one is the end of all
        time.sleep(0.01)
    raise OSError("no more")

def announce():
    told.touch()
    print("ready", flush=True)

told = Path(sys.argv[1])
parent = Parent(0.2)
parent.add("stubborn", stubborn)
parent.add("ends", ends)
try:
    parent.run(announce)
except ProcessEnded as error:
    print(error, flush=True)
"""


def test_pauses_grow_and_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "told")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said: list[str] = []
        while len(said) < 3:
            line = process.stderr.readline()
            if "restarting it in" in line:
                said.append(line.rpartition("restarting it in ")[2])
            else:
                assert line == "penstock: ends: no more\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert said == ["0.1 s\n", "0.2 s\n", "0.4 s\n"]
    assert out.endswith("stubborn did not stop within 0.2 s: killed\n")
