"""Consumer groups: members come and go, partitions follow them, no record is missed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from compat.drivers import DRIVERS, Driver, Member, by_position, eventually
from compat.scenes import clients, plain_records, with_offsets

EVERY_PARTITION = frozenset(range(6))
JOINING = [
    (name, kind)
    for name, driver in DRIVERS.items()
    if "join" in driver.able
    for kind in driver.assignors
]


class Scene:
    """A topic that is produced to, and the members of one group that read it."""

    def __init__(self, driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
        self.driver = driver
        self.helper = helper
        self.topic = topic
        self.group = f"g-{topic}"
        self.now_ms = now_ms
        self.members: list[Member] = []
        self.gone: list[Member] = []
        self.sent = 0

    def join(self, kind: str = "eager", instance_id: str | None = None) -> Member:
        member = self.driver.join(self.group, self.topic, kind=kind, instance_id=instance_id)
        self.members.append(member)
        return member

    def leave(self, member: Member) -> None:
        self.members.remove(member)
        member.close()
        self.gone.append(member)

    def settled(self, *sizes: int) -> None:
        """Wait until the members own all partitions between them, in shares of these sizes."""

        def shares() -> list[frozenset[int]]:
            return [member.assignment() for member in self.members]

        def holds() -> bool:
            now = shares()
            whole = frozenset().union(*now) == EVERY_PARTITION
            return whole and sorted(map(len, now)) == sorted(sizes)

        eventually(holds, shares)

    def flows(self) -> None:
        """Produce to every partition; the members receive all of it between them."""
        records = plain_records(60, start=self.sent, timestamp=self.now_ms)
        self.sent += len(records)
        offsets = self.helper.produce(self.topic, records)
        expected = by_position(with_offsets(records, offsets))
        seen: dict[tuple[int, int], object] = {}

        def arrived() -> bool:
            for member in self.members:
                seen.update(by_position(member.records()))
            return expected.keys() <= seen.keys()

        eventually(arrived, lambda: sorted(expected.keys() - seen.keys()))
        assert all(seen[place] == record for place, record in expected.items())


@contextmanager
def scene(driver: Driver, helper: Driver, topic: str, now_ms: int) -> Iterator[Scene]:
    """A scene whose members are closed at its end, whatever happened."""
    made = Scene(driver, helper, topic, now_ms)
    try:
        yield made
    finally:
        with ExitStack() as stack:
            for member in made.members:
                stack.callback(member.close)


@pytest.mark.parametrize(("driver", "kind"), JOINING, indirect=["driver"])
def test_partitions_follow_the_members(
    driver: Driver, helper: Driver, topic: str, now_ms: int, kind: str
) -> None:
    with scene(driver, helper, topic, now_ms) as group:
        first = group.join(kind)
        group.settled(6)
        group.flows()
        second = group.join(kind)
        group.settled(3, 3)
        group.flows()
        group.join(kind)
        group.settled(2, 2, 2)
        group.flows()
        if kind in ("cooperative", "server"):
            # what a member keeps is never taken from it on the way
            assert first.revoked() | second.revoked() < EVERY_PARTITION
            assert not first.assignment() & first.revoked()
        else:
            assert first.revoked() >= first.assignment() or driver.name == "kafkajs"
        group.leave(second)
        group.settled(3, 3)
        group.flows()


@clients("join")
def test_a_later_member_continues_at_the_committed_offsets(
    driver: Driver, helper: Driver, reader: Driver, topic: str, now_ms: int
) -> None:
    with scene(driver, helper, topic, now_ms) as group:
        first = group.join()
        group.settled(6)
        group.flows()
        group.leave(first)
        second = group.join()
        group.settled(6)
        group.flows()
        places = [(record.partition, record.offset) for record in second.records()]
        assert len(places) == 60
        assert {offset for _, offset in places} == set(range(10, 20))
    ends = reader.committed(group.group, topic, range(6))
    assert {part: offset for part, (offset, _) in ends.items()} == dict.fromkeys(range(6), 20)


@clients("static")
def test_a_static_member_returns_without_a_rebalance(
    driver: Driver, helper: Driver, topic: str, now_ms: int
) -> None:
    with scene(driver, helper, topic, now_ms) as group:
        first = group.join(instance_id="one")
        second = group.join(instance_id="two")
        group.settled(3, 3)
        group.flows()
        owned, kept = first.assignment(), second.assignment()
        before = second.rebalances()
        group.leave(first)
        returned = group.join(instance_id="one")
        group.settled(3, 3)
        group.flows()
        assert returned.assignment() == owned
        assert second.assignment() == kept
        assert second.rebalances() == before


@clients("join")
def test_two_clients_share_a_group(driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
    """The group protocol is between clients, so they agree where they share an assignor."""
    if driver.assignors["eager"] == "RoundRobinAssigner":
        pytest.skip("KafkaJS's assignor has a name that no other client knows")
    with scene(driver, helper, topic, now_ms) as group:
        group.join()
        group.settled(6)
        group.members.append(helper.join(group.group, topic))
        group.settled(3, 3)
        group.flows()
