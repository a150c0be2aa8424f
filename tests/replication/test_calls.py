"""Calls about many partitions at once: in parts, again after errors, and never forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from penstock.base.errors import PenstockError
from penstock.control.values.errors import EPOCH_PARTITIONS_PER_CALL_MAX
from penstock.replication.service import Calls


class Plane:
    """Answers with what it was asked, after some errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sizes: list[int] = []
        self.heard: list[tuple[int, str, str]] = []
        self.calls = Calls("questions", self.ask, self.answered)

    async def ask(self, asked: Sequence[tuple[int, str]]) -> Sequence[str]:
        self.sizes.append(len(asked))
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors.pop()
        return [value * 2 for _, value in asked]

    def answered(self, key: int, value: str, answer: str) -> None:
        if value == "bad":
            raise ValueError("unexpected answer of a peer")
        self.heard.append((key, value, answer))

    async def until_heard(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self.heard) < count:
                await asyncio.sleep(0.01)


async def test_a_call_takes_no_more_than_the_control_plane() -> None:
    plane, most = Plane(), EPOCH_PARTITIONS_PER_CALL_MAX
    for key in range(2 * most + 5):
        plane.calls.add(key, "x")
    await plane.until_heard(2 * most + 5)
    assert plane.sizes == [most, most, 5]
    assert plane.heard[-1] == (2 * most + 4, "x", "xx")


@pytest.mark.parametrize("error", [PenstockError("away"), OSError("reset"), KeyError("a bug")])
async def test_what_failed_is_asked_again_with_what_came_since(error: Exception) -> None:
    plane = Plane(error)
    for key in (1, 2, 3):
        plane.calls.add(key, "old")
    await asyncio.sleep(0)
    plane.calls.add(2, "new")
    plane.calls.add(4, "new")
    await plane.until_heard(4)
    assert sorted(plane.heard) == [
        (1, "old", "oldold"), (2, "new", "newnew"), (3, "old", "oldold"), (4, "new", "newnew"),
    ]  # fmt: skip
    plane.calls.add(5, "x")
    await plane.until_heard(5)


async def test_an_answer_that_cannot_be_used_holds_up_no_other() -> None:
    plane = Plane()
    for key, value in ((1, "bad"), (2, "x"), (3, "y")):
        plane.calls.add(key, value)
    plane.calls.drop(3)
    await plane.until_heard(1)
    assert plane.heard == [(2, "x", "xx")]
    await plane.calls.close()
