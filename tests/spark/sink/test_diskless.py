"""Exactly once to a diskless topic: the broker is killed between any two steps of a commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from penstock.base.errors import PenstockError
from penstock.spark import LogSink
from penstock.spark.sink.commits import Commits
from penstock.testing import Broker
from tests.spark.sink.test_crash import Restarting

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS: Final = 3
ROWS: Final = 40_000
SMALL_OBJECTS: Final = {"diskless.buffer.max.bytes": 64 << 10}
"""Each section is larger: six objects in a batch."""


def killed(broker: Broker) -> Callable[[], None]:
    """Kill it, and start it again while the commit is tried; the answer waits for that."""
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    return starting.join


class AtObject:
    """Kills the broker as soon as it has written so many more objects, or has answered."""

    def __init__(self, broker: Broker, more: int) -> None:
        self._broker = broker
        self._before = self._count()
        self._more = more
        self.seen = False
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _count(self) -> int:
        return sum(1 for _ in Path(self._broker.directory).glob("objects/**/wal/*/*"))

    def _run(self) -> None:
        while not self.seen:
            ended = self._answered.is_set()
            self.seen = self._count() >= self._before + self._more
            if ended:
                break
        self._broker.kill()
        self._broker.start()

    def join(self) -> None:
        self._answered.set()
        self._thread.join()
        assert self.seen


@pytest.mark.timeout(300)
def test_a_broker_that_dies(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Commits.commit
    with Broker(SMALL_OBJECTS, process=True) as broker, broker.client() as client:
        client.create_topic("out", partitions=PARTITIONS, configs={"diskless.enable": "true"})
        sink = LogSink(
            application="app", topic="out", bootstrap=broker.bootstrap, admin_url=broker.admin_url
        )
        ways: dict[int, Callable[[], Callable[[], None]]] = {
            1: lambda: killed(broker),  # staged, not posted
            2: lambda: AtObject(broker, 1).join,  # the first object is written
            3: lambda: AtObject(broker, 4).join,
            4: lambda: Restarting(broker, "app", 4).join,  # committed, perhaps not answered
        }

        def between(self: Commits, batch_id: int, *more: Any) -> Any:
            ended = ways.pop(batch_id)() if batch_id in ways else None
            try:
                return plain(self, batch_id, *more)
            finally:
                if ended is not None:
                    ended()

        monkeypatch.setattr(Commits, "commit", between)
        for batch_id in range(6):
            rows = spark.range(batch_id * ROWS, (batch_id + 1) * ROWS, numPartitions=2)
            frame = rows.select(F.col("id").cast("string").alias("value"))
            try:
                done = sink.write(frame, batch_id)
            except PenstockError:
                done = sink.write(frame, batch_id)  # as Spark would after a restart
            assert done.replayed or done.records == ROWS
        assert not ways
        assert sink.write(frame, 5).replayed
        columns = ("partition", "offset", "value")
        found = client.read_arrow("out", columns=columns)
        numbers = sorted(int(value) for value in found.column("value").to_pylist())
        assert numbers == list(range(6 * ROWS))
        places = set(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
        ends = client.list_offsets("out", "latest")
        assert places == {(p, n) for p, end in ends.items() for n in range(end)}
