"""Epochs on PostgreSQL: brokers that race, answers that are lost, round trips."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from penstock.control import ControlUnavailable, InSyncReplicas
from penstock.control.postgres import PostgresControlPlane
from penstock.control.values.diskless import PartitionKey
from tests.control.postgres_proxy import Cut, proxy_to
from tests.control.replicated import (
    OTHER,
    PROCESSES,
    REPLICAS,
    TOPIC,
    assert_grown,
    assert_sound,
    claim,
    claims,
    create,
    epoch,
    furnish,
    open_all,
)
from tests.control.test_postgres import planes, until
from tests.postgres import PostgresServer

COUNT = 200


async def test_two_claimants_race_over_the_same_partitions(postgres_url: str) -> None:
    """Each partition is reserved twice, one above the other, and the higher one opens it."""
    async with planes(postgres_url) as both:
        keys = await furnish(both[0], COUNT)
        for step in range(6):
            before = await both[0].partition_chains(keys)
            above = max(chain.reservation.reserved for chain in before.values())
            one, other = await asyncio.gather(
                claim(both[0], keys, 1, above), claim(both[1], keys[::-1], 2, above)
            )
            assert {tuple(sorted((one[key], other[key]))) for key in keys} == {
                (above + 1, above + 2)
            }
            refused = await asyncio.gather(
                open_all(both[0], one, 1, end=10 * step), open_all(both[1], other, 2, end=10 * step)
            )
            for key in keys:
                lost = [key in mine for mine in refused]
                assert lost == [one[key] < other[key], other[key] < one[key]]
            after = await both[1].partition_chains(keys)
            for key in keys:
                assert_grown(before[key], after[key])
                assert after[key].reservation.opened == above + 2
                assert len(after[key].epochs) == len(before[key].epochs) + 1
            assert await both[0].image() == await both[1].image()


async def test_an_opening_races_with_a_later_claim(postgres_url: str) -> None:
    """It comes before the claim, and its epoch is the one to recover; or it is refused."""
    async with planes(postgres_url) as both:
        keys = await furnish(both[0], COUNT)
        outcomes = set()
        for step in range(12):
            reserved = await claim(both[0], keys, 1, above=2 * step)
            taken = keys[step % 2 :: 2]
            turn = asyncio.create_task(open_all(both[0], reserved, 1, end=step))
            if step % 3:
                await asyncio.sleep(step / 2000)
            got = await both[1].claim_epochs(
                claims(taken, 2 * step), broker_id=2, incarnation=PROCESSES[2]
            )
            refused = await turn
            assert {chain.reservation.reserved for chain in got.chains.values()} == {2 * step + 2}
            found_open = {key for key in taken if got.chains[key].epochs[-1].epoch == 2 * step + 1}
            assert set(refused) == set(taken) - found_open
            outcomes.add(bool(refused))
            for chain in (await both[0].partition_chains(keys)).values():
                assert_sound(chain)
            others = [key for key in keys if key not in taken]
            assert set((await claim(both[0], others, 1, 2 * step + 1)).values()) == {2 * step + 2}
        assert outcomes == {True, False}


async def test_whatever_brokers_do_chains_grow_and_epochs_have_one_opener(
    postgres_url: str,
) -> None:
    """Three brokers claim and open at random, all at once; one looks on."""
    async with planes(postgres_url, 4) as opened:
        keys = await furnish(opened[0], 20)
        openers: dict[tuple[PartitionKey, int], int] = {}
        running = True

        async def act(plane: PostgresControlPlane, broker_id: int) -> None:
            random = Random(broker_id)
            for _ in range(40):
                chosen = random.sample(keys, random.randint(1, len(keys)))
                reserved = await claim(plane, chosen, broker_id)
                await asyncio.sleep(random.random() / 500)
                refused = await open_all(plane, reserved, broker_id, end=5)
                for key in reserved.keys() - refused.keys():
                    assert openers.setdefault((key, reserved[key]), broker_id) == broker_id

        async def look(plane: PostgresControlPlane) -> None:
            before = await plane.partition_chains(keys)
            while running:
                after = await plane.partition_chains(keys)
                for key in keys:
                    assert_grown(before[key], after[key])
                before = after
                await asyncio.sleep(0)

        looking = asyncio.create_task(look(opened[0]))
        await asyncio.gather(*(act(opened[broker_id], broker_id) for broker_id in (1, 2, 3)))
        running = False
        await looking
        found = await opened[0].partition_chains(keys)
        image = await opened[0].image()
        for key in keys:
            for found_epoch in found[key].epochs[1:]:
                assert openers[key, found_epoch.epoch] == found_epoch.leader
            partition = image.topics["replicated"].partitions[key[1]]
            last = found[key].epochs[-1]
            assert (partition.leader, partition.leader_epoch) == (last.leader, last.epoch)
        assert {
            found_epoch.leader for chain in found.values() for found_epoch in chain.epochs
        } == set(REPLICAS)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_claims_and_openings_of_unknown_outcome_are_repeated(
    postgres: PostgresServer, postgres_url: str, cut: Cut
) -> None:
    async with proxy_to(postgres.port) as proxy, planes(postgres_url, 1) as [near]:
        url = postgres_url.replace(f":{postgres.port}/", f":{proxy.port}/")
        async with planes(url, 1) as [plane]:
            keys = await furnish(plane, 3)
            proxy.cut = cut
            with pytest.raises(ControlUnavailable, match="is not known"):
                await claim(plane, keys)
            made = int(cut == "after")
            found = await near.highest_reserved(keys)
            assert {reservation.reserved for reservation in found.values()} == {made}
            reserved = await claim(plane, keys)
            assert reserved == {key: 1 for key in keys}
            proxy.cut = cut
            with pytest.raises(ControlUnavailable, match="is not known"):
                await open_all(plane, reserved)
            found = await near.highest_reserved(keys)
            assert {reservation.opened for reservation in found.values()} == {made}
            assert await open_all(plane, reserved) == {}
            assert proxy.cuts == 2
            for chain in (await near.partition_chains(keys)).values():
                assert chain.epochs == (epoch(0, 0, 10), epoch(1, 10))
            assert await plane.image() == await near.image()


async def test_a_claim_races_with_the_deletion_of_its_topic(postgres_url: str) -> None:
    """The claim succeeds, or finds no partition; the deletion removes its reservation."""
    async with planes(postgres_url) as [one, other]:
        keys = await furnish(one, COUNT)
        for _ in range(8):
            reserved, _ = await asyncio.gather(claim(other, keys, 2), one.delete_topic(TOPIC))
            assert len(reserved) in (0, COUNT)
            assert await one.highest_reserved(keys) == {}
            await create(one, partitions=[REPLICAS] * COUNT)
            assert {found.reserved for found in (await one.highest_reserved(keys)).values()} == {0}


async def test_other_brokers_are_notified_of_new_leaders(postgres_url: str) -> None:
    received: list[int] = []
    listening = PostgresControlPlane(postgres_url)
    listening.watch(lambda: received.append(1), lambda _: None)
    await listening.start()
    async with planes(postgres_url, 1) as [plane]:
        keys = await furnish(plane, 2)
        await until(lambda: len(received) == 4)
        reserved = await claim(plane, keys, 2)
        await open_all(plane, reserved, 2)
        await until(lambda: len(received) == 5)
        partitions = (await listening.image()).topics["replicated"].partitions
        assert {(partition.leader, partition.leader_epoch) for partition in partitions} == {(2, 1)}
    await listening.close()


@contextmanager
def asked_of(plane: PostgresControlPlane) -> Iterator[list[str]]:
    """The statements of a plane that has one connection."""
    asked: list[str] = []
    [connection] = plane._database._idle
    with connection.query_logger(lambda one: asked.append(one.query)):
        yield asked


async def test_round_trips_do_not_grow_with_partitions(postgres_url: str) -> None:
    async with planes(postgres_url, 1) as [plane]:
        keys = await furnish(plane, 51)
        for chosen in (keys[:1], keys[1:]):
            assert await round_trips(plane, chosen) == [6, 10, 7]


async def round_trips(plane: PostgresControlPlane, keys: list[PartitionKey]) -> list[int]:
    """Count the statements of a claim, an opening, and a change of in-sync replicas."""
    counts = []
    with asked_of(plane) as asked:
        reserved = await claim(plane, keys, 2)
        await until(lambda: asked.count("COMMIT") == 1)
        counts.append(len(asked))
        assert await open_all(plane, reserved, 2) == {}
        await until(lambda: asked.count("COMMIT") == 2)
        counts.append(len(asked) - sum(counts))
        changes = [InSyncReplicas(*key, reserved[key], (2, 3)) for key in keys]
        assert await plane.set_isr(changes, broker_id=2, incarnation=PROCESSES[2]) == {}
        await until(lambda: asked.count("COMMIT") == 3)
        counts.append(len(asked) - sum(counts))
    return counts


@pytest.mark.parametrize(("replicas", "touched"), [([1], False), ([1, 2], True)])
async def test_topics_of_one_replica_do_not_touch_epochs(
    postgres_url: str, replicas: list[int], touched: bool
) -> None:
    async with planes(postgres_url, 1) as [plane]:
        await furnish(plane, 1)
        with asked_of(plane) as asked:
            await create(plane, "t", OTHER, partitions=[replicas])
            await plane.create_partitions(topic_id=OTHER, expected_count=1, new=[[2], [3]])
            await plane.delete_topic(OTHER)
            await until(lambda: asked.count("COMMIT") == 3)
        assert any("epochs" in text for text in asked) is touched
        assert any("replicated" in text for text in asked) is touched
