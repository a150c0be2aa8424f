"""Exactly once to a diskless topic: the broker is killed between any two steps of a commit."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from penstock.spark import LogSink
from penstock.testing import Broker
from tests.spark.sink.test_crash import Deaths, Restarting, killed, write_over

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS: Final = 3
ROWS: Final = 40_000
SMALL_OBJECTS: Final = {"diskless.buffer.max.bytes": 64 << 10}
"""Each section is larger: six objects in a batch."""


class AtObject:
    """Kills the broker as soon as it has written so many more objects, or has answered."""

    def __init__(self, broker: Broker, more: int) -> None:
        self._broker = broker
        self._before = self._count()
        self._more = more
        self.seen = False
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run)

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

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._answered.set()
        self._thread.join()
        assert self.seen


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_broker_that_dies(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(SMALL_OBJECTS, process=True) as broker, broker.client() as client:
        client.create_topic("out", partitions=PARTITIONS, configs={"diskless.enable": "true"})
        sink = LogSink(
            application="app", topic="out", bootstrap=broker.bootstrap, admin_url=broker.admin_url
        )
        deaths: Deaths = {
            1: partial(killed, broker),
            2: partial(AtObject, broker, 1),  # the first object is written
            3: partial(AtObject, broker, 4),
            4: partial(Restarting, broker, "app", 4),  # committed, perhaps not answered
        }
        write_over(deaths, spark, sink, client, monkeypatch, rows=ROWS)
