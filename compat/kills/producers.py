"""Producers of one transactional id, in processes of their own, which die and are replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compat.drivers import DRIVERS, KafkaProblem, Record
from compat.drivers.apart import Apart
from compat.drivers.port import Transactional
from compat.drivers.remote import Remote
from compat.kills.history import COPIES, History
from compat.kills.steps import End

VERSIONS: Mapping[str, int] = {
    "java": 2,
    "franz-go": 2,
    "confluent-kafka": 1,
    "kafka-python": 1,
    "aiokafka": 1,
}
"""The version of transactions that each client has."""
FAILURES = (KafkaProblem, RuntimeError, TimeoutError, OSError)
"""What calls of a client end with that fails, or dies."""
TRIES_MAX = 6


def start(name: str, bootstrap: str) -> Remote:
    """A process of a client."""
    client = DRIVERS[name]
    return client(bootstrap) if issubclass(client, Remote) else Apart(bootstrap, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What transactions of an id write to: `far` and `own` are partitions of the topic."""

    transactional_id: str
    topic: str
    group: str
    far: int
    own: int
    timeout_ms: int


class Producer:
    """One incarnation of the id's producer."""

    def __init__(self, client: Remote, target: Target, history: History) -> None:
        self.client = client
        self._target = target
        self._history = history
        self._transactional: Transactional | None = None

    def open(self) -> None:
        """Begin with the id, and fence who had it before."""
        target = self._target
        self._transactional = self.client.transactional(
            target.transactional_id, timeout_ms=target.timeout_ms
        )

    def transact(self, end: End) -> None:
        """One transaction; what becomes of it is in the history. Raises one of `FAILURES`."""
        target, history = self._target, self._history
        assert self._transactional is not None
        number = history.begin()
        if end is not End.COMMIT:
            history.end(number, committed=False)
        producer = self._transactional
        producer.begin()
        for partition, count in zip((target.far, target.own), COPIES.values(), strict=True):
            record = Record(
                value=str(number).encode(), partition=partition, timestamp=int(time.time() * 1000)
            )
            producer.send(target.topic, [record] * count)
        producer.send_offsets(target.group, target.topic, {0: number})
        if end is End.COMMIT:
            history.ask(number)
            producer.end(commit=True)
            history.end(number, committed=True)
        elif end is End.ABORT:
            producer.end(commit=False)

    def abort(self) -> bool:
        """Whether the client could abort what it has begun, and goes on."""
        assert self._transactional is not None
        try:
            self._transactional.end(commit=False)
        except FAILURES:
            return False
        return True

    def close(self) -> None:
        """Give the process back."""
        if self._transactional is not None:
            self._transactional.close()
            self._transactional = None


def commit_one(producer: Producer, replaced: Callable[[], Producer]) -> Producer:
    """Transactions until one is committed, by this producer or by others in its place."""
    usable: Producer | None = producer
    for _ in range(TRIES_MAX):
        try:
            usable = usable or replaced()
            usable.transact(End.COMMIT)
        except FAILURES as failure:
            last = failure
            if usable is not None and not usable.abort():
                usable = None
        else:
            return usable
    raise AssertionError(f"none of {TRIES_MAX} transactions could be committed; last: {last!r}")
