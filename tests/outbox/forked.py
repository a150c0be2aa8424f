"""Work in a forked process, with separate memory and descriptors."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

SECONDS_MAX = 60


def exit_code_of(work: Callable[[], None]) -> int:
    """Run `work` in a child of this process; 0 when it returned, 1 when it raised."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        signal.alarm(SECONDS_MAX)
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
