"""Ports for servers that cannot choose one themselves, or that must get the same one again.

The system gives those of its own range to every outgoing connection and to everybody who asks for
port 0: one that was free a moment ago may be taken before the server listens, or while it is
restarted. So these lie below that range. Each process begins at another place.
"""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, LAST = 20_000, 31_999
_STRIDE = 61
_numbers = count(os.getpid() * _STRIDE)


def free_port() -> int:
    """A loopback port that nobody listens on, and that nobody is given by chance."""
    for _ in range(LAST - FIRST):
        port = FIRST + next(_numbers) % (LAST - FIRST + 1)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port of {FIRST} to {LAST} is free")
