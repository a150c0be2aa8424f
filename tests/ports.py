"""Ports for servers that cannot choose one themselves, or that must get the same one again.

A port that was free a moment ago may be another process's before the server listens, or while it is
restarted. So each is bound here, without listening, until the process ends: Linux lets a server
that names it listen beside that, assigns it to no other process, and refuses connections
while no server listens.
"""

from __future__ import annotations

import socket
from contextlib import suppress


def free_port(wanted: int = 0) -> int:
    """Reserve a loopback port for the caller alone; raises OSError if `wanted` is taken."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", wanted))
        port: int = holder.getsockname()[1]
        holder.detach()  # the descriptor stays open
    return port


def two_free_ports() -> int:
    """The first of two such ports that follow each other."""
    while True:
        with suppress(OSError):
            return free_port(free_port() + 1) - 1
