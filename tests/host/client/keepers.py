"""The threads that keep clients connected, and what they cost."""

from __future__ import annotations

import threading
import time

from penstock.host import HostClient


def keepers() -> set[threading.Thread]:
    """Those of all clients in this process; other tests may have left some that end any time."""
    return {thread for thread in threading.enumerate() if thread.name == "penstock-host-background"}


def keeper_of(client: HostClient) -> threading.Thread:
    assert client._engine is not None
    return client._engine._background


def cpu_seconds(*threads: threading.Thread) -> float:
    """What these threads have used up, whatever others in this process do."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threads
        if thread.ident is not None
    )
