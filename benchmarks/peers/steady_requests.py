"""One record every few milliseconds over a plain socket, read back at once: what others cost it.

A request is counted from when it was due, so that a stall costs all that it delays. What was
produced is fetched from the end of the log by the same connection, as by a consumer that keeps up.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.peers.bare_client import (
    BatchTemplate,
    fetch_request,
    fetched,
    next_frame,
    produced,
)
from penstock.apps.loads.figures import percentile

PACE_SECONDS = 0.005
SECONDS = 60
FETCHED_BYTES = 1 << 20


class Taken(NamedTuple):
    """When a record was due, and the seconds from then to its acknowledgement, and of its fetch."""

    due: float
    produce: float
    fetch: float


class Phase(NamedTuple):
    """What was taken in a part of a run, and how long that was."""

    taken: list[Taken]
    seconds: float

    def produce_ms(self, share: float) -> float:
        """The time that this share of the records did not exceed."""
        return percentile([request.produce for request in self.taken], share) * 1000

    def fetch_ms(self, share: float) -> float:
        """The same of their fetches."""
        return percentile([request.fetch for request in self.taken], share) * 1000


class SteadyRequests:
    """A running thread."""

    def __init__(self, port: int, topic: str) -> None:
        self._topic = topic
        self._template = BatchTemplate(1, 1024)
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._over = threading.Event()
        self._taken: list[Taken] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def phase(self, begun: float, seconds: float) -> Phase:
        """What was due from a moment on, once so many seconds have passed at least."""
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        ended = time.monotonic()
        return Phase(
            [request for request in list(self._taken) if begun <= request.due < ended],
            ended - begun,
        )

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self._thread.join(SECONDS)
        self._connection.close()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            offset = produced(self._ask(self._template.request(self._topic, 0)))
            acknowledged = time.monotonic()
            request = fetch_request(
                self._topic, {0: offset}, max_wait_ms=1000, partition_bytes=FETCHED_BYTES
            )
            for row in fetched(self._ask(request)):
                if row.error or not len(row.records):
                    raise RuntimeError(f"fetch at offset {offset} failed: error {row.error}")
            ended = time.monotonic()
            self._taken.append(Taken(due, acknowledged - due, ended - acknowledged))
            due += PACE_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))

    def _ask(self, request: bytes) -> memoryview:
        self._connection.sendall(request)
        return next_frame(self._connection)


@contextmanager
def steady_requests(port: int, topic: str) -> Iterator[SteadyRequests]:
    """The thread runs while the block does."""
    steady = SteadyRequests(port, topic)
    try:
        yield steady
    finally:
        steady.stop()
