"""Tells systemd when a daemon is ready, and when it stops.

A unit of `Type=notify` has started when the daemon says so over a datagram socket that is named in
its environment. Without that name, under any other supervisor, nothing happens.

Source: `sd_notify(3)`, the section on implementing the protocol without its library.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

logger = logging.getLogger(__name__)

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
MICROSECONDS_PER_MS: Final = 1000


def notify_ready(environment: Mapping[str, str] = os.environ) -> bool:
    """Say that clients can connect; True if a supervisor was told."""
    return notify(READY, environment=environment)


def notify_stopping(within_ms: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Say that the daemon stops and may take `within_ms`, even if the unit's own limit is less."""
    extension = f"EXTEND_TIMEOUT_USEC={within_ms * MICROSECONDS_PER_MS}"
    return notify(STOPPING, extension, environment=environment)


def notify(*states: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send `states` as one message; True if a supervisor was told.

    Never blocks and never raises: a supervisor that is gone is no reason to stop serving.
    """
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # a name in the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(states).encode(), address)
    except OSError as error:
        logger.warning("%s=%s was not told %s: %s", VARIABLE, address, states, error)
        return False
    return True
