"""Share groups by Apache Kafka's Java client: what a member accepts is done, all else comes again.

The broker is one of the test's own, with short locks; Apache Kafka is held to the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from benchmarks.peers.apache_kafka import ApacheKafka
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat.conftest import missing
from compat.drivers.remote import Program, java_environment
from compat.parts import PartMissing, java_program
from compat.security import grant, harness, read, scenario, security_of, write
from compat.servers import QUICK_GROUPS, PenstockProcess, chosen, stores
from compat.tools import run_tool

LOCK_MS = 2_000
WAIT_SECONDS = 40
CONFIGS = {
    "group.share.record.lock.duration.ms": str(LOCK_MS),
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.assignment.interval.ms": "0",
    "group.share.heartbeat.interval.ms": "1000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.delivery.count.limit": "3",
}
APACHE = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
Place = tuple[int, int]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Any]:
    """A broker of its own, which can be killed and started again."""
    if chosen() == "apache":
        try:
            with ApacheKafka(tmp_path, configs={**CONFIGS, **APACHE}) as kafka:
                yield kafka
        except PartMissing as error:
            missing(error)
    else:
        with stores() as places:
            process = PenstockProcess(tmp_path, configs={**CONFIGS, **places})
            process.start()
            try:
                yield process
            finally:
                process.kill()


@pytest.fixture
def program() -> Iterator[Program]:
    """The Java client's program."""
    try:
        path = java_program("ShareClient")
    except PartMissing as error:
        missing(error)
    command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", path]
    running = Program(
        [*command, "ShareClient"],
        java_environment(security_of("java")),
        answer_seconds=WAIT_SECONDS + 20,
    )
    yield running
    running.close()


class Team:
    """Members of one group; topic `t` has two partitions, `u` has one."""

    def __init__(self, program: Program, broker: Any) -> None:
        self.program = program
        self.broker = broker
        self.count = 0
        admin = AdminClient(harness(broker.bootstrap))
        for made in admin.create_topics([NewTopic("t", 2, 1), NewTopic("u", 1, 1)]).values():
            made.result(WAIT_SECONDS)
        configured = ("alter_configs", "describe_configs")
        needs = [(operation, "group", "g") for operation in (*configured, "read", "delete")]
        needs += [("read", "topic", "t"), ("read", "topic", "u")]
        grant(broker.bootstrap, "java", needs)
        self.administer("set_group", configs={"share.auto.offset.reset": "earliest"})

    def administer(self, what: str, **more: Any) -> Any:
        return self.program.call(what, bootstrap=self.broker.bootstrap, group="g", **more)

    def produce(self, *values: str, topic: str = "t") -> None:
        producer = Producer(scenario(self.broker.bootstrap, write(topic)))
        for number, value in enumerate(values):
            producer.produce(topic, value.encode(), partition=number % 2 if topic == "t" else 0)
        assert producer.flush(WAIT_SECONDS) == 0

    def join(self, topic: str = "t", **settings: object) -> Member:
        self.count += 1
        settings = {"share.acknowledgement.mode": "explicit", **settings}
        named = {name.replace("_", "."): str(value) for name, value in settings.items()}
        self.administer("open", member=self.count, topics=[topic], settings=named)
        return Member(self.program, self.count)


class Member:
    """One member."""

    def __init__(self, program: Program, number: int) -> None:
        self._call: Callable[..., Any] = lambda what, **more: program.call(
            what, member=number, **more
        )

    def poll(self, ms: int = 500) -> dict[Place, tuple[str, int]]:
        """Values and delivery counts of what one poll has."""
        return {(p, at): (value, count) for p, at, value, count in self._call("poll", ms=ms)}

    def get(self, count: int = 1) -> dict[Place, tuple[str, int]]:
        """The first poll that has so many records."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found := self.poll()) < count:
            assert time.monotonic() < deadline, f"only {found}"
            assert not found or not self.say("RELEASE", found)
        return found

    def say(self, kind: str, places: Any) -> list[Any]:
        """Acknowledge records of the last poll; the errors of partitions."""
        self._call("acknowledge", type=kind, places=[list(place) for place in places])
        failed: list[Any] = self._call("commit")
        return failed

    def close(self) -> None:
        self._call("close")


@pytest.fixture
def team(program: Program, broker: Any) -> Team:
    return Team(program, broker)


def values(found: dict[Place, tuple[str, int]]) -> dict[str, int]:
    return dict(found.values())


@pytest.mark.timeout(180)
def test_accepted_rejected_and_released(team: Team) -> None:
    team.produce("a0", "b0", "a1", "b1", "a2", "b2")
    member = team.join()
    counts: dict[str, list[int]] = {}
    while sum(map(len, counts.values())) < 8:
        kinds: dict[str, list[Place]] = {"ACCEPT": [], "REJECT": [], "RELEASE": []}
        for place, (value, count) in member.get().items():
            counts.setdefault(value, []).append(count)
            kind = {"0": "ACCEPT", "1": "REJECT"}.get(value[1], "RELEASE")
            kinds["ACCEPT" if count > 1 else kind].append(place)
        for kind, places in kinds.items():
            assert not places or not member.say(kind, places)
    assert counts == {
        "a0": [1], "b0": [1], "a1": [1], "b1": [1], "a2": [1, 2], "b2": [1, 2],
    }  # fmt: skip
    assert member.poll(LOCK_MS + 1_000) == {}
    member.close()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_lock_that_ends_gives_records_to_another_member(team: Team) -> None:
    team.produce("a", "b", "c", "d", topic="u")
    one = team.join("u")
    held = one.get(4)
    deadline = time.monotonic() + WAIT_SECONDS
    other = team.join("u")
    while not (found := other.poll()):
        assert time.monotonic() < deadline
    assert values(found) == dict.fromkeys(values(held), 2)
    assert not other.say("ACCEPT", [place for place in found if place != min(found)])
    assert {error for _, error in one.say("ACCEPT", held)} == {"INVALID_RECORD_STATE"}
    assert not other.say("ACCEPT", [min(found)])
    one.close()
    other.close()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_record_is_delivered_as_often_as_the_limit_says(team: Team) -> None:
    team.produce("a")
    member = team.join()
    for delivery in (1, 2, 3):
        found = member.get()
        assert values(found) == {"a": delivery}
        assert not member.say("RELEASE", found)
    assert member.poll(LOCK_MS + 1_000) == {}
    member.close()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_archived_records_become_dead_letters(program: Program, tmp_path: Path) -> None:
    """KIP-1191, which Apache Kafka has from 4.4 on."""
    server = PenstockProcess(tmp_path, configs={**QUICK_GROUPS, **CONFIGS}).start()
    try:
        team = Team(program, server)
        admin = AdminClient(harness(server.bootstrap))
        enabled = {"errors.deadletterqueue.group.enable": "true"}
        made = admin.create_topics([NewTopic("dlq.g", 2, 1, config=enabled)])
        made["dlq.g"].result(WAIT_SECONDS)
        configs = {
            "share.auto.offset.reset": "earliest",
            "errors.deadletterqueue.topic.name": "dlq.g",
        }
        team.administer("set_group", configs=configs)
        team.produce("a", "b", topic="u")
        member = team.join("u")
        found = member.get(2)
        assert not member.say("REJECT", [min(found)])
        assert not member.say("RELEASE", [max(found)])
        for delivery in (2, 3):
            assert values(member.get()) == {"b": delivery}
            assert not member.say("RELEASE", [max(found)])
        member.close()
        own = {"group.id": "reader", "auto.offset.reset": "earliest"}
        reader = Consumer({**scenario(server.bootstrap, *read("dlq.g", "reader")), **own})
        reader.subscribe(["dlq.g"])
        letters: dict[bytes, dict[str, bytes]] = {}
        deadline = time.monotonic() + WAIT_SECONDS
        while len(letters) < 2 and time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is not None and not message.error():
                letters[message.value()] = dict(message.headers())
        reader.close()
        told = {
            value: [
                headers[f"__dlq.errors.{name}"] for name in ("offset", "delivery.count", "group")
            ]
            for value, headers in letters.items()
        }
        assert told == {b"a": [b"0", b"1", b"g"], b"b": [b"1", b"3", b"g"]}
    finally:
        server.kill()


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_leaving_member_releases_its_records(team: Team) -> None:
    team.produce("a", "b")
    one = team.join()
    had = values(one.get())
    one.close()
    assert set(had) <= set(values(team.join().get(len(had))))


@pytest.mark.long
@pytest.mark.timeout(180)
def test_groups_are_listed_described_and_deleted(team: Team) -> None:
    team.produce("a")
    one, other = team.join(), team.join()
    one.say("ACCEPT", one.get())
    state, members, partitions = team.administer("describe")
    deadline = time.monotonic() + WAIT_SECONDS
    while members < 2 or len(partitions) < 2:
        assert time.monotonic() < deadline
        one.poll(), other.poll()
        state, members, partitions = team.administer("describe")
    assert (state, members) == ("STABLE", 2)
    assert {tuple(partition) for partition in partitions} == {("t", 0), ("t", 1)}
    assert team.administer("groups") == {"g": "Share"}
    one.close()
    other.close()
    assert team.administer("describe")[:2] == ["EMPTY", 0]
    team.administer("delete")
    assert team.administer("groups") == {}


@pytest.mark.long
@pytest.mark.timeout(180)
def test_offsets_are_shown_set_and_deleted(team: Team) -> None:
    team.produce("a", "b", "c", "d", topic="u")
    one = team.join("u")
    found = one.get(4)
    assert not one.say("ACCEPT", [place for place in found if place[1] != 2])
    start, lag = team.administer("offsets")["0"]
    assert start <= 2, "Apache Kafka moves it with a later acknowledgement"
    assert lag == 1
    one.close()
    team.administer("set_offset", topic="u", offset=1)
    assert team.administer("offsets")["0"][0] == 1
    one = team.join("u")
    assert set(values(one.get(3))) == {"b", "c", "d"}
    one.close()
    team.administer("delete_offsets", topic="u")
    assert team.administer("offsets") == {}
    assert set(values(team.join("u").get(4))) == {"a", "b", "c", "d"}


@pytest.mark.long
@pytest.mark.timeout(240)
def test_kill_9_loses_no_record_and_delivers_none_that_was_accepted(team: Team) -> None:
    wanted = [f"{number}" for number in range(400)]
    team.produce(*wanted)
    member = team.join(max_poll_records=20, share_acquire_mode="record_limit")
    accepted, seen = set[str](), set[str]()
    deadline = time.monotonic() + 4 * WAIT_SECONDS
    kills = 0
    while seen != set(wanted):
        assert time.monotonic() < deadline
        found = member.poll()
        assert not accepted & set(values(found)), "what was accepted is delivered again"
        seen |= set(values(found))
        if not found:
            continue
        failed = {partition for partition, _ in member.say("ACCEPT", found)}
        accepted |= {value for (place, _), (value, _) in found.items() if place not in failed}
        if kills < 3 and len(seen) > 90 * (kills + 1):
            team.broker.kill()
            team.broker.start()
            kills += 1
    assert kills == 3
    while left := member.poll(LOCK_MS + 1_000):
        assert not accepted & set(values(left))
        member.say("ACCEPT", left)
    member.close()


@pytest.mark.timeout(180)
def test_kafkas_tool_lists_describes_and_resets(team: Team) -> None:
    command = "ShareGroupCommand"
    tool = partial(run_tool, team.broker.bootstrap, f"consumer.group.{command}")
    member = team.join()
    team.produce("a", "b", "c", "d")
    member.say("ACCEPT", member.get(4))
    member.close()
    states = {row["GROUP"]: row["STATE"] for row in tool("--list", "--state")}
    assert states["g"] == "Empty"
    # Apache Kafka may store later that all before an offset is done
    described = tool("--describe", "--group", "g")
    offsets = {row["PARTITION"]: int(row["START-OFFSET"]) for row in described}
    assert offsets.keys() == {"0", "1"}
    assert {*offsets.values()} <= {0, 1, 2}
    where = ("--group", "g", "--topic", "t")
    moved = tool("--reset-offsets", *where, "--to-earliest", "--execute")
    assert [row["NEW-OFFSET"] for row in moved] == ["0", "0"]
    again = team.join()
    assert sorted(values(again.get(4))) == ["a", "b", "c", "d"]
    again.close()
