"""Three brokers with copies of every partition: kill -9, long pauses and restarts, under load.

An idempotent producer that asks for all acknowledgements and a consumer group go on while brokers
are killed, paused until they count as gone, or stopped in good order; one at a time, then two.
With all three up again, whatever was acknowledged is there once, in order, at the offset that the
producer was told; what the consumer had read is there still; and the three logs hold the same
bytes. The database is PostgreSQL. `PENSTOCK_TRIO_FAULTS` sets the number of faults of the long run.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.postgres import PostgresServer, postgres_server

from compat.drivers import eventually
from compat.drivers.port import WAIT_SECONDS
from compat.servers import PenstockProcess
from compat.survivors import (
    PARTITIONS,
    RECOVER_SECONDS,
    Load,
    Reader,
    assert_nothing_lost_or_doubled,
    at_work,
    await_progress,
)

FAULTS = int(os.environ.get("PENSTOCK_TRIO_FAULTS", "30"))
SEED = int(os.environ.get("PENSTOCK_TRIO_SEED", "3"))
SESSION_MS = 2_000
LAG_MS = 1_000


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """The server of their databases."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def trio(postgres: PostgresServer, tmp_path: Path) -> Iterator[list[PenstockProcess]]:
    """Three running brokers, whose sessions are short."""
    with ExitStack() as stack:
        configs = {
            "control.url": postgres.url(stack.enter_context(postgres.database())),
            "diskless.storage.url": (tmp_path / "objects").as_uri(),
            "replication.listener": "127.0.0.1:0",
            "group.initial.rebalance.delay.ms": "0",
            "broker.session.timeout.ms": str(SESSION_MS),
            "broker.heartbeat.interval.ms": "250",
            "replica.lag.time.max.ms": str(LAG_MS),
        }
        brokers = []
        for node in (1, 2, 3):
            broker = PenstockProcess(
                tmp_path / f"broker-{node}", configs={**configs, "node.id": str(node)}
            )
            stack.callback(broker.kill)
            brokers.append(broker.start())
        yield brokers


def _bootstrap(trio: list[PenstockProcess]) -> str:
    return ",".join(broker.bootstrap for broker in trio)


def _create(bootstrap: str, topic: str) -> None:
    """Make a topic with a copy on each, as soon as all three are known."""
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        eventually(
            lambda: len(admin.list_topics(timeout=WAIT_SECONDS).brokers) == 3,
            lambda: "three brokers are not known",
        )
        wanted = NewTopic(topic, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([wanted])[topic].result(WAIT_SECONDS)


def _await_all_in_sync(bootstrap: str, topic: str) -> None:
    """Wait until every copy of every partition has been caught up of late."""

    def counts(admin: AdminClient) -> list[int]:
        rows = admin.list_topics(topic, timeout=WAIT_SECONDS).topics[topic].partitions
        return [len(row.isrs) for row in rows.values()]

    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        eventually(
            lambda: counts(admin) == [3] * PARTITIONS,
            lambda: f"replicas in sync: {counts(admin)}",
            seconds=RECOVER_SECONDS,
        )


def _segments(broker: PenstockProcess, topic: str) -> dict[int, bytes]:
    """The bytes of each partition's log, of a broker that was stopped in good order."""
    found = {}
    for part in range(PARTITIONS):
        directory = broker.directory / "data" / "log" / f"{topic}-{part}"
        found[part] = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
        assert found[part]
    return found


def _kill(broker: PenstockProcess, meanwhile: Callable[[], None]) -> None:
    broker.kill()
    meanwhile()
    broker.start()


def _pause(broker: PenstockProcess, meanwhile: Callable[[], None]) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        time.sleep(SESSION_MS / 1000)  # the others may take it for dead now
        meanwhile()
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _stop(broker: PenstockProcess, meanwhile: Callable[[], None]) -> None:
    assert broker.stop() == 0
    meanwhile()
    broker.start()


FAULT_KINDS = (_kill, _pause, _stop)


def _check(trio: list[PenstockProcess], load: Load, reader: Reader) -> None:
    """The end of a run: see the module's text."""
    bootstrap = _bootstrap(trio)
    assert_nothing_lost_or_doubled(load, reader, bootstrap)
    time.sleep(LAG_MS / 1000)  # who counts as in sync after this has had the last record
    _await_all_in_sync(bootstrap, load.topic)
    for broker in trio:
        assert broker.stop() == 0
    logs = [_segments(broker, load.topic) for broker in trio]
    assert logs[0] == logs[1] == logs[2]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled_while_each_fails_in_turn(trio: list[PenstockProcess]) -> None:
    bootstrap, topic = _bootstrap(trio), "copied"
    _create(bootstrap, topic)
    with at_work(bootstrap, topic, "survivors") as (load, reader):
        await_progress(load, reader)
        for broker, fault in zip(trio, FAULT_KINDS, strict=True):
            fault(broker, lambda: await_progress(load, reader))
        _check(trio, load, reader)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_nothing_is_lost_or_doubled_while_one_or_two_fail(trio: list[PenstockProcess]) -> None:
    rng = random.Random(SEED)
    bootstrap, topic = _bootstrap(trio), "copied"
    _create(bootstrap, topic)
    with at_work(bootstrap, topic, "survivors") as (load, reader):
        await_progress(load, reader)
        for two in islice(cycle((False, False, True)), FAULTS):
            first, second = rng.sample(trio, 2)
            fault, other = rng.choice(FAULT_KINDS), rng.choice(FAULT_KINDS)
            if two:
                more = partial(other, second, lambda: time.sleep(rng.uniform(0, 2)))
                fault(first, more)
            else:
                fault(first, lambda: await_progress(load, reader))
            assert not load.failures, load.failures[:5]
            await_progress(load, reader)
            time.sleep(rng.uniform(0, 0.5))
        _check(trio, load, reader)
