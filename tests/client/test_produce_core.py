"""Produce core with scripted responses: order, limits, retries, final failures."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.client.errors import RETRY, BrokerFenced, Disconnected, MessageTooLarge, TimedOut
from penstock.client.produce import (
    Acknowledged,
    Batch,
    ProduceCore,
    ProduceRequest,
    produce_call,
    read_acknowledgements,
)
from penstock.wire.kafka.decoder import decoder

NOT_LEADER, OUT_OF_ORDER, DUPLICATE, TOO_LARGE = 6, 45, 46, 10
ONE = {0: 1}


def core(**options: object) -> ProduceCore:
    values: dict[str, object] = {
        "retry": replace(RETRY, attempts_max=5, timeout_ms=1000),
        "idempotent": True,
        **options,
    }
    return ProduceCore("orders", **values)  # type: ignore[arg-type]


def batches(count: int, partition: int = 0) -> list[Batch]:
    return [Batch(partition, bytes([index]) * 100, 10) for index in range(count)]


def answer(code: int = 0, base_offset: int = 0, partition: int = 0) -> dict[int, Acknowledged]:
    return {partition: Acknowledged(partition, code, base_offset, None)}


def take(subject: ProduceCore, count: int, now_ms: float = 0) -> list[ProduceRequest]:
    found = [subject.next_request(ONE, now_ms) for _ in range(count)]
    return [request for request in found if request is not None]


def opened(count: int, **options: object) -> ProduceCore:
    """Return a core whose partition 0 has had one batch acknowledged, with `count` more waiting."""
    subject = core(**options)
    subject.add(batches(1))
    (first,) = take(subject, 1)
    subject.answered(first, answer(), now_ms=0, chance=0)
    subject.add(batches(count))
    return subject


def first_bytes(requests: Sequence[ProduceRequest]) -> list[int]:
    return [request.batches[0].data[0] for request in requests]


def test_the_first_batch_of_a_partition_goes_alone() -> None:
    subject = core()
    subject.add(batches(3))
    (first,) = take(subject, 3)
    subject.answered(first, answer(NOT_LEADER), now_ms=1, chance=0)
    (again,) = take(subject, 3, now_ms=500)
    assert again.batches == first.batches
    subject.answered(again, answer(), now_ms=501, chance=0)
    assert first_bytes(take(subject, 3, now_ms=502)) == [1, 2]


def test_at_most_five_are_under_way() -> None:
    subject = opened(7)
    requests = take(subject, 7)
    assert first_bytes(requests) == [0, 1, 2, 3, 4]
    subject.answered(requests[0], answer(), now_ms=1, chance=0)
    assert first_bytes(take(subject, 7)) == [5]


def test_reports_offsets_and_counts() -> None:
    subject = core()
    subject.add(batches(2))
    for base_offset in (100, 110):
        (request,) = take(subject, 2)
        subject.answered(request, answer(base_offset=base_offset), now_ms=1, chance=0)
    assert subject.done
    assert subject.records == 20
    assert (subject.reports[0].first_offset, subject.reports[0].last_offset) == (100, 119)


def test_a_failed_batch_and_its_followers_leave_again_in_order() -> None:
    subject = opened(4)
    one, two, three, four = take(subject, 4)
    subject.answered(one, answer(NOT_LEADER), now_ms=1, chance=0)
    assert subject.metadata_stale
    assert subject.next_request(ONE, 10_000) is None  # the others have not been answered yet
    subject.answered(two, answer(OUT_OF_ORDER), now_ms=2, chance=0)
    subject.answered(three, answer(OUT_OF_ORDER), now_ms=2, chance=0)
    subject.answered(four, answer(OUT_OF_ORDER), now_ms=2, chance=0)
    assert subject.error is None
    assert subject.next_request(ONE, 2) is None  # a pause comes first
    assert first_bytes(take(subject, 9, now_ms=500)) == [0, 1, 2, 3]


def test_out_of_order_of_the_oldest_is_the_end() -> None:
    subject = core()
    subject.add(batches(1))
    (one,) = take(subject, 1)
    subject.answered(one, answer(OUT_OF_ORDER), now_ms=1, chance=0)
    assert isinstance(subject.error, BrokerFenced)
    assert subject.error.code == "out_of_order_sequence_number"


def test_a_duplicate_is_an_acknowledgement() -> None:
    subject = core()
    subject.add(batches(1))
    (one,) = take(subject, 1)
    subject.answered(one, answer(DUPLICATE, -1), now_ms=1, chance=0)
    assert subject.done
    assert subject.reports[0].first_offset == -1


def test_a_lost_connection_brings_everything_back_in_order() -> None:
    subject = opened(5)
    requests = take(subject, 3)
    subject.disconnected(requests, Disconnected("gone"), now_ms=1, chance=0)
    assert first_bytes(take(subject, 9, now_ms=500)) == [0, 1, 2, 3, 4]


def test_fails_after_the_allowed_attempts() -> None:
    subject = core()
    subject.add(batches(1))
    for attempt in range(5):
        (request,) = take(subject, 1, now_ms=attempt * 100)
        subject.disconnected([request], Disconnected("gone"), now_ms=attempt * 100, chance=0)
    assert isinstance(subject.error, TimedOut)
    assert "orders-0 failed after 5 attempts" in str(subject.error)
    assert "gone" in str(subject.error)


def test_fails_for_a_partition_without_a_leader() -> None:
    subject = core()
    subject.add(batches(1))
    assert subject.next_request({}, 0) is None
    assert subject.metadata_stale
    assert subject.error is None
    assert subject.next_request({}, 1000) is None
    assert isinstance(subject.error, TimedOut)
    assert "no leader" in str(subject.error)


def test_names_the_limit_of_a_batch_too_large() -> None:
    subject = core()
    subject.add(batches(1))
    (one,) = take(subject, 1)
    subject.answered(one, answer(TOO_LARGE), now_ms=1, chance=0)
    assert isinstance(subject.error, MessageTooLarge)
    assert "10 records (100 bytes) to orders-0: MESSAGE_TOO_LARGE (10)" in str(subject.error)
    assert "max.message.bytes" in str(subject.error)


def test_partitions_of_a_broker_share_requests_within_the_limit() -> None:
    subject = core(request_bytes=250)
    for partition in range(4):
        subject.add(batches(1, partition))
    leaders = dict.fromkeys(range(4), 1)
    sizes = []
    while request := subject.next_request(leaders, 0):
        sizes.append(len(request.batches))
    assert sizes == [2, 2]


def test_an_answer_that_leaves_a_partition_out_is_a_failure() -> None:
    subject = core()
    subject.add(batches(1))
    (one,) = take(subject, 1)
    subject.answered(one, {}, now_ms=1, chance=0)
    assert not subject.done
    assert len(take(subject, 1, now_ms=500)) == 1


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["ok", "fail", "drop"]), max_size=60), st.integers(1, 12))
def test_a_broker_that_checks_sequences_gets_every_batch_once(
    script: list[str], count: int
) -> None:
    """The model of the broker accepts batches in sequence only, and stores the last five."""
    subject = core(retry=replace(RETRY, attempts_max=10**6, timeout_ms=10**9))
    subject.add(batches(count))
    log: list[int] = []
    plan = iter(script)
    now_ms = 0.0
    under_way: list[ProduceRequest] = []
    for _ in range(1000):
        now_ms += 2000
        while request := subject.next_request(ONE, now_ms):
            under_way.append(request)
        if not under_way:
            break
        step = next(plan, "ok")
        if step == "drop":
            written = under_way[: len(under_way) // 2 + 1]
            for request in written:
                append(log, request.batches[0].data[0])
            subject.disconnected(under_way, Disconnected("gone"), now_ms=now_ms, chance=0.5)
            under_way = []
            continue
        request = under_way.pop(0)
        code = NOT_LEADER if step == "fail" else append(log, request.batches[0].data[0])
        subject.answered(request, answer(code), now_ms=now_ms, chance=0.5)
    assert subject.error is None
    assert subject.done
    assert log == list(range(count))


def append(log: list[int], sequence: int) -> int:
    """Append any sequence of an unknown producer, as Kafka does."""
    if not log or sequence == len(log):
        log.append(sequence)
        return 0
    return 0 if len(log) - 5 <= sequence < len(log) else OUT_OF_ORDER


def test_the_request_is_what_the_schema_says() -> None:
    request = ProduceRequest(1, (Batch(3, b"12345678" + b"x" * 200, 1), Batch(4, b"87654321y", 1)))
    call = produce_call(
        request, topic="orders", acks=-1, timeout_ms=5000, correlation_id=7, client_id=b"me"
    )
    frame = b"".join(call.pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    entity, end = decoder("Produce", 9, "request")(frame, 4 + 8 + 2 + 2 + 1)
    assert end == len(frame)
    assert entity.acks == -1
    (found,) = entity.topic_data
    assert found.name == "orders"
    assert [(part.index, part.records) for part in found.partition_data] == [
        (3, bytes(8) + b"x" * 200),
        (4, bytes(8) + b"y"),
    ]


def test_reads_acknowledgements_with_the_first_record_error() -> None:
    class Item:
        index, error_code, base_offset, error_message = 2, 87, -1, None
        record_errors = (type("E", (), {"batch_index_error_message": "bad record"}),)

    class Answer:
        responses = (type("T", (), {"partition_responses": (Item,)}),)

    assert read_acknowledgements(Answer) == {2: Acknowledged(2, 87, -1, "bad record")}
