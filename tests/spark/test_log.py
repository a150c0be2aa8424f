"""Resolution of starting and ending options, and logs that are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from penstock.base.ids import TopicPartition
from penstock.records.extents import LATEST
from penstock.spark.errors import InvalidOption, OffsetWentBack, TopicRecreated, UnknownTopics
from penstock.spark.options import Bound, SourceOptions, parse
from penstock.spark.reads.log import caught_up, check_lineage, latest, resolve, written
from penstock.spark.reads.positions import Position, Positions
from tests.spark.fakes import FakeLog, FakeTopic

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def log() -> FakeLog:
    return FakeLog(
        by_name={
            "a": FakeTopic("id-a", {0: (10, 100), 1: (0, 50)}, {5_000: {0: 42}}),
            "b": FakeTopic("id-b", {0: (0, 7)}),
        }
    )


def options(**more: str) -> SourceOptions:
    given = {"bootstrap": "h:1", "groupId": "g"} | more
    if not {"subscribe", "assign", "subscribePattern"} & set(given):
        given["subscribe"] = "a"
    return parse(given)


def offsets(read: SourceOptions) -> dict[TopicPartition, int | None]:
    bound = read.start or Bound(option="endingOffsets", kind="offset")
    found = resolve(log(), read, bound)
    return {at: found.offset(at) for at in found.partitions}


def test_ends_and_identity() -> None:
    found = latest(log(), options(subscribe="a,b"))
    assert {at: found.offset(at) for at in found.partitions} == {A0: 100, A1: 50, B0: 7}
    assert found.topic_ids == {"a": "id-a", "b": "id-b"}
    assert found.partitions[A0].leader_epoch == 7
    assert (found.bootstrap, found.group_id) == ("h:1", "g")


def test_starts() -> None:
    assert offsets(options(startingOffsets="earliest")) == {A0: 10, A1: 0}
    assert offsets(options(startingOffsets='{"a": {"0": 20, "1": -1}}')) == {A0: 20, A1: 50}
    by_time = options(startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
    assert offsets(by_time) == {A0: 42, A1: 50}


def test_one_request_for_one_point() -> None:
    asked = log()
    resolve(asked, options(subscribe="a,b"), Bound(option="endingOffsets", kind="offset"))
    assert asked.requests == 2


def test_selections() -> None:
    assert set(offsets(options(subscribePattern="[ab]"))) == {A0, A1, B0}
    assert set(offsets(options(assign='{"a": [1]}'))) == {A1}
    with pytest.raises(UnknownTopics, match="no topic nope"):
        offsets(options(subscribe="a,nope"))
    with pytest.raises(UnknownTopics, match="partitions 0 to 1"):
        offsets(options(assign='{"a": [1, 9]}'))


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ('{"a": {"0": 20}}', "lacks a-1"),
        ('{"a": {"0": 20, "1": 1, "2": 1}}', "a-2, which is not selected"),
        ('{"a": {"0": 101, "1": 1}}', "a-0 has offsets 10 to 100"),
    ],
)
def test_offsets_must_fit(start: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        offsets(options(startingOffsets=start))


def test_a_time_without_records_is_refused_for_a_start_and_is_the_end_for_an_end() -> None:
    with pytest.raises(InvalidOption, match="a-1 has no record with that timestamp"):
        offsets(options(startingTimestamp="5000"))
    end = options(endingTimestamp="5000").end
    assert end is not None
    assert resolve(log(), options(), end).offset(A1) == 50


def position(offset: int, topic_id: str = "id-a") -> Positions:
    return Positions(
        topic_ids={"a": topic_id}, partitions={A0: Position(offset=offset, leader_epoch=0)}
    )


def test_a_reader_ahead_of_committed_records_waits() -> None:
    opened = replace(log(), open_records=5)
    read = options(startingOffsets='{"a": {"0": 103, "1": 7}}')
    assert read.start is not None
    begin = resolve(opened, read, read.start)
    now = latest(opened, read)
    with pytest.raises(OffsetWentBack):
        check_lineage(begin, now)
    really = written(opened, begin, now)
    assert {at: really.offset(at) for at in really.partitions} == {A0: 105, A1: 55}
    check_lineage(begin, really)
    assert written(opened, now, now) == now
    with pytest.raises(OffsetWentBack):
        check_lineage(begin, written(log(), begin, now))
    with pytest.raises(InvalidOption, match="has offsets 10 to 105"):
        resolve(
            opened,
            options(),
            Bound(option="startingOffsets", kind="offset", each={"a": {0: 106, 1: 0}}),
        )
    with pytest.raises(InvalidOption, match="has offsets 10 to 100"):
        resolve(
            opened,
            options(),
            Bound(option="endingOffsets", kind="offset", each={"a": {0: 103, 1: 0}}),
        )


def test_lineage() -> None:
    check_lineage(position(5), position(5))
    check_lineage(position(9), position(5), require_progress=False)
    with pytest.raises(TopicRecreated, match="created again"):
        check_lineage(position(5), position(9, "other"))
    with pytest.raises(OffsetWentBack, match="ends at offset 5, but was already read up to 9"):
        check_lineage(position(9), position(5))


@dataclass
class Behind(FakeLog):
    """A log whose leader reports all of it after some pauses only."""

    known_after: int = 3
    hidden: int = 40

    def offsets(self, topic: str, at: int) -> Mapping[int, int]:
        found = super().offsets(topic, at)
        if at != LATEST or self.pauses >= self.known_after:
            return found
        return {index: end - self.hidden for index, end in found.items()}

    def written(self, topic: str) -> Mapping[int, int]:
        return self.offsets(topic, LATEST)


def test_an_end_that_a_leader_does_not_know_yet_is_asked_for_again() -> None:
    behind = Behind(by_name=log().by_name, replicas=3)
    begin = latest(log(), options())
    at_offsets = Bound(option="startingOffsets", kind="offset", each={"a": {0: 100, 1: 50}})

    def progress() -> Positions:
        now = latest(behind, options())
        check_lineage(begin, now)
        return now

    assert caught_up(behind, progress).same_offsets(begin)
    assert behind.pauses == 3
    behind.pauses = 0
    assert caught_up(behind, lambda: resolve(behind, options(), at_offsets)).same_offsets(begin)
    assert behind.pauses == 3


def test_the_only_replica_knows_its_end() -> None:
    behind = Behind(by_name=log().by_name, replicas=1)
    begin = latest(log(), options())
    with pytest.raises(OffsetWentBack):
        caught_up(behind, lambda: check_lineage(begin, latest(behind, options())))
    assert behind.pauses == 0
