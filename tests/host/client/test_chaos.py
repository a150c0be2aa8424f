"""Threads that publish and wait in every way there is, while connections are cut.

What is looked for is a thread that waits for ever: a wake-up that was lost when the leader left,
a gate that stayed closed, a piece that was never sent.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.host import HostClient
from tests.host.client.agents import ThreadAgent

THREADS = 6
SECONDS = 2.0
LONGEST_WAIT_SECONDS = 40.0


@pytest.fixture
def switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Worker(threading.Thread):
    """Publishing thread that fails if anything takes too long."""

    def __init__(self, client: HostClient, seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.client = client
        self.dice = random.Random(seed)
        self.halt = stop
        self.error: BaseException | None = None
        self.rounds = 0

    def run(self) -> None:
        ways: list[Callable[[], None]] = [
            self.send, self.one, self.burst, self.called_back, self.flushed, self.impatient,
            self.batch,
        ]  # fmt: skip
        try:
            while not self.halt.is_set():
                started = time.monotonic()
                self.dice.choice(ways)()
                assert time.monotonic() - started < LONGEST_WAIT_SECONDS
                self.rounds += 1
        except BaseException as error:
            self.error = error

    def payload(self) -> bytes:
        return bytes(self.dice.choice([10, 1000, 100_000]))

    def send(self) -> None:
        self.client.send(self.payload(), timeout=LONGEST_WAIT_SECONDS)

    def one(self) -> None:
        self.client.publish(self.payload()).result(LONGEST_WAIT_SECONDS)

    def burst(self) -> None:
        futures = [self.client.publish(b"y" * 100) for _ in range(self.dice.randrange(1, 30))]
        futures[-1].result(LONGEST_WAIT_SECONDS)
        futures[0].result(LONGEST_WAIT_SECONDS)

    def called_back(self) -> None:
        called = threading.Event()

        def call(_: Future[None]) -> None:
            called.set()

        self.client.publish(self.payload()).add_done_callback(call)
        assert called.wait(LONGEST_WAIT_SECONDS)

    def flushed(self) -> None:
        self.client.publish(self.payload())
        self.client.flush(LONGEST_WAIT_SECONDS)

    def impatient(self) -> None:
        try:
            self.client.publish(self.payload()).result(0.0005)
        except TimeoutError:
            return

    def batch(self) -> None:
        payloads = [b"ab"] * self.dice.randrange(1, 500)
        self.client.publish_batch(payloads).result(LONGEST_WAIT_SECONDS)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, {"buffer_frames": 5, "ring_bytes": 1 << 20, "ring_payload_bytes_min": 1000}),
        (2, {"socket_buffer_bytes": 4096}),
        (3, {"buffer_frames": 50, "socket_buffer_bytes": 4096, "checksum": True}),
    ],
)
def test_no_caller_waits_forever(
    path: str, seed: int, options: dict[str, Any], switching: None
) -> None:
    dice = random.Random(seed)
    stop = threading.Event()
    with ThreadAgent(path) as agent:
        with HostClient(path, **options) as client:
            workers = [Worker(client, seed * 100 + n, stop) for n in range(THREADS)]
            for worker in workers:
                worker.start()
            end = time.monotonic() + SECONDS
            latest = end + LONGEST_WAIT_SECONDS

            def enough() -> bool:
                """Enough has happened: the threads may not have had their turn for seconds."""
                now = time.monotonic()
                happened = agent.agent.connections.totals.connections > 2 and all(
                    w.rounds for w in workers
                )
                return now > latest or (happened and now > end)

            while not enough():
                stop.wait(dice.choice([0.01, 0.05, 0.2]))
                agent.frames()
                if dice.random() < 0.5:
                    agent.cut()
            stop.set()
            for worker in workers:
                worker.join(LONGEST_WAIT_SECONDS)
                assert not worker.is_alive()
        assert agent.agent.connections.totals.connections > 2
    assert [worker.error for worker in workers] == [None] * THREADS
    assert all(worker.rounds for worker in workers)
