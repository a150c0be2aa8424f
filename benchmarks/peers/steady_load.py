"""One record every few milliseconds through a broker's group of clients, and when each came.

A producer and a consumer of librdkafka as services have them: acks=all, idempotent, a consumer
group. What is kept is when each record was acknowledged and when it was consumed, per partition; a
gap is the longest time between two of one partition. Nothing may be lost, doubled or out of order.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from confluent_kafka import Consumer, KafkaError, Message, Producer

PACE_SECONDS = 0.005
DELIVERY_SECONDS = 60
TIMES = Mapping[int, Sequence[float]]


class SteadyLoad:
    """A running producer and a running consumer, each in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._topic, self._partitions = topic, partitions
        self.acked: dict[int, list[float]] = defaultdict(list)
        self.came: dict[int, list[float]] = defaultdict(list)
        self._values: dict[int, list[int]] = defaultdict(list)
        self._errors: list[str] = []
        self._sent = 0
        self._no_more, self._done = threading.Event(), threading.Event()
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = Producer({
            **common, "acks": "all", "enable.idempotence": True, "linger.ms": 0,
            "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
        })  # fmt: skip
        self._consumer = Consumer({
            **common, "group.id": f"readers-of-{topic}", "auto.offset.reset": "earliest",
        })  # fmt: skip
        self._threads = [
            threading.Thread(target=self._produce, daemon=True),
            threading.Thread(target=self._consume, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        due = time.monotonic()
        while not self._no_more.is_set():
            number = self._sent
            self._producer.produce(
                self._topic,
                value=str(number).encode(),
                partition=number % self._partitions,
                on_delivery=self._delivered,
            )
            self._sent += 1
            due += PACE_SECONDS
            self._producer.poll(max(0.0, due - time.monotonic()))
        self._producer.flush(DELIVERY_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(str(error))
            return
        self.acked[message.partition() or 0].append(time.monotonic())

    def _consume(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._done.is_set():
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            partition = message.partition() or 0
            self.came[partition].append(time.monotonic())
            self._values[partition].append(int(message.value() or b"-1"))
        self._consumer.close()

    def flows(self) -> bool:
        """Whether every partition has been consumed from."""
        return len(self.came) == self._partitions

    def stop(self) -> None:
        """End both, once all that was sent has come.

        Raises:
            RuntimeError: something was lost, doubled, out of order or refused.
        """
        self._no_more.set()
        self._threads[0].join(DELIVERY_SECONDS)
        deadline = time.monotonic() + DELIVERY_SECONDS
        while sum(map(len, self.came.values())) < self._sent and time.monotonic() < deadline:
            time.sleep(0.02)
        self._done.set()
        self._threads[1].join(DELIVERY_SECONDS)
        if self._errors:
            raise RuntimeError(f"{len(self._errors)} records were refused: {self._errors[0]}")
        for partition in range(self._partitions):
            expected = list(range(partition, self._sent, self._partitions))
            if self._values[partition] != expected:
                raise RuntimeError(
                    f"partition {partition}: {len(self._values[partition])} records came,"
                    f" {len(expected)} were sent, or not in their order"
                )


def longest_gap(times: TIMES, begin: float, end: float) -> float:
    """The longest time without an event in any partition, between two moments."""
    gaps = [0.0]
    for found in times.values():
        inside = [begin, *(at for at in found if begin < at < end), end]
        gaps += [after - before for before, after in pairwise(inside)]
    return max(gaps)
