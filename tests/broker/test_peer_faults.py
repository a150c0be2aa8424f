"""Invalid, repeated, early and late messages of peers; clocks that are off; a missing database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.base.system import SYSTEM_CLOCK
from penstock.replication.messages import Ack, Append, LogStart
from penstock.replication.peer_format import Begun, Row, Said
from tests.broker.test_replicated import Cluster, everything, has, until
from tests.broker.test_replicated_faults import others, replication
from tests.postgres import postgres_server
from tests.storage.batches import stamped

pytestmark = pytest.mark.timeout(300)

HOUR_MS = 3_600_000
FAR = 1 << 40


@pytest.fixture
async def cluster(tmp_path: Path, postgres_url: str) -> AsyncIterator[Cluster]:
    """With clocks that are two hours apart."""
    made = Cluster(tmp_path, postgres_url)
    made.settings["broker.session.timeout.ms"] = 60_000
    made.clocks = {1: Off(HOUR_MS), 2: Off(-HOUR_MS)}
    async with made.running(1, 2, 3):
        yield made


class Off(NamedTuple):
    """A clock that is off by so much."""

    by_ms: int

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self.by_ms

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


async def test_clocks_that_are_off_change_nothing(cluster: Cluster) -> None:
    await cluster.create()
    for number in range(3):
        assert await cluster.produce(b"value %d" % number) == number
        leader = cluster.leader()
        await cluster.stop(leader)
        assert await cluster.led() != leader
        await cluster.start(leader)
        await until(
            lambda end=number + 1: all(has(cluster.log(broker_id), end) for broker_id in (1, 2, 3))  # type: ignore[misc]
        )
    assert (await cluster.values(cluster.leader())).count(b"value") == 3


async def test_what_peers_send_is_judged(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await cluster.create()
    for number in range(3):
        await cluster.produce(b"value %d" % number)
    other = others(leader)[0]
    await until(lambda: has(cluster.log(other), 3))
    log, whole = cluster.log(other), everything(cluster.log(other))
    authority, epoch = log.copy.core.authority, log.copy.core.epoch
    broken = bytearray(stamped(1, 3, epoch))
    broken[-1] ^= 1
    cases: list[tuple[str, Said, bytes]] = [
        ("a gap", Append(authority, epoch, 5, 6, 3), bytes(stamped(1, 5, epoch))),
        ("again", Append(authority, epoch, 0, 3, 3), whole),
        ("a wrong CRC", Append(authority, epoch, 3, 4, 3), bytes(broken)),
        ("nonsense", Append(authority, epoch, 3, 4, 3), b"nonsense" * 20),
        ("others than announced", Append(authority, epoch, 3, 9, 3), bytes(stamped(1, 3, epoch))),
        ("of before", Append(authority - 1, epoch, 3, 4, 3), bytes(stamped(1, 3, epoch))),
        (
            "of an epoch to come",
            Append(authority + 5, epoch + 5, 3, 4, 3),
            bytes(stamped(1, 3, epoch)),
        ),
        ("an earlier start", LogStart(authority - 1, epoch, FAR), b""),
    ]
    for what, message, data in cases:
        await until(lambda: log.copy.core.authority == authority)  # it has joined again
        row = Row(log.key, message, memoryview(bytearray(data)))
        replication(cluster, other).rows_came(leader, [row])
        await until(lambda: not (log.copy.failed or log.copy.resting))
        assert everything(log) == whole, what
    assert f"the log rejected records from broker {leader}" in caplog.text
    led = cluster.log(leader)
    for false in (Ack(authority, epoch, FAR, FAR), Begun(authority, epoch, FAR, FAR)):
        replication(cluster, leader).rows_came(9, [Row(led.key, false)])  # who is no replica
    assert led.copy.mark == 3
    assert await cluster.produce(b"goes on") == 3
    await until(lambda: all(has(cluster.log(broker_id), 4) for broker_id in (1, 2, 3)))
    # Other records at an offset of the same epoch: one of both is wrong, and nobody knows which.
    twin = memoryview(bytearray(stamped(1, 0, epoch)))
    await until(lambda: log.copy.core.authority == authority)
    differing = Row(log.key, Append(authority, epoch, 0, 1, 3), twin)
    replication(cluster, other).rows_came(leader, [differing])
    assert "this replica differs from its leader" in caplog.text
    assert "differ from the leader's: it is offline" in log.copy.trouble
    assert everything(log)[: len(whole)] == whole
    assert await cluster.produce(b"with two") == 4


async def test_appends_continue_without_the_database_and_leaders_stay(
    tmp_path: Path,
) -> None:
    with postgres_server() as database:
        made = Cluster(tmp_path, database.schema())
        async with made.running(1, 2, 3):
            leader = await made.create()
            await made.produce(b"before")
            await until(lambda: all(has(made.log(broker_id), 1) for broker_id in made.brokers))
            epoch = made.log(leader).copy.core.epoch
            await asyncio.to_thread(database.stop, crash=True)
            sessions = [server._liveness._session for server in made.brokers.values()]  # type: ignore[union-attr]
            await until(lambda: all(session.over(SYSTEM_CLOCK.monotonic()) for session in sessions))
            for number in range(3):
                assert await made.produce(b"meanwhile") == 1 + number
            assert {made.log(broker_id).copy.core.epoch for broker_id in made.brokers} == {epoch}
            await until(lambda: all(has(made.log(broker_id), 4) for broker_id in made.brokers))
            silent = await made.fall_silent(leader)
            followers = [made.log(broker_id) for broker_id in made.brokers]
            for node_id in made.brokers:  # as the missing of a process is noticed
                made.brokers[node_id].replicas._refused(leader)  # type: ignore[union-attr]
            await until(lambda: any(log.claiming for log in followers))
            assert made.leader() == 0
            assert not any(log.copy.core.promised > epoch for log in followers), (
                "no broker is fenced"
            )
            await asyncio.to_thread(database.start)
            following = await made.led()
            assert await made.produce(b"after") == 4
            assert (await made.values(following)).count(b"meanwhile") == 3
            await silent.stop()
