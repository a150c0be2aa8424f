"""Registration of a broker: renewal, expiry of others, loss and return, and two with one id."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import load
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.groups.runtime.core import Refused
from penstock.broker.groups.runtime.saving import CoordinatorNotAvailable, owner_of
from penstock.broker.liveness import Liveness, Session
from penstock.broker.server import BrokerServer
from penstock.control import ControlUnavailable, MemoryControlPlane
from tests.broker.handlers.conftest import broker as broker  # the fixture
from tests.broker.handlers.conftest import give

ME, OTHER = UUID(int=1), UUID(int=2)
TIMEOUT = 9.0


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    def move(self, seconds: float) -> None:
        self.ms += int(seconds * 1000)


class Control(MemoryControlPlane):
    """A control plane that may be away."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.away = False
        self.silent = False

    async def renew_broker(self, *, broker_id: int, incarnation: UUID) -> None:
        if self.away:
            raise ControlUnavailable("away")
        if self.silent:
            await asyncio.Event().wait()
        await super().renew_broker(broker_id=broker_id, incarnation=incarnation)


class House:
    """Broker under test on a control plane with a clock."""

    def __init__(self, broker: BrokerServer) -> None:
        self.clock = Clock()
        self.control = Control(self.clock)
        self.superseded = 0
        self.broker = broker
        give(broker, clock=self.clock, control=self.control)
        broker.cluster.on_image.append(broker.coordinator.image_changed)
        self.liveness = Liveness(
            settings=broker.settings,
            control=self.control,
            clock=self.clock,
            cluster=broker.cluster,
            coordinator=broker.coordinator,
            transactions=broker.transactions,
            migrations=broker.migrations,
            incarnation=ME,
            register=self.register,
            on_superseded=self.end,
        )

    async def register(self, broker_id: int = 1, incarnation: UUID = ME) -> None:
        await self.control.register_broker(
            broker_id=broker_id, host="h", port=1, rack=None, incarnation=incarnation
        )
        await self.broker.cluster.refresh()

    def end(self) -> None:
        self.superseded += 1

    async def beat(self, seconds: float = 2.0, *, other: bool = False) -> None:
        """A beat after a pause; the other broker renews itself if asked."""
        self.clock.move(seconds)
        if other:
            await self.control.renew_broker(broker_id=2, incarnation=OTHER)
        await self.liveness.beat()

    def brokers(self) -> list[int]:
        return [broker.broker_id for broker in self.broker.cluster.image.brokers]


@pytest.fixture
async def house(broker: BrokerServer) -> House:
    house = House(broker)
    await house.register()
    await house.register(2, OTHER)
    return house


def test_a_session_is_over_when_nothing_was_renewed_for_its_length() -> None:
    session = Session(TIMEOUT, 100.0)
    assert not session.over(108.9)
    assert session.over(109.0)
    session.renewed(105.0, 105.0)
    session.renewed(103.0, 105.0)
    assert not session.over(113.9)
    assert session.over(114.0)


def test_others_are_expired_only_after_an_unbroken_session() -> None:
    session = Session(TIMEOUT, 100.0)
    for now in range(102, 109, 2):
        session.renewed(now, now)
        assert not session.may_expire_others(now)
    session.renewed(110.0, 110.0)
    assert session.may_expire_others(110.0)
    session.renewed(115.0, 115.0)
    assert not session.may_expire_others(115.0), "the plane was away: others could not renew"
    for now in range(117, 126, 2):
        session.renewed(now, now)
    assert session.may_expire_others(125.0)
    assert not session.may_expire_others(135.0)
    session.renewed(127.0, 132.0)
    assert not session.may_expire_others(132.0), "the plane was slow: others wait for it yet"


async def test_a_silent_broker_is_expired(house: House) -> None:
    for _ in range(5):
        await house.beat(other=True)
    assert house.brokers() == [1, 2]
    for _ in range(5):
        await house.beat()
    assert house.brokers() == [1]


async def test_a_failed_check_for_switches_does_not_stop_expiry(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise ControlUnavailable("no switches can be read")

    monkeypatch.setattr(house.broker.migrations, "look", fails)
    await house.register(2, OTHER)
    for _ in range(6):
        await house.beat()
    assert house.brokers() == [1]


async def test_a_renewal_without_response_does_not_delay_later_ones(house: House) -> None:
    """The driver still waits on a connection that a network has cut."""
    house.liveness._timeout_ms = 10
    house.control.silent = True
    await asyncio.wait_for(house.beat(), 60)
    house.control.silent = False
    house.liveness._timeout_ms = 9_000
    await house.register(3, OTHER)
    for _ in range(6):
        await house.beat()
    assert house.brokers() == [1], "it renews itself, and sees who does not"


async def test_no_broker_is_expired_when_the_control_plane_returns(house: House) -> None:
    for _ in range(5):
        await house.beat(other=True)
    house.control.away = True
    for _ in range(10):
        await house.beat()
    house.control.away = False
    for _ in range(5):
        await house.beat()
        assert house.brokers() == [1, 2]
    await house.beat()
    assert house.brokers() == [1], "it had one session for a renewal"


async def test_an_expired_broker_registers_again(house: House) -> None:
    (before, _) = house.broker.cluster.image.brokers
    house.clock.move(20)
    await house.register(3, OTHER)
    assert await house.control.expire_brokers(9_000, by=3) == [1, 2]
    await house.beat()
    after = house.broker.cluster.image.broker(1)
    assert after is not None
    assert after.epoch == before.epoch + 1
    assert not house.broker.coordinator.suspended
    assert house.superseded == 0


async def test_a_broker_whose_id_is_anothers_ends(house: House) -> None:
    await house.register(1, OTHER)
    await house.beat()
    assert house.superseded == 1
    assert house.broker.coordinator.suspended
    assert house.broker.cluster.image.broker(1) is not None


async def test_groups_are_refused_while_the_registration_may_be_lost(house: House) -> None:
    house.liveness._interval_seconds = 0.001
    house.control.away = True
    house.clock.move(9)
    house.liveness.start()
    async with asyncio.timeout(60):
        while not house.broker.coordinator.suspended:
            await asyncio.sleep(0.001)
        with pytest.raises(CoordinatorNotAvailable, match="cannot reach the control plane"):
            await house.broker.coordinator.describe("g")
        with pytest.raises(CoordinatorNotAvailable, match="cannot reach the control plane"):
            await house.broker.coordinator.list_groups()
        listed = await house.broker.coordinator.subscribed(owned(house), ())
        assert isinstance(listed, Refused)
        assert listed.error == "coordinator_not_available"
        house.control.away = False
        while house.broker.coordinator.suspended:
            await asyncio.sleep(0.001)
    await house.liveness.stop()
    await house.liveness.stop()


def owned(house: House) -> str:
    """A group of this broker."""
    names = (f"g{number}" for number in range(100))
    return next(name for name in names if owner_of(house.broker.cluster.image, name).broker_id == 1)


def test_a_session_has_room_for_three_beats() -> None:
    with pytest.raises(InvalidSetting, match=r"at most a third of broker\.session\.timeout\.ms"):
        load(BrokerSettings, {"broker.heartbeat.interval.ms": 3001})
    load(BrokerSettings, {"broker.heartbeat.interval.ms": 3000})
