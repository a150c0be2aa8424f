"""Fetch core: positions over real batches, hand-made responses, aborted transactions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from msgspec.structs import replace

from penstock.client.columns import decoded, schema_of
from penstock.client.errors import LogTruncated, MalformedResponse
from penstock.client.fetch import (
    Asked,
    Cursor,
    FetchCore,
    FetchedPartition,
    ReadPosition,
    Run,
    fetch_body,
    read_fetch,
    walk_batches,
)
from penstock.records import BatchHeader, encode_header
from penstock.records.columnar import encode_batches
from penstock.records.transactions import OFFSET_MAX
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder


def batch(
    base_offset: int, count: int, *, producer_id: int = -1, transactional: bool = False
) -> bytes:
    table = pa.table({"value": [f"v{index}" for index in range(count)]})
    (encoded,) = encode_batches(
        table,
        now_ms=1,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        transactional=transactional,
    )
    return bytes(encoded.data)


def fetched(records: bytes, *aborted: tuple[int, int]) -> FetchedPartition:
    return FetchedPartition(
        partition=0,
        error_code=0,
        high_watermark=100,
        last_stable_offset=100,
        log_start_offset=0,
        aborted=aborted,
        records=memoryview(records),
    )


def advance(subject: FetchCore, answer: FetchedPartition) -> Run:
    run = subject.advance(answer)
    assert run is not None
    return run


def core(position: int, end: int | None) -> FetchCore:
    return FetchCore(topic="orders", cursors={0: Cursor(position, end)})


def test_moves_over_whole_batches_and_leaves_a_cut_one() -> None:
    subject = core(0, None)
    whole = batch(0, 10) + batch(10, 5)
    for cut in (0, 1, 11, 12, 60, 61, 70):
        subject.cursors[0].position = 0
        run = advance(subject, fetched(whole + batch(15, 9)[:cut]))
        assert bytes(run.data) == whole
        assert subject.cursors[0].position == 15
    assert subject.advance(fetched(b"")) is None


def test_stops_at_the_end() -> None:
    subject = core(0, 10)
    run = advance(subject, fetched(batch(0, 10) + batch(10, 5)))
    assert bytes(run.data) == batch(0, 10)
    assert subject.done
    subject = core(3, 7)
    run = advance(subject, fetched(batch(0, 10)))
    assert (run.start_offset, run.end_offset) == (3, 7)
    assert subject.done


def test_a_gap_before_the_end_ends_the_read() -> None:
    subject = core(0, 10)
    assert subject.advance(fetched(batch(20, 5))) is None
    assert subject.done


def test_aborted_transactions_are_left_out() -> None:
    aborted = batch(0, 3, producer_id=7, transactional=True)
    plain = batch(3, 2)
    other = batch(5, 2, producer_id=8, transactional=True)
    more = batch(7, 2, producer_id=7, transactional=True)
    marker = control(9, 7)
    later = batch(10, 2, producer_id=7, transactional=True)
    subject = core(0, None)
    again = control(12, 7)
    last = batch(13, 1, producer_id=7, transactional=True)
    whole = aborted + plain + other + more + marker + later + again + last
    run = advance(subject, fetched(whole, (7, 0), (7, 13)))
    assert run.aborted == ((7, 0, 9), (7, 13, OFFSET_MAX))
    assert (bytes(run.data), subject.cursors[0].position) == (whole, 14)
    ((_, found),) = decoded("orders", run, schema_of(("offset",), False), False)
    assert found.column("offset").to_pylist() == [3, 4, 5, 6, 10, 11]


def control(base_offset: int, producer_id: int) -> bytes:
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=49,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0x30,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1,
        record_count=1,
    )
    return encode_header(header)


def test_rotates_the_first_partition() -> None:
    subject = FetchCore(topic="orders", cursors={p: Cursor(0, 10) for p in range(3)})
    subject.leaders = dict.fromkeys(range(3), (1, 0))
    firsts = []
    for _ in range(3):
        request = subject.request(1)
        assert request is not None
        firsts.append(next(iter(request.asked)))
    assert sorted(firsts) == [0, 1, 2]
    assert subject.request(2) is None
    subject.leaders = {0: (1, 0), 1: (-1, 0)}
    assert subject.without_leader() == [1, 2]
    assert subject.nodes() == {1}


def test_a_second_request_leaves_only_for_partitions_that_are_behind() -> None:
    """A broker may hold its response to the first, and answers in order."""
    cursors = {p: Cursor(0, None) for p in range(5)}
    subject = FetchCore(topic="orders", cursors=cursors)
    subject.leaders = dict.fromkeys(range(5), (1, 0))
    first = subject.request(1)
    assert first is not None
    assert sorted(first.asked) == [0, 1, 2, 3, 4]
    assert subject.request(1, [first]) is None
    for partition in (0, 1, 2):
        cursors[partition].readable = 7
    first = subject.request(1)
    assert first is not None
    second = subject.request(1, [first])
    assert second is not None
    assert sorted([*first.asked, *second.asked]) == [0, 1, 2, 3, 4]
    assert list(second.asked) == [2]
    assert subject.request(1, [first, second]) is None
    for partition in (0, 1, 2):
        cursors[partition].position = 7
    assert subject.request(1, [second]) is None


def test_only_what_may_be_read_counts_as_behind() -> None:
    subject = core(0, None)
    answer = replace(fetched(batch(0, 10)), last_stable_offset=10)
    subject.isolation = 1
    subject.advance(answer)
    assert not subject.cursors[0].behind
    subject.isolation = 0
    subject.advance(answer)
    assert subject.cursors[0].behind


@pytest.mark.parametrize("version", [12, 13, 14, 15, 16])
def test_the_request_is_what_the_schema_says(version: int) -> None:
    body = fetch_body(
        "orders",
        UUID(int=7),
        {2: Asked(40, 3, 5)},
        version=version,
        isolation=1,
        max_bytes=1000,
        partition_max_bytes=100,
        max_wait_ms=50,
    )
    written = encoder("Fetch", version, "request")(body)
    entity, _ = decoder("Fetch", version, "request")(written, 0)
    (topic,) = entity.topics
    assert (topic.topic_id == UUID(int=7)) if version > 12 else (topic.topic == "orders")
    (row,) = topic.partitions
    assert (row.fetch_offset, row.last_fetched_epoch, row.current_leader_epoch) == (40, 3, 5)
    assert entity.isolation_level == 1
    assert entity.session_epoch == -1


def answer(records: bytes | None, version: int = 12, **more: Any) -> bytes:
    partition = {
        "partition_index": 3,
        "error_code": 1,
        "high_watermark": 50,
        "last_stable_offset": 40,
        "log_start_offset": 5,
        "aborted_transactions": [{"producer_id": 9, "first_offset": 8}],
        "records": records,
        **more,
    }
    topic = {"topic": "orders"} if version == 12 else {"topic_id": UUID(int=7)}
    return encoder("Fetch", version, "response")(
        {"responses": [{**topic, "partitions": [partition]}]}
    )


@pytest.mark.parametrize("version", [12, 16])
@pytest.mark.parametrize("records", [None, b"", b"x" * 300])
def test_reads_an_answer_without_copying(records: bytes | None, version: int) -> None:
    frame = memoryview(b"head" + answer(records, version))
    code, (found,) = read_fetch(frame, 4, "broker", version)
    assert (code, found.partition, found.error_code) == (0, 3, 1)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (50, 40, 5)
    assert found.aborted == ((9, 8),)
    assert (found.parts, found.leader) == (None, None)
    assert bytes(found.records) == (records or b"")
    assert found.records.obj is frame.obj


def test_refuses_an_answer_cut_anywhere() -> None:
    for more in ({}, PARTS, LEADS):
        whole = answer(b"x" * 300, 16, **more)
        for size in range(len(whole) - 1):
            with pytest.raises(MalformedResponse):
                read_fetch(memoryview(whole[:size]), 0, "broker", 16)


PARTS: dict[str, Any] = {"diverging_epoch": {"epoch": 4, "end_offset": 9}}
LEADS: dict[str, Any] = {"current_leader": {"leader_id": 2, "leader_epoch": 6}}


def test_reads_the_divergence_and_the_leader() -> None:
    _, (found,) = read_fetch(memoryview(answer(None, 16, **PARTS, **LEADS)), 0, "broker", 16)
    assert (found.parts, found.leader) == ((4, 9), (2, 6))


def test_a_response_of_a_former_leader_is_ignored() -> None:
    subject = core(0, None)
    assert subject.learn(0, (1, 5))
    old = subject.request(1)
    assert old is not None
    assert old.asked == {0: Asked(0, -1, 5)}
    assert not subject.outdated(0, old)
    assert not subject.learn(0, (3, 4))
    assert subject.nodes() == {1}
    assert subject.learn(0, (2, 6))
    assert subject.nodes() == {2}
    assert subject.outdated(0, old)
    assert not subject.learn(0, (-1, 6)), "not newer, and stored: the epoch has no leader now"
    assert subject.nodes() == set()


def test_a_position_has_the_epoch_of_the_record_before_it() -> None:
    subject = core(0, None)
    subject.learn(0, (1, 5))
    first, second = bytearray(batch(0, 10)), bytearray(batch(10, 5))
    first[12:16], second[12:16] = (3).to_bytes(4, "big"), (5).to_bytes(4, "big")
    run = advance(subject, fetched(bytes(first + second)))
    assert run.behind == (5, 15)
    request = subject.request(1)
    assert request is not None
    assert request.asked == {0: Asked(15, 5, 5)}
    subject.advance(fetched(bytes(first)))
    assert (subject.cursors[0].epoch, subject.cursors[0].position) == (5, 15)


@pytest.mark.parametrize(("said", "left"), [((3, 12), (3, 12)), ((4, 20), (4, 15))])
def test_discarded_records_raise_log_truncated(
    said: tuple[int, int], left: tuple[int, int]
) -> None:
    subject = core(15, None)
    subject.cursors[0].epoch = 5
    subject.check(fetched(b""))
    with pytest.raises(LogTruncated) as caught:
        subject.check(replace(fetched(b""), parts=ReadPosition(*said)))
    assert (caught.value.read, caught.value.left) == ((5, 15), left)
    assert caught.value.offset == left[1]


def test_whole_batches() -> None:
    data = batch(0, 10)
    assert walk_batches(memoryview(data + data[:30])) == (len(data), (-1, 10), [])
    assert walk_batches(memoryview(b"")) == (0, (-1, -1), [])
