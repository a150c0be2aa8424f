"""Transactions: all of one is seen or none, in order; an older producer of an id is fenced."""

from __future__ import annotations

import pytest

from compat.drivers import Driver, KafkaProblem, Record, eventually
from compat.scenes import clients, plain_records

FENCED = {"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
"""What a producer is told whose id another one has, or whose transaction has timed out."""
FENCED |= {
    "_FENCED",
    "ProducerFenced",
    "ProducerFencedException",
    "INVALID_TXN_STATE",
    "TRANSACTION_ABORTABLE",
}


def values(records: list[Record]) -> list[bytes | None]:
    """The values, by partition and offset."""
    ordered = sorted(records, key=lambda record: (record.partition, record.offset))
    return [record.value for record in ordered]


@clients("transactions")
def test_all_or_nothing_is_seen(driver: Driver, topic: str, name: str, now_ms: int) -> None:
    sent = plain_records(90, partitions=3, timestamp=now_ms)
    kept, dropped, last = sent[:30], sent[30:60], sent[60:]
    with driver.transactional(name) as producer:
        for records, commit in ((kept, True), (dropped, False), (last, True)):
            producer.begin()
            offsets = producer.send(topic, records)
            assert len(set(zip((r.partition for r in records), offsets, strict=True))) == 30
            producer.end(commit=commit)
    starts = {0: 0, 1: 0, 2: 0}
    # a client may still wait for the markers of what it committed
    seen = driver.consume(topic, starts, 60, committed=True)
    expected = [[r.value for r in (*kept, *last) if r.partition == part] for part in starts]
    assert [values([r for r in seen if r.partition == part]) for part in starts] == expected
    everything = driver.consume(topic, starts, 90)
    assert sorted(map(str, values(everything))) == sorted(str(record.value) for record in sent)


@clients("transactions")
def test_what_is_open_is_not_seen(
    driver: Driver, helper: Driver, topic: str, name: str, now_ms: int
) -> None:
    first, plain, other = (
        plain_records(10, partitions=1, start=start, timestamp=now_ms) for start in (0, 10, 20)
    )
    with driver.transactional(name) as producer, driver.transactional(f"{name}-b") as second:
        producer.begin()
        producer.send(topic, first)
        helper.produce(topic, plain)
        second.begin()
        second.send(topic, other)
        second.end(commit=True)
        # nothing behind the first record of an open transaction is stable
        assert helper.bounds(topic, [0])[0][1] >= 30
        assert helper.consume(topic, {0: 0}, 20) != []
        member = helper.join(f"g-{name}", topic)
        try:
            helper.produce(topic, [Record(value=b"elsewhere", timestamp=now_ms, partition=1)])
            eventually(lambda: len(member.records()) > 0, member.records)
            assert values(member.records()) == [b"elsewhere"]
            producer.end(commit=True)
            eventually(lambda: len(member.records()) == 31, lambda: len(member.records()))
            seen = [record for record in member.records() if record.partition == 0]
            assert values(seen) == [record.value for record in (*first, *plain, *other)]
        finally:
            member.close()


@clients("transactions")
def test_a_producer_of_the_same_id_is_fenced(
    driver: Driver, topic: str, name: str, now_ms: int
) -> None:
    records = plain_records(6, timestamp=now_ms)
    with driver.transactional(name) as zombie:
        zombie.begin()
        zombie.send(topic, records[:3])
        with driver.transactional(name) as producer:
            with pytest.raises(KafkaProblem) as refused:
                zombie.end(commit=True)
            assert refused.value.code in FENCED
            producer.begin()
            producer.send(topic, records[3:])
            producer.end(commit=True)
    seen = driver.consume(topic, dict.fromkeys(range(6), 0), 3, committed=True)
    assert values(seen) == [record.value for record in records[3:]]


@clients("transactions")
def test_a_transaction_that_is_left_is_aborted_in_time(
    driver: Driver, helper: Driver, topic: str, name: str, now_ms: int
) -> None:
    with driver.transactional(name, timeout_ms=1_000) as producer:
        producer.begin()
        producer.send(topic, plain_records(3, partitions=1, timestamp=now_ms))
        after = plain_records(4, partitions=1, start=10, timestamp=now_ms)
        helper.produce(topic, after)
        seen = helper.consume(topic, {0: 0}, 4, committed=True)
        assert values(seen) == [record.value for record in after]
        with pytest.raises(KafkaProblem) as refused:
            producer.end(commit=True)
        assert refused.value.code in FENCED


@clients("transactions")
def test_offsets_are_committed_with_it(
    driver: Driver, helper: Driver, topic: str, name: str, now_ms: int
) -> None:
    group = f"g-{name}"
    helper.commit(group, topic, {0: (1, ""), 1: (1, "")})

    def found() -> dict[int, int]:
        told = helper.committed(group, topic, [0, 1])
        return {part: at for part, (at, _) in told.items()}

    def await_offset(expected: int) -> dict[int, int]:
        eventually(lambda: found().get(0) == expected, found)
        return found()

    with driver.transactional(name) as producer:
        for commit, offset in ((False, 5), (True, 7)):
            producer.begin()
            producer.send(topic, plain_records(1, timestamp=now_ms))
            producer.send_offsets(group, topic, {0: offset})
            producer.end(commit=commit)
            expected = offset if commit else 1

            assert await_offset(expected) == {0: expected, 1: 1}
