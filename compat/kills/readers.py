"""Readers of committed records, each in a thread: what they saw, in which order, and when first."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from typing import Self

from confluent_kafka import Consumer, KafkaError, TopicPartition

from compat.drivers import eventually
from compat.security import read, scenario

RECOVER_SECONDS = 60
END_SECONDS = 30


class Reader(threading.Thread):
    """Reads some partitions from their begin on, from the replica in a rack if it names one."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: Sequence[int], *, rack: str = ""
    ) -> None:
        super().__init__(daemon=True)
        self._topic = topic
        group = uuid.uuid4().hex
        self._partitions = partitions
        self._settings = {
            **scenario(bootstrap, *read(topic, group)),
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 200,
            "client.rack": rack,
            "log_level": 0,
        }
        self._over = threading.Event()
        self._reached = dict.fromkeys(partitions, 0)
        self.seen: dict[int, list[int]] = {part: [] for part in partitions}
        self.times: dict[int, float] = {}
        self.refusals: list[str] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(END_SECONDS)

    def run(self) -> None:
        with Consumer(self._settings) as consumer:
            consumer.assign([TopicPartition(self._topic, part, 0) for part in self._partitions])
            while not self._over.is_set():
                for message in consumer.consume(100, 0.05):
                    error = message.error()
                    if error is None:
                        number = int(message.value())
                        self.times.setdefault(number, time.monotonic())
                        self.seen[message.partition()].append(number)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        self._reached[message.partition()] = message.offset()
                    elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                        self.refusals.append(error.str())

    def await_ends(self, ends: Sequence[int]) -> None:
        """Until it has read all partitions up to here."""
        wanted = dict(zip(self._partitions, ends, strict=True))
        eventually(
            lambda: all(self._reached[part] >= end for part, end in wanted.items()),
            lambda: f"{self._reached} of {wanted}, {self.refusals}",
            seconds=RECOVER_SECONDS,
        )
