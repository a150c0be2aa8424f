"""What the kernel really grants a socket that asks for a buffer.

`SO_RCVBUF` and `SO_SNDBUF` never fail: a request above the ceiling is cut to it without a word.
So a socket of each kind is opened, asks, is asked what it got, and is closed. That is all its own,
and nothing of the host changes.

Source: socket(7): the kernel doubles the value for its bookkeeping, and reports the double.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.apps.host_reading.files import Tree
from penstock.planner.host_check import BufferOption, Grant, SocketKind

_OPTIONS: Final = {"SO_RCVBUF": socket.SO_RCVBUF, "SO_SNDBUF": socket.SO_SNDBUF}
_FAMILIES: Final = {
    "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM),
}


class Request(NamedTuple):
    """A buffer to ask for."""

    kind: SocketKind
    option: BufferOption
    asked_bytes: int


def read_grants(tree: Tree, requests: Iterable[Request]) -> tuple[Grant, ...]:
    """Ask for each; those that cannot be asked for are left out, with a reason."""
    if not tree.is_here:
        return ()
    found: list[Grant] = []
    for request in dict.fromkeys(requests):
        try:
            found.append(_ask(request))
        except OSError as error:
            tree.missing(f"{request.kind} {request.option}", error.strerror or str(error))
    return tuple(found)


def _ask(request: Request) -> Grant:
    kind, option, asked_bytes = request
    with socket.socket(*_FAMILIES[kind]) as opened:
        opened.setsockopt(socket.SOL_SOCKET, _OPTIONS[option], asked_bytes)
        reported = opened.getsockopt(socket.SOL_SOCKET, _OPTIONS[option])
    return Grant(kind=kind, option=option, asked_bytes=asked_bytes, reported_bytes=reported)
