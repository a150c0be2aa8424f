"""Offsets: committed with their metadata, found by time, bounded by what was deleted."""

from __future__ import annotations

from compat.drivers import Driver
from compat.scenes import clients, plain_records


@clients("commit")
def test_commits_and_fetches_offsets(
    driver: Driver, helper: Driver, reader: Driver, topic: str, name: str, now_ms: int
) -> None:
    # KafkaJS resets an offset that is out of range, so there are records
    helper.produce(topic, plain_records(120, timestamp=now_ms))
    group = f"g-{name}"
    assert driver.committed(group, topic, [0, 1, 2]) == {}
    driver.commit(group, topic, {0: (3, ""), 2: (7, "")})
    driver.commit(group, topic, {0: (5, "")})
    assert driver.committed(group, topic, [0, 1, 2]) == {0: (5, ""), 2: (7, "")}
    noted = {1: (11, "a note"), 2: (8, "größe, 2nd")}
    driver.commit(group, topic, noted)
    expected = {0: (5, ""), **noted}
    assert driver.committed(group, topic, [0, 1, 2]) == expected
    end = driver.metadata_end
    stored = {part: (offset, note + end) for part, (offset, note) in expected.items()}
    assert reader.committed(group, topic, [0, 1, 2]) == stored


@clients("offsets_at")
def test_finds_offsets_by_time(driver: Driver, helper: Driver, topic: str, now_ms: int) -> None:
    start = now_ms - 1_000_000
    # partition 0 has 100 records, 10 ms apart, in several batches; partition 1 has none
    for first in range(0, 100, 25):
        sent = plain_records(25, partitions=1, start=first, timestamp=start, step_ms=10)
        helper.produce(topic, sent, codec="gzip")

    def at(timestamp: int) -> int:
        return driver.offsets_at(topic, timestamp, [0])[0]

    assert at(start - 5_000) == 0
    assert at(start) == 0
    assert at(start + 1) == 1
    assert at(start + 240) == 24
    assert at(start + 333) == 34
    assert at(start + 990) == 99
    # where there is none, a client says −1, or puts the end of the log in its place
    assert at(start + 991) in (-1, 100)
    assert driver.offsets_at(topic, start, [1])[1] in (-1, 0)


@clients("bounds")
def test_knows_the_bounds_of_a_partition(
    driver: Driver, helper: Driver, topic: str, now_ms: int
) -> None:
    helper.produce(topic, plain_records(60, partitions=2, timestamp=now_ms))
    assert driver.bounds(topic, [0, 1, 2]) == {0: (0, 30), 1: (0, 30), 2: (0, 0)}
    helper.delete_records(topic, {0: 12})
    assert driver.bounds(topic, [0, 1]) == {0: (12, 30), 1: (0, 30)}
