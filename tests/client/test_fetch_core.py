"""The fetch core: positions over real batches, answers by hand, aborted transactions."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.client.errors import MalformedResponse
from penstock.client.fetch import (
    Aborted,
    Cursor,
    FetchCore,
    FetchedPartition,
    fetch_body,
    read_fetch,
    whole_batches,
)
from penstock.records import BatchHeader, encode_header
from penstock.records.columnar import encode_batches
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


def fetched(records: bytes, *aborted: Aborted) -> FetchedPartition:
    return FetchedPartition(
        partition=0,
        error_code=0,
        high_watermark=100,
        last_stable_offset=100,
        log_start_offset=0,
        aborted=aborted,
        records=memoryview(records),
    )


def core(position: int, end: int | None) -> FetchCore:
    return FetchCore(topic="orders", cursors={0: Cursor(position, end)})


def test_moves_over_whole_batches_and_leaves_a_cut_one() -> None:
    subject = core(0, None)
    whole = batch(0, 10) + batch(10, 5)
    for cut in (0, 1, 11, 12, 60, 61, 70):
        subject.cursors[0].position = 0
        (run,) = subject.advance(fetched(whole + batch(15, 9)[:cut]))
        assert bytes(run.data) == whole
        assert subject.cursors[0].position == 15
    assert subject.advance(fetched(b"")) == []


def test_stops_at_the_end() -> None:
    subject = core(0, 10)
    (run,) = subject.advance(fetched(batch(0, 10) + batch(10, 5)))
    assert bytes(run.data) == batch(0, 10)
    assert subject.done
    subject = core(3, 7)
    (run,) = subject.advance(fetched(batch(0, 10)))
    assert (run.start_offset, run.end_offset) == (3, 7)
    assert subject.done


def test_a_gap_before_the_end_ends_the_read() -> None:
    subject = core(0, 10)
    assert subject.advance(fetched(batch(20, 5))) == []
    assert subject.done


def test_leaves_out_aborted_transactions() -> None:
    aborted = batch(0, 3, producer_id=7, transactional=True)
    plain = batch(3, 2)
    other = batch(5, 2, producer_id=8, transactional=True)
    more = batch(7, 2, producer_id=7, transactional=True)
    marker = control(9, 7)
    later = batch(10, 2, producer_id=7, transactional=True)
    subject = core(0, None)
    runs = subject.advance(fetched(aborted + plain + other + more + marker + later, Aborted(7, 0)))
    assert b"".join(bytes(run.data) for run in runs) == plain + other + marker + later
    assert subject.cursors[0].position == 12


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
    leaders = dict.fromkeys(range(3), 1)
    firsts = []
    for _ in range(3):
        request = subject.request(1, leaders)
        assert request is not None
        firsts.append(next(iter(request.positions)))
    assert sorted(firsts) == [0, 1, 2]
    assert subject.request(2, leaders) is None
    assert subject.without_leader({0: 1}) == [1, 2]


def test_a_second_request_leaves_only_for_partitions_that_are_behind() -> None:
    """A broker may hold back its answer to the first, and answers in order."""
    cursors = {p: Cursor(0, None) for p in range(5)}
    subject = FetchCore(topic="orders", cursors=cursors)
    leaders = dict.fromkeys(range(5), 1)
    first = subject.request(1, leaders)
    assert first is not None
    assert sorted(first.positions) == [0, 1, 2, 3, 4]
    assert subject.request(1, leaders, [first]) is None
    for partition in (0, 1, 2):
        cursors[partition].readable = 7
    first = subject.request(1, leaders)
    assert first is not None
    second = subject.request(1, leaders, [first])
    assert second is not None
    assert sorted([*first.positions, *second.positions]) == [0, 1, 2, 3, 4]
    assert list(second.positions) == [2]
    assert subject.request(1, leaders, [first, second]) is None
    for partition in (0, 1, 2):
        cursors[partition].position = 7
    assert subject.request(1, leaders, [second]) is None


def test_only_what_may_be_read_counts_as_behind() -> None:
    subject = core(0, None)
    answer = replace(fetched(batch(0, 10)), last_stable_offset=10)
    subject.isolation = 1
    subject.advance(answer)
    assert not subject.cursors[0].behind
    subject.isolation = 0
    subject.advance(answer)
    assert subject.cursors[0].behind


def test_the_request_is_what_the_schema_says() -> None:
    body = fetch_body(
        "orders", {2: 40}, isolation=1, max_bytes=1000, partition_max_bytes=100, max_wait_ms=50
    )
    entity, _ = decoder("Fetch", 12, "request")(encoder("Fetch", 12, "request")(body), 0)
    assert entity.topics[0].partitions[0].fetch_offset == 40
    assert entity.isolation_level == 1
    assert entity.session_epoch == -1


def answer(records: bytes | None) -> bytes:
    partition = {
        "partition_index": 3,
        "error_code": 1,
        "high_watermark": 50,
        "last_stable_offset": 40,
        "log_start_offset": 5,
        "aborted_transactions": [{"producer_id": 9, "first_offset": 8}],
        "records": records,
    }
    return encoder("Fetch", 12, "response")(
        {"responses": [{"topic": "orders", "partitions": [partition]}]}
    )


@pytest.mark.parametrize("records", [None, b"", b"x" * 300])
def test_reads_an_answer_without_copying(records: bytes | None) -> None:
    frame = memoryview(b"head" + answer(records))
    code, (found,) = read_fetch(frame, 4, "broker")
    assert (code, found.partition, found.error_code) == (0, 3, 1)
    assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (50, 40, 5)
    assert found.aborted == (Aborted(9, 8),)
    assert bytes(found.records) == (records or b"")
    assert found.records.obj is frame.obj


def test_refuses_an_answer_cut_anywhere() -> None:
    whole = answer(b"x" * 300)
    for size in range(len(whole) - 1):
        with pytest.raises(MalformedResponse):
            read_fetch(memoryview(whole[:size]), 0, "broker")


def test_whole_batches() -> None:
    data = batch(0, 10)
    assert whole_batches(memoryview(data + data[:30])) == (len(data), 10)
    assert whole_batches(memoryview(b"")) == (0, -1)
