"""Limits of a trigger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import TopicPartition
from penstock.spark.reads.stream import share_bytes, share_records, worth_waiting

BACKLOGS = st.lists(st.integers(0, 10_000), min_size=1, max_size=12)


def span(backlogs: list[int]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts = {TopicPartition("t", index): 100 * index for index in range(len(backlogs))}
    ends = {at: start + backlogs[at.partition] for at, start in starts.items()}
    return starts, ends


@given(BACKLOGS, st.integers(1, 20_000))
def test_records_stay_within_the_limit_and_move(backlogs: list[int], limit: int) -> None:
    starts, latest = span(backlogs)
    ends = share_records(starts, latest, limit)
    taken = {at: ends[at] - starts[at] for at in ends}
    assert all(0 <= taken[at] <= backlogs[at.partition] for at in ends)
    assert sum(taken.values()) == min(limit, sum(backlogs))
    if limit >= sum(count > 0 for count in backlogs):
        assert all(taken[at] > 0 for at in ends if backlogs[at.partition])
    if sum(backlogs) <= limit:
        assert ends == latest


@given(BACKLOGS, st.integers(1, 50))
def test_every_stream_ends(backlogs: list[int], limit: int) -> None:
    starts, latest = span([count % 60 for count in backlogs])
    triggers = 0
    while starts != latest:
        starts = share_records(starts, latest, limit)
        triggers += 1
        assert triggers <= 60 * len(backlogs)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 100))
def test_no_partition_waits_while_others_always_have_records(
    count: int, limit: int, begin: int
) -> None:
    starts = {TopicPartition("t", index): begin * index for index in range(count)}
    reached = starts
    for _ in range(count):
        reached = share_records(reached, {at: end + 1_000 for at, end in reached.items()}, limit)
    assert all(reached[at] > starts[at] for at in starts)


def test_partitions_end_together() -> None:
    starts, latest = span([1_000, 3_000])
    ends = share_records(starts, latest, 400)
    assert [ends[at] - starts[at] for at in ends] == [100, 300]


def test_bytes_go_by_stored_size() -> None:
    starts, latest = span([1_000, 1_000])
    sizes = dict(zip(starts, (10_000, 30_000), strict=True))
    assert share_bytes(starts, latest, sizes, 40_000) == latest
    ends = share_bytes(starts, latest, sizes, 4_000)
    assert [ends[at] - starts[at] for at in ends] == [100, 100]
    tiny = share_bytes(starts, latest, sizes, 1)
    assert [tiny[at] - starts[at] for at in tiny] == [1, 1]


def test_waiting_ends_by_count_or_by_time() -> None:
    starts, latest = span([4, 5])
    assert worth_waiting(starts, latest, records_min=10, waited_ms=99, delay_max_ms=100)
    assert not worth_waiting(starts, latest, records_min=9, waited_ms=0, delay_max_ms=100)
    assert not worth_waiting(starts, latest, records_min=10, waited_ms=100, delay_max_ms=100)
