"""Replicas compact when they like, and agree on the last value of every key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.storage.compaction.keyed import Keyed, Pair, consumed, folded

KEYS = 6


class Follower(Keyed):
    """A copy of another log, as far as it has been brought."""

    def follow(self, leader: Keyed, max_bytes: int) -> None:
        """Take what the leader has next, as it is there now."""
        log, source = self.log, leader.log
        if log.log_end_offset < source.durable_offset:
            end = source.durable_offset
            read = source.read(log.log_end_offset, max_bytes=max_bytes, end_offset=end)
            data = bytearray(b"".join(bytes(buffer) for buffer in read.buffers))
            assert log.replica.append(memoryview(data), now_ms=self.now_ms) == read.next_offset
            assert self.harness.commit() is None

    def step(self, leader: Keyed, dice: random.Random) -> None:
        """Be brought some of what is new, or none; sometimes begin again."""
        if dice.random() < 0.4:
            self.follow(leader, dice.choice([1, 300, 5000]))
        if dice.random() < 0.03:
            dice.choice([self.harness.crash, self.harness.reopen])()


def send_some(leader: Keyed, number: int, dice: random.Random) -> None:
    some: list[Pair] = [
        (b"key %d" % dice.randrange(KEYS), None if dice.random() < 0.2 else b"%d" % number)
        for _ in range(dice.randint(1, 4))
    ]
    leader.send(some, producer_id=dice.choice([-1, 5]), codec=dice.choice([0, 0, 4]))
    if dice.random() < 0.2:
        leader.send(some, producer_id=8, transactional=True)
        leader.end(8, commits=dice.random() < 0.5)


def sequences(place: Keyed) -> dict[int, int]:
    return {producer.producer_id: producer.last_sequence for producer in place.log.producers()}


@pytest.mark.parametrize("seed", range(4))
def test_replicas_agree_on_every_key(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    leader = Keyed(tmp_path / "leader")
    followers = [Follower(tmp_path / f"follower-{number}") for number in range(2)]
    places: list[Keyed] = [leader, *followers]
    for place in places:
        place.configure(segment_bytes=dice.choice([500, 900]), delete_retention_ms=1 << 50)
    for number in range(100):
        send_some(leader, number, dice)
        for follower in followers:
            follower.step(leader, dice)
        if dice.random() < 0.15:
            dice.choice(places).compact()
    for follower in followers:
        while follower.log.log_end_offset < leader.log.durable_offset:
            follower.follow(leader, 1000)
    leader.check()
    known = sequences(leader)
    for place in places:
        for _ in range(2):
            assert folded(consumed(place.log)) == leader.view()
            assert sequences(place) == known
            place.compact()
            place.harness.crash()
