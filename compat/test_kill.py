"""kill -9 under load: what was acknowledged is there, once and in order, and the group goes on.

An idempotent producer and a consumer group work without a pause while the broker is killed and
started again on the same data directory, four times, and in the long run twenty times. A kill comes
as soon as both have made progress since the last one, after a delay drawn from a seed, so that it
meets every phase of the work. `PENSTOCK_KILLS` sets another number of kills.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.conftest import missing
from compat.drivers.confluent import Confluent
from compat.parts import PartMissing
from compat.servers import Killable, killable
from compat.survivors import (
    PARTITIONS,
    assert_nothing_lost_or_doubled,
    at_work,
    await_progress,
)

KILLS = int(os.environ.get("PENSTOCK_KILLS", "2"))
SEED = 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Killable]:
    """A broker of its own."""
    try:
        with killable(tmp_path) as running:
            yield running
    except PartMissing as error:
        missing(error)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "kills"),
    [
        ("classic", KILLS),
        pytest.param("classic", 10 * KILLS, marks=pytest.mark.long),
        pytest.param("consumer", 10 * KILLS, marks=pytest.mark.long),
    ],
)
def test_nothing_acknowledged_is_lost_or_doubled(
    broker: Killable, protocol: str, kills: int
) -> None:
    rng = random.Random(SEED)
    topic, group = "killed", "survivors"
    with Confluent(broker.bootstrap) as driver:
        driver.create_topic(topic, PARTITIONS, {})
    with at_work(broker.bootstrap, topic, group, protocol) as (load, reader):
        for _ in range(kills):
            await_progress(load, reader)
            assert not load.failures, load.failures[:5]
            time.sleep(rng.uniform(0, 0.3))
            broker.kill()
            broker.start()
        assert_nothing_lost_or_doubled(load, reader, broker.bootstrap)
