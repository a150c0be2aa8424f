"""A service that publishes readings through the agent of its host.

    penstock host serve --socket /tmp/host.sock --sink log --bootstrap 127.0.0.1:9092
    python -m examples.host_producer --socket /tmp/host.sock --topic readings --count 10

`publish` hands a reading to the client and returns a future. The client sends, waits while an agent
is replaced, and sends again what that agent had not accepted; the log drops what it has already, so
that every reading is in it once. A future that ends without an error means: it is in the log.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
from collections import Counter, deque
from concurrent.futures import Future

from penstock.host import HostClient


def reading(number: int) -> bytes:
    """One event; in the log it becomes one record."""
    return json.dumps({"number": number, "at_ms": time.time_ns() // 1_000_000}).encode()


def produce(
    client: HostClient, topic: str, count: int, interval: float, stop: threading.Event
) -> Counter[str]:
    """Publish until told to stop, and count what became of the readings."""
    outcomes: Counter[str] = Counter()
    pending: deque[Future[None]] = deque()
    for number in range(count):
        # Waits only when the client's buffer is full: the agent, or its log, does not keep up.
        pending.append(client.publish(reading(number), topic=topic, partition=0))
        while pending and pending[0].done():
            outcomes[outcome(pending.popleft())] += 1
        if stop.wait(interval):
            break
    outcomes.update(map(outcome, pending))
    return outcomes


def outcome(future: Future[None]) -> str:
    """What became of a reading, as soon as it is known."""
    error = future.exception()
    return "accepted" if error is None else type(error).__name__


def main() -> None:
    parser = argparse.ArgumentParser(description="Publish readings through the host's agent.")
    parser.add_argument("--socket", default="/var/run/penstock/host.sock")
    parser.add_argument("--topic", default="readings")
    parser.add_argument("--count", type=int, default=2**31, help="readings; default: until stopped")
    parser.add_argument("--interval", type=float, default=0.0, help="seconds between two readings")
    arguments = parser.parse_args()

    # The first process of a container is not ended by a signal that it does not handle.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    with HostClient(arguments.socket, topics=[arguments.topic]) as client:
        outcomes = produce(client, arguments.topic, arguments.count, arguments.interval, stop)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
