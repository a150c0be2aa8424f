"""Every flush policy gives back what it was given, from large batches in reused buffers."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.drivers import Record
from compat.drivers.confluent import Confluent
from compat.servers import PenstockProcess, chosen

COUNT = 10_000


@pytest.mark.skipif(chosen() != "penstock", reason="policies are Penstock's own")
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("group", marks=pytest.mark.long),
        "interval",
        pytest.param("os", marks=pytest.mark.long),
    ],
)
def test_large_batches_come_back_whole(tmp_path: Path, policy: str, now_ms: int) -> None:
    broker = PenstockProcess(tmp_path, configs={"log.flush.policy": policy}).start()
    sent = [
        Record(value=f"{number:08d}".encode() * 400, timestamp=now_ms) for number in range(COUNT)
    ]
    try:
        with Confluent(broker.bootstrap) as driver:
            driver.create_topic("large", 1, {})
            assert driver.produce("large", sent) == list(range(COUNT))
            read = driver.consume("large", {0: 0}, COUNT)
            assert [record.value for record in read] == [record.value for record in sent]
            assert broker.stop() == 0
            broker.start()
            read = driver.consume("large", {0: 0}, COUNT)
            assert [record.value for record in read] == [record.value for record in sent]
    finally:
        broker.kill()
