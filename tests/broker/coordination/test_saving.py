"""Saves: one transaction a turn, one at a time, and the outcome of each key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from uuid import UUID

import pytest

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.broker.groups.runtime import saving
from penstock.broker.groups.runtime.core import Save, Saved, SaveFailed
from penstock.broker.groups.runtime.saving import KeyRows, Lost, Outcome, Ownership, Pending, Saver
from penstock.control import (
    ControlUnavailable,
    CoordinationRecord,
    MemoryControlPlane,
    MetadataImage,
    RecordChange,
    SavedRecords,
)

ME, OTHER = UUID(int=1), UUID(int=2)


class Plane(MemoryControlPlane):
    """A control plane that counts transactions, and can delay or fail them."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[Sequence[RecordChange]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.before: Callable[[], ControlUnavailable | None] = lambda: None
        self.after: Callable[[], ControlUnavailable | None] = lambda: None
        self.unreadable = False

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        self.transactions.append(changes)
        await self.open.wait()
        if error := self.before():
            raise error
        saved = await super().save_records(changes, cluster_epoch=cluster_epoch)
        if error := self.after():
            raise error
        return saved

    async def records(self, kind: str, keys: Sequence[str]) -> list[CoordinationRecord]:
        if self.unreadable:
            raise ControlUnavailable("away")
        return await super().records(kind, keys)


class Cluster:
    """The image of a plane at its last refresh."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.image = MetadataImage(version=0, cluster_id="")
        self.refreshed: Callable[[], Awaitable[None]] = self._nothing

    async def refresh(self) -> None:
        self.image = await self.plane.image()
        await self.refreshed()

    async def _nothing(self) -> None:
        pass


class House:
    """A saver, known rows of keys, and their reported outcomes."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.cluster = Cluster(self.plane)
        self.ownership = Ownership(1, self.cluster)
        self.saver = Saver(self.plane, self.ownership)
        self.keys: dict[str, KeyRows] = {}
        self.reported: list[tuple[str, Outcome]] = []

    def put(self, key: str, rows: Mapping[str, bytes]) -> None:
        known = self.keys.setdefault(key, KeyRows(key))

        def report(outcome: Outcome) -> None:
            self.reported.append((key, outcome))

        self.saver.put(Pending("group", known, Save(key=key, rows=rows), report))

    async def save(self, key: str, rows: Mapping[str, bytes]) -> Outcome:
        self.put(key, rows)
        await self.saver.finish()
        return self.reported[-1][1]

    async def stored(self, *keys: str) -> list[tuple[str, str, bytes]]:
        self.plane.unreadable = False
        return [(row.key, row.member, row.value) for row in await self.plane.records("group", keys)]

    async def register(self, broker_id: int, incarnation: UUID) -> None:
        await self.plane.register_broker(
            broker_id=broker_id, host="h", port=1, rack=None, incarnation=incarnation
        )


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House()
    await house.register(1, ME)
    await house.cluster.refresh()
    yield house
    await house.saver.finish()


async def test_all_saves_of_a_turn_are_one_transaction(house: House) -> None:
    for number in range(100):
        house.put(f"g{number}", {"": b"0", "m": b"1"})
    await house.saver.finish()
    assert [len(changes) for changes in house.plane.transactions] == [100]
    assert house.reported == [(f"g{n}", Saved(key=f"g{n}")) for n in range(100)]
    assert len(await house.plane.record_keys("group")) == 100


async def test_one_is_under_way_and_the_next_gathers(house: House) -> None:
    house.plane.open.clear()
    house.put("a", {"": b"0"})
    await asyncio.sleep(0)
    for key in "bcd":
        house.put(key, {"": b"0"})
        await asyncio.sleep(0)
    assert [len(changes) for changes in house.plane.transactions] == [1]
    house.plane.open.set()
    await house.saver.finish()
    assert [len(changes) for changes in house.plane.transactions] == [1, 3]


async def test_a_key_is_saved_once_in_a_transaction(house: House) -> None:
    house.put("a", {"": b"0"})
    house.put("a", {"": b"1"})
    await house.saver.finish()
    assert [len(changes) for changes in house.plane.transactions] == [1, 1]
    assert house.reported == [("a", Saved(key="a"))] * 2
    assert await house.stored("a") == [("a", "", b"1")]


async def test_a_transaction_has_bounds(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SAVE_KEYS_MAX", 3)
    for number in range(7):
        house.put(f"g{number}", {"": b"0"})
    await house.saver.finish()
    assert [len(changes) for changes in house.plane.transactions] == [3, 3, 1]
    monkeypatch.setattr(saving, "SAVE_BYTES_MAX", 10)
    for key in "abc":
        house.put(key, {"": b"0" * 20})
    await house.saver.finish()
    assert [len(changes) for changes in house.plane.transactions[3:]] == [1, 1, 1]


async def test_only_rows_that_change_are_written(house: House) -> None:
    await house.save("g", {"": b"0", "a": b"1", "b": b"2", "c": b"3"})
    await house.save("g", {"": b"0", "a": b"1", "b": b"9", "d": b"4"})
    (change,) = house.plane.transactions[-1]
    assert change.rows == {
        "": b"0",  # for its version stands for the key's
        "b": b"9",
        "c": None,
        "d": b"4",
    }
    assert await house.save("g", {}) == Saved(key="g")
    assert await house.stored("g") == []


async def test_a_key_that_another_has_saved_fails_alone(house: House) -> None:
    await house.save("g", {"": b"0"})
    other = House()
    other.plane, other.saver = house.plane, Saver(house.plane, house.ownership)
    other.keys["g"] = KeyRows("g", await house.plane.records("group", ["g"]))
    await other.save("g", {"": b"theirs"})
    house.put("g", {"": b"mine"})
    house.put("h", {"": b"0"})
    await house.saver.finish()
    outcomes = dict(house.reported[1:])
    lost = outcomes["g"]
    assert isinstance(lost, Lost)
    assert lost.found is not None
    assert [row.value for row in lost.found] == [b"theirs"]
    assert outcomes["h"] == Saved(key="h")


@pytest.mark.parametrize("stored", [True, False])
async def test_an_outcome_that_is_unknown_is_looked_up(house: House, stored: bool) -> None:
    await house.save("g", {"": b"0"})
    lost = ControlUnavailable("the answer was lost")
    if stored:
        house.plane.after = lambda: lost
    else:
        house.plane.before = lambda: lost
    outcome = await house.save("g", {"": b"1", "m": b"2"})
    assert isinstance(outcome, Saved if stored else SaveFailed)
    house.plane.after = house.plane.before = lambda: None
    assert await house.save("g", {"": b"3"}) == Saved(key="g")
    assert await house.stored("g") == [("g", "", b"3")]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_unreadable_row_is_not_taken_for_another_coordinators(
    house: House, stored: bool
) -> None:
    await house.save("g", {"": b"0"})
    lost = ControlUnavailable("the answer was lost")
    if stored:
        house.plane.after = lambda: lost
    else:
        house.plane.before = lambda: lost
    house.plane.unreadable = True
    assert isinstance(await house.save("g", {"": b"1", "m": b"2"}), SaveFailed)
    house.plane.after = house.plane.before = lambda: None
    house.plane.unreadable = False
    assert await house.save("g", {"": b"3"}) == Saved(key="g")
    assert await house.stored("g") == [("g", "", b"3")]


async def test_a_removal_of_nothing_that_fails_is_not_taken_for_done(house: House) -> None:
    house.plane.before = lambda: ControlUnavailable("away")
    assert isinstance(await house.save("simple", {}), SaveFailed)


async def test_keys_that_stay_are_saved_although_brokers_came(house: House) -> None:
    await house.register(2, OTHER)
    keys = [f"g{number}" for number in range(20)]
    for key in keys:
        house.put(key, {"": b"0"})
    await house.saver.finish()
    mine = {key for key in keys if house.ownership.owns(key)}
    assert 0 < len(mine) < len(keys)
    assert {key for key, outcome in house.reported if isinstance(outcome, Saved)} == mine
    assert {key for key, outcome in house.reported if isinstance(outcome, Lost)} == {*keys} - mine
    assert set(await house.plane.record_keys("group")) == mine


async def test_brokers_that_come_and_go_all_the_time_do_not_keep_it_for_ever(
    house: House,
) -> None:
    house.cluster.refreshed = lambda: house.register(1, SYSTEM_RANDOMNESS.uuid())
    await house.register(1, OTHER)
    outcome = await house.save("g", {"": b"0"})
    assert isinstance(outcome, SaveFailed)
    assert "cluster epoch" in outcome.reason
