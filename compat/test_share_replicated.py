"""Share groups on a topic of three copies while brokers die: the Java client, and what is true.

Whoever leads the partitions and coordinates the group is killed in turn. No record is lost, none is
delivered again that was accepted, and none is with two members at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.postgres import postgres_server

from compat.conftest import missing
from compat.drivers.remote import Program
from compat.parts import PartMissing
from compat.security import grant, harness, read, scenario, write
from compat.servers import COPIES, PenstockProcess, bootstrap_of, running_brokers
from compat.test_share_groups import (
    CONFIGS,
    LOCK_MS,
    WAIT_SECONDS,
    Member,
    Place,
    program,
    values,
)

__all__ = ["program"]

RECORDS = 600
KILLS = 3


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[PenstockProcess]]:
    """Three brokers on PostgreSQL."""
    try:
        with (
            postgres_server() as server,
            running_brokers(server, tmp_path, 3, {**COPIES, **CONFIGS}) as running,
        ):
            yield running
    except PartMissing as error:
        missing(error)


class Truth:
    """What members were given, still have, and had accepted."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.accepted: set[str] = set()
        self.held: dict[Member, tuple[dict[Place, tuple[str, int]], float]] = {}

    def turn(self, member: Member, ms: int = 200) -> None:
        """Accept what a member has, and give it something else, while the others have theirs."""
        had, _ = self.held.pop(member, ({}, 0.0))
        if had:
            failed = {partition for partition, _ in member.say("ACCEPT", had)}
            self.accepted |= {one for (index, _), (one, _) in had.items() if index not in failed}
        asked = time.monotonic()
        found = member.poll(ms)
        now = time.monotonic()
        for other, since in self.held.values():
            if now < since + LOCK_MS / 1000:
                assert not set(values(other)) & set(values(found)), "two members have it"
        assert not self.accepted & set(values(found)), "accepted, and delivered again"
        self.seen |= set(values(found))
        self.held[member] = found, asked

    @property
    def idle(self) -> bool:
        return not any(found for found, _ in self.held.values())

    def state(self, wanted: set[str]) -> str:
        """How things stand, for who reads a failure."""
        unseen, unaccepted = sorted(wanted - self.seen), sorted(self.seen - self.accepted)
        return f"not seen: {unseen}, seen and not accepted: {unaccepted}, held: {self.held}"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_brokers_die_in_turn(program: Program, brokers: list[PenstockProcess]) -> None:
    wanted = begin(program, bootstrap := bootstrap_of(brokers))
    settings = {
        "share.acknowledgement.mode": "explicit",
        "share.acquire.mode": "record_limit",
        "max.poll.records": "15",
    }
    members = [Member(program, number) for number in (1, 2)]
    for number in (1, 2):
        program.call(
            "open", member=number, bootstrap=bootstrap, group="g", topics=["t"], settings=settings
        )
    truth, kills = Truth(), 0
    deadline = time.monotonic() + 6 * WAIT_SECONDS
    while truth.seen != wanted or not truth.idle or done(program, bootstrap) != RECORDS:
        # What was with a member while brokers died comes again once its lock is over.
        assert time.monotonic() < deadline, truth.state(wanted)
        for member in members:
            truth.turn(member)
        if kills < KILLS and len(truth.seen) > RECORDS * (kills + 1) // (KILLS + 1):
            brokers[kills].kill()
            brokers[kills].start()
            kills += 1
    assert kills == KILLS
    for member in members:
        truth.turn(member, LOCK_MS + 500)
    assert truth.idle, f"the group is done with all records: {truth.held}"
    for member in members:
        member.close()


def done(program: Program, bootstrap: str) -> int:
    """With how many records the group is done, in the order of the log."""
    offsets = program.call("offsets", bootstrap=bootstrap, group="g")
    return sum(found[0] for found in offsets.values() if found is not None)


def begin(program: Program, bootstrap: str) -> set[str]:
    """Make the topic, its records and the group; returns the values."""
    admin = AdminClient(harness(bootstrap))
    admin.create_topics([NewTopic("t", 3, 3)])["t"].result(WAIT_SECONDS)
    configs = {"share.auto.offset.reset": "earliest"}
    grant(bootstrap, "java", [("alter_configs", "group", "g"), *read("t", "g")])
    program.call("set_group", bootstrap=bootstrap, group="g", configs=configs)
    producer = Producer({**scenario(bootstrap, write("t")), "enable.idempotence": True})
    wanted = {str(number) for number in range(RECORDS)}
    for value in sorted(wanted):
        producer.produce("t", value.encode())
    assert producer.flush(WAIT_SECONDS) == 0
    return wanted
