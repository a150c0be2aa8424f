"""The shells of three brokers over real logs: whatever breaks, what was acknowledged is there.

Links and the control plane are in memory; a broker that dies leaves its files. Leaders delete what
is committed, copies do so by themselves, and some come back with an empty disk: so logs begin
anywhere, and copies start again where their leader's does. In some stories the power fails: all are
off at once, and their disks have what was synced, and of the rest anything.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, Files
from penstock.records import split_batches
from penstock.records.appends import AppendResult
from penstock.replication.chain import Chain, Link
from penstock.replication.epoch import Claim, Terms
from penstock.replication.links import Outgoing
from penstock.replication.messages import SealAndOpen
from penstock.replication.peer_format import PartitionKey, decode_rows
from penstock.replication.service import Led, Replication, Reserved
from penstock.storage import LogConfig
from tests.faulty_files import SYNCS, FaultyFiles
from tests.storage.batches import TOPIC_ID, FakeClock, Harness, abandon, batch, read_all

KEY = PartitionKey(TOPIC_ID.bytes, 0)
NODES = (1, 2, 3)
TERMS = Terms(NODES, 2)
STEPS = 150
LATER = 400
"""Turns of the loop until everything that can come has come."""


class Plane:
    """The control plane of one partition."""

    def __init__(self) -> None:
        self.reserved_epoch = 0
        self.chain: Chain = (Link(0, 0),)

    async def claim(self, keys: Sequence[PartitionKey]) -> Sequence[Claim | PenstockError]:
        self.reserved_epoch += 1
        return [Claim(self.reserved_epoch, self.chain, TERMS, TERMS)]

    async def open_epochs(self, openings: Sequence[tuple[Led, SealAndOpen]]) -> Sequence[bool]:
        ((_, effect),) = openings
        if effect.epoch != self.reserved_epoch:
            return [False]
        assert effect.end >= self.chain[-1].start
        self.chain = (*self.chain, Link(effect.epoch, effect.end))
        return [True]

    async def reserved(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, Reserved]:
        return {KEY: Reserved(self.reserved_epoch, self.chain[-1].epoch)}

    def lives(self, broker_id: int) -> bool:
        return True

    async def older(self, asked: Sequence[tuple[PartitionKey, int]]) -> Sequence[Chain]:
        return [() for _ in asked]


class Wire:
    """The links of one broker."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self.cluster, self.node = cluster, node

    @property
    def ready(self) -> set[int]:
        here = {other for other in self.cluster.nodes if frozenset((self.node, other))
                not in self.cluster.cut}  # fmt: skip
        return here - {self.node}

    def room_bytes(self, broker_id: int) -> int:
        return 300 if broker_id in self.ready else 0

    def send(self, broker_id: int, rows: Sequence[Outgoing]) -> None:
        if broker_id in self.ready:
            header = b"".join([row for row, _, _ in rows])
            payload = b"".join([bytes(part) for _, data, _ in rows for part in data])
            self.cluster.under_way.append((self.node, broker_id, header, payload))

    async def close(self) -> None:
        return


class Node:
    """Broker and its log."""

    def __init__(self, cluster: Cluster, name: int) -> None:
        self.cluster, self.name = cluster, name
        self.files = cluster.files_of(name)
        config = LogConfig(segment_bytes=400, index_interval_bytes=100, retention_ms=-1)
        self.harness = Harness(
            cluster.root / str(name), config=config, clock=cluster.clock, files=self.files
        )
        self.replication = Replication(
            broker_id=name, epochs=cluster.plane, flush=self.flush, advanced=lambda owners: None,
            clock=cluster.clock,
        )  # fmt: skip
        self.replication.links = Wire(cluster, name)  # type: ignore[assignment]
        cluster.lives += 1
        self.replication.begin(cluster.lives)
        opened = cluster.plane.chain[-1].epoch
        self.log = self.replication.open(KEY, self.harness.log(), opened=opened)

    def flush(self, done: Any) -> None:
        self.harness.store.flush(done)
        asyncio.get_running_loop().call_soon(self.commit)

    def commit(self) -> None:
        if not self.harness.store._closed:
            self.harness.store.commit_pending()

    @property
    def leads(self) -> bool:
        return self.log.leading is not None and self.log.leading.leads

    async def die(self) -> None:
        abandon(self.harness.store)
        self.replication.forget(KEY)
        await self.replication.close()


class Cluster:
    """Three of them; `power_fails` is how probable that is at each step."""

    disks = FaultyFiles

    def __init__(self, root: Path, seed: int, *, power_fails: float = 0) -> None:
        self.root, self.dice, self.clock = root, random.Random(seed), FakeClock()
        self._power_fails = power_fails
        self.plane = Plane()
        self.cut: set[frozenset[int]] = set()
        self.under_way: list[tuple[int, int, bytes, bytes]] = []
        self.lives = 0
        self.nodes: dict[int, Node] = {}
        self.acknowledged: dict[int, int] = {}
        """What was appended at an offset that was acknowledged."""
        self.number = 0
        for name in NODES:
            self.nodes[name] = Node(self, name)

    def files_of(self, name: int) -> Files:
        """The machine's, or those that know what is synced."""
        if not self._power_fails:
            return MACHINE_FILES
        directory = self.root / str(name)
        directory.mkdir(parents=True, exist_ok=True)
        return self.disks(root=directory)

    async def turn(self) -> None:
        """Some of what is under way arrives."""
        await asyncio.sleep(0)
        taken, self.under_way = self.under_way[:3], self.under_way[3:]
        for sender, receiver, header, payload in taken:
            node = self.nodes.get(receiver)
            if node is not None and sender in node.replication.links.ready:
                rows = decode_rows(memoryview(header), memoryview(payload))
                node.replication.rows_came(sender, rows)

    def changed(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Links between these are lost, or are there again: what was under way is gone."""
        both = {frozenset(pair) for pair in pairs}
        self.under_way = [
            attempt for attempt in self.under_way if frozenset(attempt[:2]) not in both
        ]
        for a, b in (tuple(pair) for pair in both):
            for here, there in ((a, b), (b, a)):
                if here in self.nodes:
                    self.nodes[here].replication.link_changed(there, up=True)

    # -- what may happen

    def append(self) -> None:
        for node in self.nodes.values():
            if node.leads:
                self.number += 1
                number, count = self.number, self.dice.randint(1, 3)

                def done(result: AppendResult | PenstockError, number: int = number) -> None:
                    if isinstance(result, AppendResult):
                        known = self.acknowledged.setdefault(result.base_offset, number)
                        assert known == number, "an offset was given twice"

                data = bytearray(batch(count, fill=number % 256, size=self.dice.choice([24, 120])))
                try:
                    node.log.append(
                        memoryview(data), now_ms=self.clock.ms, acks=-1, lease=None, done=done
                    )
                except PenstockError:
                    continue

    def delete(self) -> None:
        """Delete records as a leader or a copy's retention does."""
        log = self.dice.choice(list(self.nodes.values())).log
        end = min(log.copy.mark, log.log.durable_offset)
        if end > log.log.log_start_offset:
            log.log.delete_records(self.dice.randint(log.log.log_start_offset, end))
            log.log_moved()

    def claim(self) -> None:
        node = self.dice.choice(list(self.nodes.values()))
        if not node.log.claiming:
            node.replication.claim([KEY])

    def say_again(self) -> None:
        for node in self.nodes.values():
            node.replication.say_again()

    def part(self) -> None:
        pair = frozenset(self.dice.sample(NODES, 2))
        self.cut ^= {pair}
        self.changed([tuple(pair)])  # type: ignore[list-item]

    async def restart(self) -> None:
        """A broker dies and comes back, sometimes with nothing, if all others have all.

        One that has acknowledged nothing yet looks like one whose disk was lost.
        """
        name = self.dice.choice(NODES)
        whole = all(
            node.log.log.replica.promised >= 0 > node.log.log.replica.limbo
            and not node.log.copy.silent
            for node in self.nodes.values()
        )
        await self.nodes.pop(name).die()
        if whole and self.dice.random() < 0.3:
            shutil.rmtree(self.root / str(name))
        self.nodes[name] = Node(self, name)
        self.changed([(name, other) for other in NODES if other != name])

    async def lose_power(self) -> None:
        """Stop all brokers at once, and restart them."""
        disks = {}
        for name, node in self.nodes.items():
            assert isinstance(node.files, FaultyFiles)
            disks[name] = node.files.disk_after()
        for node in self.nodes.values():
            await node.die()
        self.nodes.clear()
        self.under_way.clear()
        for name, disk in disks.items():
            shutil.rmtree(self.root / str(name))
            found = disk.after_power_loss(self.dice if self.dice.random() < 0.7 else None)
            found.put(self.root / str(name))
            self.nodes[name] = Node(self, name)
        self.changed([(1, 2), (2, 3), (1, 3)])

    async def run(self) -> None:
        steps = [self.append, self.delete, self.claim, self.say_again, self.part]
        self.claim()
        for _ in range(STEPS):
            for _ in range(self.dice.randint(0, 8)):
                await self.turn()
            if self.dice.random() < 0.04:
                await self.restart()
                continue
            if self._power_fails and self.dice.random() < self._power_fails:
                await self.lose_power()
                continue
            self.dice.choices(steps, [20, 4, 1, 6, 2])[0]()

    async def settle(self) -> None:
        """Restore all links, and wait for a leader."""
        self.cut = set()
        self.changed([(1, 2), (2, 3), (1, 3)])
        for turn in range(LATER * 10):
            await self.turn()
            if turn % 50 == 0:
                self.say_again()
            if turn % LATER == 0 and not any(node.leads for node in self.nodes.values()):
                self.claim()
            if turn > LATER and self.is_settled():
                return
        raise AssertionError(f"not stable: {[node.log.log for node in self.nodes.values()]}")

    def is_settled(self) -> bool:
        logs = [node.log for node in self.nodes.values()]
        ends = {log.log.durable_offset for log in logs} | {log.copy.mark for log in logs}
        return len(ends) == 1 and any(node.leads for node in self.nodes.values())


async def test_a_live_copy_is_cut_below_what_it_knew_as_committed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path, 0)
    logs = {name: node.log for name, node in cluster.nodes.items()}

    async def until(what: Callable[[], object]) -> None:
        for turn in range(LATER):
            if what():
                return
            await cluster.turn()
            if turn % 50 == 0:
                cluster.say_again()
        raise AssertionError("it did not come to that")

    def apart(*pairs: tuple[int, int]) -> None:
        cluster.cut = {frozenset(pair) for pair in pairs}
        cluster.changed([(1, 2), (2, 3), (1, 3)])

    def known(*names: int, above: int = 0) -> bool:
        ends = {logs[name].log.durable_offset for name in names}
        return (
            len(ends) == 1
            and max(ends) > above
            and ends == {logs[name].copy.mark for name in names}
        )

    async def led(name: int) -> None:
        cluster.nodes[name].replication.claim([KEY])
        await until(lambda: logs[name].leading is not None)

    await led(1)
    await until(lambda: cluster.nodes[1].leads)
    cluster.append()
    await until(lambda: known(1, 2, 3))
    common = logs[3].copy.mark
    apart((1, 3), (2, 3))
    cluster.append()
    await until(lambda: known(1, 2, above=common))
    apart((1, 2), (1, 3), (2, 3))
    await led(3)
    leading = logs[3].leading
    assert leading is not None
    await until(leading.claim_uncleanly)
    await until(lambda: cluster.nodes[3].leads)
    cluster.acknowledged.clear()
    apart()
    leading.learn((1, 2))
    cluster.nodes[3].replication.stir(logs[3])
    await until(lambda: known(1, 2, 3, above=common - 1))
    assert [logs[name].copy.trouble for name in NODES] == [""] * 3
    cluster.append()
    await until(lambda: known(1, 2, 3, above=common))
    assert len({bytes(read_all(log.log, max_bytes=400)) for log in logs.values()}) == 1
    told = [message for message in caplog.messages if "an unclean election discarded" in message]
    assert len(told) == 2, "by each of the copies that are cut"
    for node in cluster.nodes.values():
        await node.die()


@pytest.mark.parametrize("seed", [*range(6), 1795])
async def test_what_was_acknowledged_is_there(tmp_path: Path, seed: int) -> None:
    await play(tmp_path, seed)


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_acknowledged_is_there_after_the_power_failed(
    tmp_path: Path, seed: int
) -> None:
    await play(tmp_path, seed, power_fails=0.03)


class Lying(FaultyFiles):
    """Storage that never syncs."""

    def _note(self, name: str, *of: Any) -> None:
        if name not in SYNCS:
            super()._note(name, *of)


async def test_disks_that_do_not_sync_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "disks", Lying)
    with pytest.raises((AssertionError, KeyError, PenstockError)):
        await play(tmp_path, 0, power_fails=0.03)


@pytest.mark.long
@pytest.mark.timeout(7_200)
async def test_what_was_acknowledged_is_there_whatever_the_seed(tmp_path: Path) -> None:
    """Bounded by processor: 66 ms a story."""
    for seed in range(int(os.environ.get("PENSTOCK_SHELL_SEEDS", "1000"))):
        try:
            await play(tmp_path / "story", seed, power_fails=0.03 if seed % 4 == 0 else 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        shutil.rmtree(tmp_path / "story")


async def play(root: Path, seed: int, *, power_fails: float = 0) -> None:
    cluster = Cluster(root, seed, power_fails=power_fails)
    await cluster.run()
    await cluster.settle()
    logs = [node.log.log for node in cluster.nodes.values()]
    start = max(log.log_start_offset for log in logs)
    tails = set()
    for log in logs:
        fills = {
            header.base_offset: data[-2] for header, data in _batches(read_all(log, max_bytes=400))
        }
        for offset, number in cluster.acknowledged.items():
            if offset >= log.log_start_offset:
                assert fills[offset] == number % 256, f"offset {offset} of seed {seed}"
        tails.add(tuple(sorted(pair for pair in fills.items() if pair[0] >= start)))
    assert len(tails) == 1
    for node in cluster.nodes.values():
        await node.die()


def _batches(data: bytes) -> Iterable[tuple[Any, bytes]]:
    position = 0
    for header in split_batches(data):
        yield header, data[position : position + header.size_bytes]
        position += header.size_bytes
