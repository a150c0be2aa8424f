"""Readiness probes all dependencies, once at a time; liveness none."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from penstock.base.errors import UnavailableError
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.admin.health import READINESS_KEPT_SECONDS, check_disk
from penstock.broker.admin_server import AdminServer
from penstock.broker.server import BrokerServer
from penstock.control import MemoryControlPlane
from penstock.security import CLUSTER
from tests.broker.admin.test_access import Guarded, guarded
from tests.broker.admin.test_admin import failing, fetch
from tests.broker.handlers.conftest import give

__all__ = ["guarded"]


class Control(MemoryControlPlane):
    """Control plane that counts pings, and responds or fails as scripted."""

    def __init__(self) -> None:
        super().__init__()
        self.pings = 0
        self.open = asyncio.Event()
        self.open.set()
        self.failure: Exception | None = None

    async def ping(self, within_seconds: float) -> None:
        self.pings += 1
        await self.open.wait()
        if self.failure is not None:
            raise self.failure


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms()


@pytest.fixture
def control(broker: BrokerServer) -> Control:
    control = Control()
    give(broker, control=control)
    return control


@pytest.fixture
def clock(broker: BrokerServer) -> Clock:
    clock = Clock()
    give(broker, clock=clock)
    return clock


async def test_a_control_plane_that_is_away_is_named(
    broker: BrokerServer, control: Control, clock: Clock, admin: AdminServer
) -> None:
    control.failure = UnavailableError("the database hides")
    for path in ("/readyz", "/health"):
        status, answer = await fetch(admin, path)
        assert (status, failing(answer)) == (503, {"database": "the database hides"})
    assert (await fetch(admin, "/livez"))[0] == 200, "a restart would not bring it back"
    control.failure = None
    assert (await fetch(admin, "/readyz"))[0] == 503, "it was not asked again yet"
    clock.now += READINESS_KEPT_SECONDS
    assert (await fetch(admin, "/readyz"))[0] == 200


async def test_many_scrapes_are_one_question(
    broker: BrokerServer, control: Control, clock: Clock
) -> None:
    readiness = broker.assembly.readiness
    control.open.clear()
    looks = [asyncio.ensure_future(readiness.look()) for _ in range(50)]
    while not control.pings:
        await asyncio.sleep(0)
    control.open.set()
    assert all(health.good for health in await asyncio.gather(*looks))
    await readiness.look()
    assert control.pings == 1
    clock.now += READINESS_KEPT_SECONDS
    await readiness.look()
    assert control.pings == 2


async def test_one_that_does_not_answer_is_asked_once(
    broker: BrokerServer, control: Control, clock: Clock
) -> None:
    readiness = broker.assembly.readiness
    control.open.clear()
    for _ in range(2):
        health = await readiness.look()
        assert failing(health.as_json(1)) == {"database": "no answer within 2 s"}
        clock.now += READINESS_KEPT_SECONDS
    assert control.pings == 1
    control.open.set()
    assert (await readiness.look()).good
    clock.now += READINESS_KEPT_SECONDS
    control.open.clear()
    asked = control.pings
    look = asyncio.ensure_future(readiness.look())
    while control.pings == asked:
        await asyncio.sleep(0)
    await readiness.stop()
    await asyncio.wait([look])
    assert look.cancelled()


async def test_an_unexpected_error_is_a_cause_too(broker: BrokerServer, control: Control) -> None:
    control.failure = ZeroDivisionError("of ours")
    health = await broker.assembly.readiness.look()
    assert "of ours" in failing(health.as_json(1))["database"]


async def test_a_data_directory_that_is_gone_is_named(
    broker: BrokerServer, clock: Clock, admin: AdminServer
) -> None:
    directory = Path(broker.store.directory)
    away = directory.with_name("away")
    directory.rename(away)
    try:
        status, answer = await fetch(admin, "/readyz")
    finally:
        away.rename(directory)
    assert status == 503
    assert str(directory) in failing(answer)["disk"]
    clock.now += READINESS_KEPT_SECONDS
    assert (await fetch(admin, "/readyz"))[0] == 200


def test_too_little_space_is_reported_with_both_numbers(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    check_disk(str(tmp_path), free, free // 2)
    with pytest.raises(OSError, match=f"needs at least {free * 2}"):
        check_disk(str(tmp_path), free, free * 2)


async def test_causes_are_shown_to_principals_that_may_describe_the_cluster(
    guarded: Guarded,
) -> None:
    guarded.broker.stopping.set()
    for path in ("/readyz", "/health"):
        guarded.authoriser.replace([])
        status, answer = await fetch(guarded.server, path)
        assert (status, failing(answer)) == (503, {"serving": "failing"})
        guarded.allow("describe", "cluster", CLUSTER)
        status, answer = await fetch(guarded.server, path)
        assert (status, failing(answer)) == (503, {"serving": "the broker is stopping"})
