"""Loading: single keys on demand, all keys in rounds, and again after a change of brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import pytest

from penstock.broker.groups.runtime import saving
from penstock.broker.groups.runtime.saving import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    FoundKey,
    Loads,
    NotCoordinator,
)
from penstock.control import ControlUnavailable, CoordinationRecord


def found(key: str) -> FoundKey:
    return FoundKey(rows=[CoordinationRecord(key=key, member="", version=1, value=b"")])


class Source:
    """Keys in memory, with a gate before each read, and a list of reads."""

    def __init__(self, *keys: str) -> None:
        self.stored = set(keys)
        self.reads: list[Sequence[str]] = []
        self.lists = 0
        self.away = False
        self.open = asyncio.Event()
        self.open.set()

    async def keys(self) -> Collection[str]:
        self.lists += 1
        await self._wait()
        return self.stored

    async def read(self, keys: Sequence[str]) -> Mapping[str, FoundKey]:
        self.reads.append(keys)
        await self._wait()
        return {key: found(key) for key in keys if key in self.stored}

    async def _wait(self) -> None:
        for _ in range(3):  # as a real source, it takes some turns of the loop
            await asyncio.sleep(0)
        await self.open.wait()
        if self.away:
            raise ControlUnavailable("away")


class House:
    """The loads of a source, and the keys that were taken over."""

    def __init__(self, *keys: str) -> None:
        self.source = Source(*keys)
        self.taken: dict[str, FoundKey] = {}
        self.foreign: set[str] = set()
        self.rounds = 0
        self.loads = Loads(
            self.source,
            owns=lambda key: key not in self.foreign,
            known=lambda: list(self.taken),
            before=lambda keys: {},
            take=self.take,
            completed=self.completed,
        )

    def take(self, key: str, what: FoundKey, mark: Any) -> None:
        self.taken[key] = what

    def completed(self) -> None:
        self.rounds += 1


@pytest.fixture
async def house() -> AsyncIterator[House]:
    house = House(*(f"g{number}" for number in range(10)))
    yield house
    await house.loads.stop()


async def test_a_key_is_read_alone(house: House) -> None:
    await house.loads.load("g3")
    assert house.source.reads[0] == ["g3"]
    assert list(house.taken) == ["g3"]
    assert house.loads.ready("g3")
    assert not house.loads.ready("g4")


async def test_all_that_is_owned_is_loaded_in_time(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "LOAD_KEYS_MAX", 4)
    house.foreign = {"g1"}
    await house.loads.load("g9")
    await house.loads.load(None)
    assert [len(keys) for keys in house.source.reads] == [1, 4, 4]
    assert sorted(house.taken) == sorted(house.source.stored - {"g1"})
    assert (house.rounds, house.source.lists) == (1, 1)
    await house.loads.load("what is not known is not there")
    assert len(house.source.reads) == 3


async def test_requested_keys_are_read_first(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "LOAD_KEYS_MAX", 2)
    house.loads.start()
    while not house.source.reads:
        await asyncio.sleep(0)
    last = sorted(house.source.stored)[-1]
    await house.loads.load(last)
    assert house.source.reads[1] == [last]
    assert house.rounds == 0


async def test_a_failure_fails_waiting_requests_and_the_next_one_resumes(house: House) -> None:
    house.source.away = True
    waiting = [asyncio.create_task(house.loads.load(key)) for key in ("g1", "g2", None)]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ControlUnavailable] * 3
    house.source.away = False
    await house.loads.load("g2")
    await house.loads.load(None)
    assert sorted(house.taken) == sorted(house.source.stored)


async def test_a_bug_fails_waiting_requests(house: House) -> None:
    house.source.reads = None  # type: ignore[assignment]
    house.loads.start()
    (task,) = asyncio.all_tasks() - {asyncio.current_task()}
    with pytest.raises(CoordinatorNotAvailable, match="stopped loading"):
        await house.loads.load("g1")
    with pytest.raises(AttributeError):
        await task


async def test_only_so_many_wait(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "LOADS_WAITING_MAX", 3)
    house.source.open.clear()
    waiting = [asyncio.create_task(house.loads.load(f"g{n}")) for n in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoading) as caught:
        await house.loads.load("g9")
    assert caught.value.code == "coordinator_load_in_progress"
    house.source.open.set()
    await asyncio.gather(*waiting)
    await house.loads.load("g9")


async def test_what_was_read_before_brokers_came_is_read_again(house: House) -> None:
    house.source.open.clear()
    waiting = asyncio.create_task(house.loads.load("g1"))
    while not house.source.reads:
        await asyncio.sleep(0)
    house.loads.begin()
    house.source.open.set()
    await waiting
    assert house.source.reads[:2] == [["g1"], ["g1"]]


async def test_what_another_broker_owns_now_is_refused(house: House) -> None:
    house.source.open.clear()
    waiting = asyncio.create_task(house.loads.load("g1"))
    await asyncio.sleep(0)
    house.foreign = {"g1"}
    house.source.open.set()
    with pytest.raises(NotCoordinator):
        await waiting
    assert "g1" not in house.taken


async def test_a_round_looks_at_what_is_known_and_gone(house: House) -> None:
    await house.loads.load(None)
    house.source.stored.discard("g1")
    house.loads.begin()
    await house.loads.load(None)
    assert not house.taken["g1"].rows
    assert house.rounds == 2


async def test_waiting_requests_fail_at_stop(house: House) -> None:
    house.source.open.clear()
    waiting = asyncio.create_task(house.loads.load("g1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await house.loads.stop()
    with pytest.raises(CoordinatorNotAvailable, match="stopped loading"):
        await waiting
