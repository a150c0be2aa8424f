"""Commits to diskless topics: one transaction, with failures before, in and after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.batch_commits import pieces as pieces_module
from penstock.broker.batch_commits import service as service_module
from penstock.broker.batch_commits.manifest import InvalidCommit, NotFinished, SinkOwnerChanged
from penstock.control import EntryRefused, SinkCommit
from penstock.records import split_batches
from tests.broker.batch_commits.diskless_house import DISKLESS, DisklessHouse
from tests.broker.batch_commits.sink_client import Part
from tests.broker.batch_commits.test_service import Killed

MIXED = pytest.mark.parametrize("local", [False, True], ids=["diskless", "mixed"])


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[DisklessHouse]:
    house = DisklessHouse(tmp_path)
    await house.start()
    await house.topic("d", 2, DISKLESS)
    await house.topic("l", 1)
    yield house
    await house.stop()


def values(batch: int, target: str, count: int = 40) -> list[str]:
    return [f"{batch}/{target}/{n}" for n in range(count)]


def staged(
    house: DisklessHouse, batch: int, *, local: bool = False, name: str = "b"
) -> list[dict[str, Any]]:
    """Stage two blobs, each with half of every partition."""
    targets = [("d", 0), *([("l", 0)] if local else []), ("d", 1)]
    return [
        house.stage(
            f"{name}{batch}-{number}",
            [Part(topic, p, values(batch, f"{topic}{p}")[cut]) for topic, p in targets],
        )
        for number, cut in enumerate((slice(0, 20), slice(20, None)))
    ]


def whole(batches: int, target: str) -> list[str]:
    return [value for batch in range(batches) for value in values(batch, target)]


async def row_of(house: DisklessHouse) -> SinkCommit | None:
    return await house.control.sink_commit("q")


async def check(house: DisklessHouse, batches: int, *, local: bool = False) -> None:
    for p in (0, 1):
        assert await house.remote_values("d", p) == whole(batches, f"d{p}")
    assert house.values("l") == (whole(batches, "l0") if local else [])


@MIXED
async def test_batches_are_there_once(house: DisklessHouse, local: bool) -> None:
    house.woken.clear()
    for batch in range(3):
        blobs = staged(house, batch, local=local)
        done = await house.post(batch, blobs)
        assert (done.outcome, done.records) == ("appended", 120 if local else 80)
        assert [(target.base_offset, target.next_offset) for target in done.targets] == [
            (40 * batch, 40 * batch + 40)
        ] * (3 if local else 2)
        assert house.staged() == []
        again = await house.post(batch, blobs)
        assert (again.outcome, again.targets) == ("replayed", done.targets)
    assert (await house.post(1, staged(house, 1))).outcome == "replayed"
    await check(house, 3, local=local)
    row = await row_of(house)
    assert row is not None
    assert (row.state, row.batch_id, row.manifest) == ("done", 2, b"")
    assert {target.topic: target.producer_id >= 0 for target in row.targets} == (
        {"d": False, "l": True} if local else {"d": False}
    )
    # One object a batch, as its bytes fit into one; readers on this broker are told of each.
    assert (await house.objects_by_state())["committed"] == 3
    assert sorted(house.woken) == ["d-0"] * 3 + ["d-1"] * 3
    assert house.store.kept_producers == set()
    assert house.sinks.counters.records == (360 if local else 240)


async def test_a_target_is_kept_while_it_has_a_producer(house: DisklessHouse) -> None:
    await house.post(0, staged(house, 0, local=True))
    await house.post(1, [house.stage("x", [Part("d", 1, values(1, "d1"))])])
    row = await row_of(house)
    assert row is not None
    assert [(target.topic, target.records) for target in row.targets] == [("d", 40), ("l", 0)]
    await house.post(2, [house.stage("y", [Part("l", 0, values(1, "l0"))])])
    assert house.values("l") == whole(2, "l0")


async def test_a_batch_of_many_objects_is_in_order(house: DisklessHouse) -> None:
    many = [f"{n}-{'x' * 2000}" for n in range(300)]
    blobs = [
        house.stage(f"b{number}", [Part("d", 0, many[number * 50 : number * 50 + 50])])
        for number in range(6)
    ]
    assert (await house.post(0, blobs)).records == 300
    assert await house.remote_values("d", 0) == many
    assert (await house.objects_by_state())["committed"] == 6


class Steps:
    """Counts the steps of a commit, and ends the process at one of them."""

    def __init__(self, house: DisklessHouse, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        house.control.on_save = lambda record: self.step()
        for owner, name in (
            (house.objects.inner, "put"),
            (house.control, "lease_objects"),
            (service_module, "remove_blobs"),
            (service_module, "check_blobs"),
            (pieces_module.PieceReader, "read"),
        ):
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.step()
            return call(*arguments, **named)

        return counted

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1


@MIXED
@pytest.mark.timeout(300)
async def test_killed_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    """The process ends between any two steps of a commit; the driver may post again."""
    killed = 0
    for at in range(100):
        with monkeypatch.context() as patch:
            patch.setattr(pieces_module, "PIECE_BYTES_MAX", 500)
            house = DisklessHouse(tmp_path / str(at))
            steps = Steps(house, patch)
            await house.start()
            await house.topic("d", 2, DISKLESS)
            await house.topic("l", 1)
            assert (await house.post(0, staged(house, 0, local=local))).outcome == "appended"
            steps.left = at
            try:
                await house.post(1, staged(house, 1, local=local))
                done = True
            except Killed:
                killed += 1
                done = False
            await house.crash()
            steps.left = -1
            await house.start()
            await house.settled()
            row = await row_of(house)
            assert row is not None
            assert row.state == "done"
            await check(house, row.batch_id + 1, local=local)
            answer = await house.post(1, staged(house, 1, local=local, name="again"))
            assert answer.outcome == ("replayed" if row.batch_id == 1 else "appended")
            await check(house, 2, local=local)
            await house.stop()
        if done:
            break
    assert done
    assert killed > (9 if local else 7)


@MIXED
@pytest.mark.parametrize("script", [["fails"], ["lands"], ["fails", "lands", "fails"]])
async def test_a_commit_of_unknown_outcome_is_repeated(
    house: DisklessHouse, script: list[str], local: bool
) -> None:
    house.control.script = list(script)
    done = await house.post(0, staged(house, 0, local=local))
    assert (done.outcome, len(done.targets)) == ("appended", 3 if local else 2)
    assert house.control.commits == len(script) + 1
    await check(house, 1, local=local)


@MIXED
async def test_a_commit_with_a_lost_response_is_found(house: DisklessHouse, local: bool) -> None:
    house.control.script = ["lands", "fails", "fails", "fails"]
    with pytest.raises(NotFinished, match="not made"):
        await house.post(0, staged(house, 0, local=local))
    # Nobody posts again: consumers are told all the same.
    partition = house.service.partitions_of(house.broker.partitions.topics["d"].topic)[1]
    await house.until(lambda: partition.high_watermark == 40)
    assert "d-1" in house.woken
    await house.settled()
    again = await house.post(0, staged(house, 0, local=local))
    assert (again.outcome, len(again.targets)) == ("replayed", 3 if local else 2)
    await check(house, 1, local=local)


@MIXED
@pytest.mark.parametrize("fault", ["swept", "overtaken"])
async def test_a_commit_that_comes_too_late(house: DisklessHouse, fault: str, local: bool) -> None:
    """Its objects were swept, or another broker has taken over the row."""
    house.control.script = [fault]
    with pytest.raises(NotFinished):
        await house.post(0, staged(house, 0, local=local))
    if fault == "overtaken":
        assert await house.remote_values("d", 0) == []
        assert set(await house.objects_by_state()) == {"pending"}
    await house.settled()
    answer = await house.post(0, staged(house, 0, local=local))
    if fault == "overtaken":
        assert answer.outcome == "replayed"
        return
    assert answer.outcome == ("replayed" if local else "appended")
    await check(house, 1, local=local)


async def test_a_topic_that_is_gone_refuses_the_whole_commit(house: DisklessHouse) -> None:
    await house.topic("e", 1, DISKLESS)
    blobs = [
        house.stage("e", [Part("e", 0, ["lost"])]),
        house.stage("d", [Part("d", 0, values(0, "d0"))]),
    ]
    house.control.script = ["deleted"]
    with pytest.raises(EntryRefused, match="there is no topic of id"):
        await house.post(0, blobs)
    assert await row_of(house) is None
    assert await house.remote_values("d", 0) == []
    assert set(await house.objects_by_state()) == {"pending"}
    assert house.sinks.prepared_commits == 0
    assert (await house.post(0, blobs[1:])).outcome == "appended"


async def test_a_topic_that_goes_after_the_intent_is_left_out(house: DisklessHouse) -> None:
    await house.topic("e", 1, DISKLESS)
    blobs = [
        house.stage("e", [Part("e", 0, ["lost"])]),
        *staged(house, 0, local=True),
    ]
    house.control.script = ["deleted"]
    with pytest.raises(NotFinished, match="there is no topic of id"):
        await house.post(0, blobs)
    await house.broker.cluster.refresh()
    await house.settled()
    await check(house, 1, local=True)
    assert house.sinks.counters.skipped == 1


@MIXED
async def test_puts_that_fail(house: DisklessHouse, local: bool) -> None:
    house.objects.script.extend(["fails", "lands", "truncated"])
    assert (await house.post(0, staged(house, 0, local=local))).outcome == "appended"
    keys = house.keys_tried()
    assert len(set(keys)) == len(keys) == 4
    house.objects.script.extend(["fails"] * 6)
    with pytest.raises(NotFinished, match="not written in 6 attempts"):
        await house.post(1, staged(house, 1, local=local))
    await house.settled()
    done = await house.post(1, staged(house, 1, local=local))
    assert done.outcome == ("replayed" if local else "appended")
    await check(house, 2, local=local)


@MIXED
async def test_a_broker_that_was_replaced_commits_nothing(
    house: DisklessHouse, local: bool
) -> None:
    await house.control.register_broker(
        broker_id=house.broker.node_id, host="h", port=9, rack=None, incarnation=UUID(int=5)
    )
    with pytest.raises(NotFinished, match="registered by a newer incarnation"):
        await house.post(0, staged(house, 0, local=local))
    assert await house.remote_values("d", 0) == []
    assert house.keys_tried() == []


async def test_another_owner_is_refused(house: DisklessHouse) -> None:
    await house.post(0, staged(house, 0), owner="first")
    with pytest.raises(SinkOwnerChanged, match="belong to owner 'first'"):
        await house.post(1, staged(house, 1), owner="second")
    await check(house, 1)


async def test_a_commit_that_fits_into_no_transaction(
    house: DisklessHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.diskless.topics.service.SINK_OBJECTS_MAX", 2)
    large = house.stage("large", [Part("d", 0, ["x" * 70_000])])
    with pytest.raises(InvalidCommit, match=r"for diskless topics, at most 65536 are allowed"):
        await house.post(0, [large])
    assert await row_of(house) is None
    assert (await house.post(0, staged(house, 0))).outcome == "appended"


async def test_batches_get_the_codec_of_the_topic(house: DisklessHouse) -> None:
    await house.topic("z", 1, {**DISKLESS, "compression.type": "zstd"})
    await house.post(0, [house.stage("z", [Part("z", 0, values(0, "z0"))])])
    assert await house.remote_values("z") == values(0, "z0")
    topic_id = house.broker.partitions.topics["z"].topic.topic_id
    [extent] = await house.control.extents(topic_id, 0, start=0, end=99, limit=9)
    data = await house.objects.get(extent.key, extent.byte_offset, extent.size_bytes)
    headers = split_batches(data)
    assert {(header.codec, header.producer_id) for header in headers} == {(4, -1)}
