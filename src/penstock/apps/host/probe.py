"""Probe of a host agent: connects to its socket and sends a PING, without a producer's handshake.

The answer has the last known state of the sink, so the probe does not wait for the sink.

Source: `host-ipc.txt`: a health check must connect, because an existing socket file proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.wire.frames import (
    DRAIN,
    HELLO_ACK,
    PING,
    PONG,
    Header,
    MalformedFrame,
    decode,
    encode,
)

ANSWER_BYTES_MAX: Final = 4096
TIMEOUT_SECONDS: Final = 0.9
"""Longest duration of a probe: shorter than a second, the shortest timeout of a supervisor's health
check.
"""
BLOCKED: Final = "blocked"
_TOKEN: Final = 0x70656E73746F636B


class NotHealthy(UnavailableError):
    """No agent answers at the socket, or the agent does not accept producers or data.

    `there` is true if a process listens at the socket.
    """

    code: ClassVar[str] = "network_exception"

    def __init__(self, message: str, *, there: bool = False) -> None:
        super().__init__(message)
        self.there = there


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Answer of a host agent to a probe: its state, and the times to connect and to answer."""

    path: str
    state: str
    """`serving`, `draining`, `refusing` (rejects producers), or `blocked` (its sink accepts no
    data).
    """
    reason: str
    """The agent's reason for another state than `serving`."""
    connect_ms: float
    answer_ms: float


def probe(
    path: str, *, timeout_seconds: float = TIMEOUT_SECONDS, clock: Clock = SYSTEM_CLOCK
) -> Probed:
    """Connect to an agent, send a PING, and return its answer.

    Raises:
        NotHealthy: no process listens, or none answers in time.
    """
    began = clock.monotonic()
    by = began + timeout_seconds
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            peer.settimeout(timeout_seconds)
            peer.connect(path)
            connected = clock.monotonic()
            with contextlib.suppress(BrokenPipeError):  # bytes sent before it closed count
                peer.sendall(encode(Header(type=PING, token=_TOKEN)))
            header = _answer(peer, by, clock)
        except TimeoutError:
            raise NotHealthy(
                f"socket {path}: no answer within {timeout_seconds:g} s", there=True
            ) from None
        except BlockingIOError:
            raise NotHealthy(
                f"socket {path}: the agent accepts no connections", there=True
            ) from None
        except (OSError, MalformedFrame) as error:
            said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
            raise NotHealthy(f"socket {path}: {said}") from None
    now = clock.monotonic()
    admits = BLOCKED if header.reason else "serving"
    state = {DRAIN: "draining", HELLO_ACK: "refusing"}.get(header.type, admits)
    return Probed(
        path=path,
        state=state,
        reason=header.reason,
        connect_ms=(connected - began) * 1000,
        answer_ms=(now - connected) * 1000,
    )


def _answer(peer: socket.socket, by: float, clock: Clock) -> Header:
    """Return the agent's answer to the PING: PONG, or DRAIN or HELLO_ACK if it accepts no
    producers.

    `by` is the time on the clock at which the wait ends.

    Raises:
        OSError: the agent sent another frame or closed the connection.
        TimeoutError: there was no answer in time.
    """
    data = bytearray()
    while len(data) < ANSWER_BYTES_MAX:
        left = by - clock.monotonic()
        if left <= 0:
            raise TimeoutError
        peer.settimeout(left)
        piece = peer.recv(ANSWER_BYTES_MAX)
        if not piece:
            raise OSError("the agent closed the connection without an answer")
        data += piece
        frame, _ = decode(bytes(data), 0, ANSWER_BYTES_MAX)
        if frame is not None:
            header = frame.header
            if header.type in (DRAIN, HELLO_ACK) or (
                header.type == PONG and header.token == _TOKEN
            ):
                return header
            raise OSError(
                f"the agent answered PING with a frame of type {int(header.type)}, expected PONG"
            )
    raise OSError(f"received {ANSWER_BYTES_MAX} bytes without a complete answer")
