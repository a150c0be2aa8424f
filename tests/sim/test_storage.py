"""Crashes of a log store, some of all that `python -m sim.storage` explores; and bugs that must be
found."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
from sim.disk import Disk, Written, torn
from sim.storage.crashes import Crash, crashes
from sim.storage.exploring import Result, explore
from sim.storage.plants import PLANTS, planted
from sim.storage.scenarios import SCENARIOS, Scenario
from sim.storage.world import World

STATES = 15
"""Of each scenario, in the tests that are run always."""

SHY = {"index-ahead-of-log", "small-files-not-synced", "swap-forgotten-early",
       "torn-entry-accepted", "acknowledged-before-sync", "cleaned-not-synced",
       "committed-before-it-is-there", "cut-before-journal", "cut-not-replayed", "data-not-synced",
       "entry-before-data", "name-not-synced", "replay-appends", "stale-entry-accepted",
       "start-not-saved", "torn-tail-accepted", "unsaid-counts"}  # fmt: skip
"""Planted bugs that take some seconds to find."""


@pytest.fixture(autouse=True)
def _without_log() -> Iterator[None]:
    """The store says of each torn end that it cuts it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def holds(scenario: Scenario, seed: int, states: int | None) -> Result:
    result = explore(scenario, seed, states=states)
    print(f"{scenario.name}: {result}")
    assert not result.violation, result.violation
    return result


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_was_acknowledged_outlives_any_crash(scenario: Scenario) -> None:
    assert holds(scenario, 1, STATES).states > STATES // 2


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_what_was_acknowledged_outlives_every_crash(scenario: Scenario) -> None:
    assert holds(scenario, 0, None).states > 1_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] if name in SHY else []) for name in PLANTS],
)
def test_a_planted_bug_is_found(name: str) -> None:
    result = planted(PLANTS[name])
    assert result.violation, f"{name} was not found in {result.states} states"
    # Some show already in what the scenario itself meets.
    assert "power lost after call" in result.violation or not result.calls, result.violation


def test_exploring_gives_the_same_each_time() -> None:
    (scenario,) = [candidate for candidate in SCENARIOS if candidate.name == "mixed"]
    one, two = (explore(scenario, 3, states=10) for _ in range(2))
    assert (one.calls, one.crashes, one.states) == (two.calls, two.crashes, two.states)


def test_every_kind_of_call_is_recorded() -> None:
    """A scenario that no longer does what it is for would find nothing."""
    called = set()
    for scenario in SCENARIOS:
        world = World(0, scenario.bounds)
        scenario.run(world)
        called |= {point.call.split()[0] for point in world.points}
    assert called >= {
        "make_directory", "open", "lock", "write_at", "truncate", "sync_file", "sync_directory",
        "link", "rename", "remove", "remove_tree",
    }  # fmt: skip


def test_a_write_may_survive_in_part() -> None:
    """Yield images: nothing, all, each change alone, and the newest write torn at each sector."""
    disk = Disk()
    file = disk.open("/file", create=True)
    disk.write_at(file, [b"y" * 8], 0)
    found = contents_after(disk)
    assert found == {None, b"", b"\0" * 8} | {b"y" * cut for cut in range(1, 9)} | {
        b"y" * cut + b"\0" * (8 - cut) for cut in range(1, 9)
    } | {b"\0" * cut + b"y" * (8 - cut) for cut in range(1, 9)}  # fmt: skip
    disk.write_at(file, [b"x" * 10_000], 100)
    found = contents_after(disk)
    for end in (512, 1_024, 4_096, 8_192):
        before = b"y" * 8 + b"\0" * 92 + b"x" * (end - 100)
        assert {before, before.ljust(10_100, b"\0")} <= found, end
        assert (b"y" * 8).ljust(end, b"\0") + b"x" * (10_100 - end) in found, end
    assert b"y" * 8 + b"\0" * 10_092 in found, "the length without its bytes"
    disk.sync_file(file)
    assert contents_after(disk) == {None, disk.contents()["file"]}


def contents_after(disk: Disk) -> set[bytes | None]:
    return {disk.image(changes).contents().get("file") for _, changes in crashes_of(disk)}


def crashes_of(disk: Disk) -> list[Crash]:
    return list(crashes(disk.pending, random.Random(1)))


def test_a_torn_write_leaves_its_beginning_or_its_end() -> None:
    disk = Disk()
    file = disk.open("/file", create=True)
    disk.write_at(file, [b"abcdef"], 2)
    (name, change) = disk.pending
    assert isinstance(change, Written)
    assert [disk.image([name, *parts]).contents()["file"] for parts in torn(change, 2)] == [
        b"\0\0ab", b"\0\0ab\0\0\0\0", b"\0\0\0\0cdef",
    ]  # fmt: skip


def test_a_rename_is_there_or_not_there() -> None:
    disk = Disk()
    for name in ("old", "new"):
        file = disk.open(f"/{name}", create=True)
        disk.write_at(file, [name.encode()], 0)
        disk.sync_file(file)
    disk.sync_directory(disk.open_directory("/"))
    disk.rename("/new", "/old")
    assert disk.after_power_loss().contents() == {"old": b"old", "new": b"new"}
    assert disk.image(disk.pending).contents() == {"old": b"new"}
    disk.sync_directory(disk.open_directory("/"))
    assert disk.after_power_loss().contents() == {"old": b"new"}
