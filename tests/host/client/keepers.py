"""The threads that keep clients connected, and what they cost."""

from __future__ import annotations

import threading
import time

from penstock.host import HostClient


def keepers() -> set[threading.Thread]:
    """Return all clients' threads in this process; those of other tests may end any time."""
    return {thread for thread in threading.enumerate() if thread.name == "penstock-host-background"}


def keeper_of(client: HostClient) -> threading.Thread:
    assert client._engine is not None
    return client._engine._background


def cpu_seconds(*threads: threading.Thread) -> float:
    """Return the processor seconds of these threads alone."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threads
        if thread.ident is not None
    )
