"""librdkafka's producer and consumer, each in its own thread, and their records."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

SECONDS: Final = 60.0
FIRST_TIME_MS: Final = 1_700_000_000_000
QUICK: Final[dict[str, Any]] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}


class Place(NamedTuple):
    """A record: its offset, its number among all produced records, its time."""

    offset: int
    number: int
    timestamp_ms: int


Places = list[list[Place]]
"""Records by partition, in the order of arrival."""


def value_of(number: int, size_bytes: int) -> bytes:
    """Make a value that encodes its number throughout."""
    one = b"%d " % number
    return (one * (size_bytes // len(one) + 1))[: max(size_bytes, len(one))]


def place_of(message: Message, size_bytes: int) -> Place:
    """Decode the number of a record's value; raise ValueError for an unknown value."""
    value = message.value() or b""
    number = int(value[: value.index(b" ")])
    if value != value_of(number, size_bytes):
        raise ValueError(f"{message.topic()}-{message.partition()}: {message.offset()} has changed")
    return Place(message.offset() or 0, number, message.timestamp()[1])


class Producing(threading.Thread):
    """An idempotent producer of numbers to the partitions in turn, until it is stopped.

    The first `burst` records are sent at once, the others with pauses.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        partitions: int = 2,
        size_bytes: int = 0,
        burst: int = 0,
        pause_seconds: float = 0.001,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                **QUICK,
                **(settings or {}),
            }
        )
        self._partitions = partitions
        self._size_bytes = size_bytes
        self._burst = burst
        self._pause_seconds = pause_seconds
        self._over = threading.Event()
        self._changed = threading.Condition()
        self.delivered: Places = [[] for _ in range(partitions)]
        self.errors: list[str] = []
        self.count = 0

    def run(self) -> None:
        while not self._over.is_set():
            self._producer.produce(
                "t",
                value_of(self.count, self._size_bytes),
                partition=self.count % self._partitions,
                timestamp=FIRST_TIME_MS + self.count,
                on_delivery=self._done,
            )
            self.count += 1
            self._producer.poll(0 if self.count < self._burst else self._pause_seconds)
        self._producer.flush(SECONDS)

    def _done(self, error: KafkaError | None, message: Message) -> None:
        with self._changed:
            if error is not None:
                self.errors.append(str(error))
            else:
                place = place_of(message, self._size_bytes)
                self.delivered[message.partition() or 0].append(place)
            self._changed.notify_all()

    def total(self) -> int:
        return sum(map(len, self.delivered)) + len(self.errors)

    def wait_for(self, more: int) -> None:
        """Wait for so many more acknowledged records."""
        goal = self.total() + more
        with self._changed:
            assert self._changed.wait_for(lambda: self.total() >= goal, SECONDS)

    def finish(self) -> None:
        """Stop, and check every record: no error, no gap, no duplicate."""
        self._over.set()
        self.join(SECONDS)
        assert not self.is_alive()
        assert self.errors == []
        assert self.delivered == self.written()

    def end(self) -> None:
        """Stop without waiting for responses."""
        self._over.set()
        self._producer.purge()
        self.join(SECONDS)

    def written(self) -> Places:
        """Return the content of partitions with each record once and in order."""
        step = self._partitions
        return [
            [
                Place(offset, number, FIRST_TIME_MS + number)
                for offset, number in enumerate(range(index, self.count, step))
            ]
            for index in range(step)
        ]


class Consuming(threading.Thread):
    """Reads until it has `goal` records, in a group, or without one from offset 0."""

    def __init__(
        self, bootstrap: str, *, group: str = "", partitions: int = 2, size_bytes: int = 0
    ) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group or "nobody",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **QUICK,
            }
        )
        self._group = group
        self._all = [TopicPartition("t", index, 0) for index in range(partitions)]
        self._size_bytes = size_bytes
        self._changed = threading.Condition()
        self.seen: Places = [[] for _ in range(partitions)]
        self.goal = sys.maxsize
        self.errors: list[str] = []
        self.committed: list[int] = []

    def run(self) -> None:
        if self._group:
            self._consumer.subscribe(["t"])
        else:
            self._consumer.assign(self._all)
        idle = 0
        while self.total() < self.goal and idle < SECONDS * 10:
            message = self._consumer.poll(0.1)
            if message is None:
                idle += 1
                continue
            idle = 0
            self._take(message)
        if self._group:
            self._consumer.commit(asynchronous=False)
            self.committed = [committed.offset for committed in self._consumer.committed(self._all)]
        self._consumer.close()

    def _take(self, message: Message) -> None:
        with self._changed:
            if message.error() is not None:
                self.errors.append(str(message.error()))
            else:
                place = place_of(message, self._size_bytes)
                self.seen[message.partition() or 0].append(place)
            self._changed.notify_all()

    def total(self) -> int:
        return sum(map(len, self.seen))

    def wait_for(self, more: int) -> None:
        """Wait for so many more records."""
        goal = self.total() + more
        with self._changed:
            assert self._changed.wait_for(lambda: self.total() >= goal, SECONDS)

    def finish(self, goal: int) -> None:
        """Stop after so many records in total, without an error."""
        self.goal = goal
        self.join(SECONDS)
        assert not self.is_alive()
        assert self.errors == []

    def end(self) -> None:
        """Stop without waiting for records."""
        self.goal = 0
        self.join(SECONDS)
