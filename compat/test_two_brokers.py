"""Brokers with one database and one object store: kill -9 of any, under load, and long pauses.

Diskless topics have no home: what one broker takes the other serves. An idempotent producer and a
consumer group go on while the brokers are killed in turn and started again, and every third time
paused until they count as gone; whatever was acknowledged is there once and in order. A local
topic of which both lead partitions becomes diskless in one step, or stays local, whichever of them
is killed meanwhile; and so does one that has copies on three brokers, which it gets again. The
database is PostgreSQL, the objects lie in a shared directory, or in S3 with
`PENSTOCK_COMPAT_STORES=postgres-s3`. `PENSTOCK_PAIR_KILLS` sets the number of kills and pauses, and
of the topics that are switched under a kill.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from operator import gt
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import s3_server

from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.drivers.port import WAIT_SECONDS
from compat.history import History
from compat.security import harness
from compat.servers import PenstockProcess, bootstrap_of, running_brokers
from compat.survivors import (
    PARTITIONS,
    RECOVER_SECONDS,
    Load,
    Member,
    assert_nothing_lost_or_doubled,
    at_work,
    await_progress,
)

KILLS = int(os.environ.get("PENSTOCK_PAIR_KILLS", "2"))
SEED = 5
REQUEST_SECONDS = 25
SWITCH_SECONDS = 4 * REQUEST_SECONDS  # of which one may be lost with the broker that is killed


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """The server of their databases."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def stores() -> Iterator[dict[str, str]]:
    """Where the objects are, if not in a directory."""
    if os.environ.get("PENSTOCK_COMPAT_STORES", "") != "postgres-s3":
        yield {}
        return
    with s3_server() as s3:
        options = ",".join(f"{option}={value}" for option, value in s3.options().items())
        yield {"diskless.storage.url": s3.fresh_url(), "diskless.storage.options": options}


@pytest.fixture
def pair(
    postgres: PostgresServer,
    stores: dict[str, str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[list[PenstockProcess]]:
    """Two running brokers. A test whose brokers are to count as gone soon gives their session."""
    configs = stores | {
        "log.diskless.enable": "true",
        "broker.session.timeout.ms": str(getattr(request, "param", 20_000)),
        "broker.heartbeat.interval.ms": "500",
    }
    with running_brokers(postgres, tmp_path, 2, configs) as brokers:
        yield brokers


@pytest.fixture
def three(
    postgres: PostgresServer, stores: dict[str, str], tmp_path: Path
) -> Iterator[list[PenstockProcess]]:
    """Three running brokers, each with a copy of every topic."""
    configs = stores | {
        "replication.listener": "127.0.0.1:0",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "250",
    }
    with running_brokers(postgres, tmp_path, 3, configs) as brokers:
        yield brokers


def test_what_one_takes_the_other_serves(pair: list[PenstockProcess]) -> None:
    with Confluent(pair[0].bootstrap) as driver:
        driver.create_topic("shared", 8, {})
    _await_topic(pair[1], "shared")
    with _admin(pair[1].bootstrap) as admin:
        shown = admin.list_topics("shared", timeout=WAIT_SECONDS).topics["shared"].partitions
    leaders = {partition.leader for partition in shown.values()}
    assert leaders == {1, 2}
    history = History(PARTITIONS)
    with (
        Load(pair[0].bootstrap, "shared", history) as load,
        Member(pair[1].bootstrap, "shared", history, group="other-side") as reader,
    ):
        await_progress(load, reader)
    assert not load.failures
    assert not history.violations


def _everywhere(load: Load) -> None:
    """Wait until every partition has taken records."""
    before = list(load.history.acknowledged)
    eventually(
        lambda: all(map(gt, load.history.acknowledged, before)),
        lambda: "a partition takes no records",
        seconds=RECOVER_SECONDS,
    )


def _await_topic(broker: PenstockProcess, topic: str) -> None:
    """Wait until a broker knows a topic that was created at another one."""
    with _admin(broker.bootstrap) as admin:
        eventually(
            lambda: topic in admin.list_topics(timeout=WAIT_SECONDS).topics,
            lambda: f"{broker.bootstrap} lacks the topic {topic}",
        )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", [2_000], indirect=True, ids=["short session"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_acknowledged_is_lost_or_doubled_while_brokers_die(
    pair: list[PenstockProcess], protocol: str
) -> None:
    rng = random.Random(SEED)
    topic, group = "killed", "survivors"
    bootstrap = bootstrap_of(pair)
    with Confluent(bootstrap) as driver:
        driver.create_topic(topic, PARTITIONS, {})
    with at_work(bootstrap, topic, group, protocol) as (load, reader):
        for number in range(KILLS):
            await_progress(load, reader)
            assert not load.failures, load.failures[:5]
            time.sleep(rng.uniform(0, 0.3))
            broker, paused = pair[number % 2], number % 3 == 2
            if paused:
                os.kill(broker.pid, signal.SIGSTOP)
            else:
                broker.kill()
            # The one that is left serves all of it.
            _everywhere(load)
            await_progress(load, reader)
            if paused:
                os.kill(broker.pid, signal.SIGCONT)
            else:
                broker.start()
        assert_nothing_lost_or_doubled(load, reader, bootstrap)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("pair", [5_000], indirect=True, ids=["session"])
def test_local_topic_of_both_becomes_diskless_while_brokers_die(
    pair: list[PenstockProcess],
) -> None:
    switched_while_they_die(pair)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_topic_with_copies_becomes_diskless_while_brokers_die(three: list[PenstockProcess]) -> None:
    switched_while_they_die(three)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_topic_goes_to_the_store_and_back_while_brokers_die(three: list[PenstockProcess]) -> None:
    """There and back without a fault, then with one in each switch."""
    rng = random.Random(SEED)
    bootstrap, topic = bootstrap_of(three), "to-and-fro"
    with Confluent(bootstrap) as driver:
        driver.create_topic(topic, PARTITIONS, {"diskless.enable": "false"})
    for broker in three:
        _await_topic(broker, topic)
    with at_work(bootstrap, topic, topic) as (load, reader):
        for number in range(2 + 2 * KILLS):
            await_progress(load, reader)
            to = "true" if number % 2 == 0 else "false"
            with _admin(bootstrap) as asked:
                _switch(asked, topic, to)
                if number >= 2:
                    time.sleep(rng.uniform(0, 1.5))
                    broker = rng.choice(three)
                    broker.kill()
                    broker.start()
                eventually(
                    partial(_becomes, bootstrap, topic, to),
                    partial("diskless.enable does not become {}".format, to),
                    seconds=SWITCH_SECONDS,
                )
            _everywhere(load)
        await_progress(load, reader)
        assert_nothing_lost_or_doubled(load, reader, bootstrap)


def switched_while_they_die(brokers: list[PenstockProcess]) -> None:
    """Switch some topics under load, the first without a fault, the others while a broker dies."""
    rng = random.Random(SEED)
    bootstrap = bootstrap_of(brokers)
    for number in range(KILLS + 1):
        topic = f"switched-{number}"
        with Confluent(bootstrap) as driver:
            driver.create_topic(topic, PARTITIONS, {"diskless.enable": "false"})
        for broker in brokers:
            _await_topic(broker, topic)
        with at_work(bootstrap, topic, topic) as (load, reader), _admin(bootstrap) as asked:
            await_progress(load, reader)
            first = _switch(asked, topic, "true")
            if number:
                time.sleep(rng.uniform(0, 1.5))
                broker = brokers[number % len(brokers)]
                broker.kill()
                broker.start()
            eventually(
                partial(_becomes, bootstrap, topic, "true"),
                lambda: "the topic stays local",
                seconds=SWITCH_SECONDS,
            )
            if not number:
                first.result()
            _everywhere(load)
            await_progress(load, reader)
            assert_nothing_lost_or_doubled(load, reader, bootstrap)


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({**harness(bootstrap), "log_level": 0})


def _switch(admin: AdminClient, topic: str, to: str) -> Future[None]:
    entry = ConfigEntry("diskless.enable", to, incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    future: Future[None] = admin.incremental_alter_configs(
        [wanted], request_timeout=REQUEST_SECONDS
    )[wanted]
    return future


def _becomes(bootstrap: str, topic: str, to: str) -> bool:
    with _admin(bootstrap) as admin:
        try:
            _switch(admin, topic, to).result()
        except KafkaException:
            return False
    return True
