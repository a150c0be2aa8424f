"""Two processes behind one command: kill -9 of either, of the front, of the parent, under load.

`PENSTOCK_KILLS` sets another number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.ports import two_free_ports

from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.servers import PenstockProcess
from compat.survivors import (
    PARTITIONS,
    assert_nothing_lost_or_doubled,
    at_work,
    await_progress,
)

KILLS = int(os.environ.get("PENSTOCK_KILLS", "4"))
SEED = 15


TOPICS = {
    "one copy": {},
    "two copies": {"default.replication.factor": "2"},
    "diskless": {"log.diskless.enable": "true"},
}


@pytest.fixture(
    params=[
        "one copy",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("two copies", "diskless")),
    ]
)
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PenstockProcess]:
    """Two brokers of one command, the second at the port that follows the first's."""
    process = PenstockProcess(
        tmp_path,
        listener=f"127.0.0.1:{two_free_ports()}",
        configs={
            "processes": "2",
            "admin.loopback.trusted": "false",  # they hear of requests from their own machine
            "group.initial.rebalance.delay.ms": "0",
            **TOPICS[request.param],
        },
    )
    started(process)
    yield process
    process.stop()


def started(process: PenstockProcess) -> None:
    """Start it, or start it again where it was."""
    listener = process.listener
    process.start()
    process.listener = listener


def await_children(process: PenstockProcess, count: int) -> None:
    """Wait until there are so many again; none is there before the one that was killed is not."""
    parent = psutil.Process(process.pid)
    eventually(lambda: sum(map(_lives, parent.children())) == count, parent.children)


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:  # its parent has just waited for it
        return False


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_or_doubled(process: PenstockProcess) -> None:
    rng = random.Random(SEED)
    topic, group = "killed", "survivors"
    with Confluent(process.bootstrap) as driver:
        driver.create_topic(topic, PARTITIONS, {})
    with at_work(process.bootstrap, topic, group) as (load, reader):
        for number in range(KILLS):
            await_progress(load, reader)
            assert not load.failures, load.failures[:5]
            time.sleep(rng.uniform(0, 0.3))
            if number % 4 == 3:
                process.kill()
                started(process)
                continue
            children = psutil.Process(process.pid).children()
            children[number % 4].kill()  # the front and the brokers, in the order of their starts
            await_children(process, len(children))
        assert_nothing_lost_or_doubled(load, reader, process.bootstrap)
