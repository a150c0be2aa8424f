"""Run a command, and say what it and everything that it started used.

    python -m benchmarks.peers.whole_tree RESULT COMMAND…

The result is one JSON object in the file RESULT, written when the last process has ended: the
command's status, its wall seconds, and the CPU seconds of all. A process whose parent has ended
becomes a child of this one (PR_SET_CHILD_SUBREAPER), so that none ends uncounted, as Java machines
that outlive the Python that started them otherwise do. SIGTERM and SIGINT are passed on.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_CHILD_SUBREAPER: Final = 36


def main(result: Path, command: list[str]) -> None:
    """Run it to its end and the end of all that it left behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "this system cannot adopt orphans")
    begun = time.perf_counter()
    child = subprocess.Popen(command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda said, _: child.send_signal(said))
    status = child.wait()
    seconds = time.perf_counter() - begun
    with suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {"status": status, "seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime}
    result.with_suffix(".new").write_text(json.dumps(said))
    result.with_suffix(".new").rename(result)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
