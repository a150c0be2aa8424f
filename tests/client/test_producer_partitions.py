"""Producer partition with scripted responses: appends end exactly once, also after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.base.errors import PenstockError
from penstock.client.errors import RETRY, BrokerFenced, Disconnected, MessageTooLarge, TimedOut
from penstock.client.produce import Acknowledged, ProduceRequest
from penstock.client.producer_partitions import (
    EarlierFailed,
    Pieces,
    ProducerPartition,
    ProducerPartitionState,
)

NOT_LEADER, OUT_OF_ORDER, TOO_LARGE = 6, 45, 10
WHERE = ProducerPartition(7, 0, "orders", 0, True)
LEADERS = {0: 1}
RECORDS = 10


class Ended:
    """Collector of the results of appends, by name."""

    def __init__(self) -> None:
        self.errors: dict[int, PenstockError | None] = {}

    def __call__(self, name: int, error: PenstockError | None) -> None:
        assert name not in self.errors, "completed twice"
        self.errors[name] = error


def producer_partition(*, idempotent: bool = True) -> ProducerPartitionState:
    retry = replace(RETRY, attempts_max=4, timeout_ms=1000)
    return ProducerPartitionState(WHERE._replace(idempotent=idempotent), retry)


def add(
    subject: ProducerPartitionState, ended: Ended, name: int, *, batches: int = 1, at: int = -1
) -> None:
    sequence = name * RECORDS if at < 0 else at
    assert subject.admit(sequence) is None
    pieces = [Pieces(bytes([name]) * 100, RECORDS) for _ in range(batches)]
    subject.add(pieces, sequence, lambda error: ended(name, error))


def take(
    subject: ProducerPartitionState, count: int = 9, now_ms: float = 0
) -> list[ProduceRequest]:
    found = [subject.next_request(LEADERS, now_ms) for _ in range(count)]
    return [request for request in found if request is not None]


def answer(
    subject: ProducerPartitionState, request: ProduceRequest, code: int = 0, now_ms: float = 0
) -> None:
    results = {0: Acknowledged(0, code, 0, None)}
    for done, error in subject.answered(request, results, now_ms=now_ms, chance=0):
        done(error)


def collapse(subject: ProducerPartitionState) -> None:
    for done, error in subject.collapse():
        done(error)


def opened(ended: Ended) -> ProducerPartitionState:
    subject = producer_partition()
    add(subject, ended, 0)
    answer(subject, take(subject)[0])
    return subject


def test_an_append_ends_when_all_of_its_batches_are_acknowledged() -> None:
    ended = Ended()
    subject = opened(ended)
    add(subject, ended, 1, batches=3)
    first, second, third = take(subject)
    answer(subject, second)
    answer(subject, first)
    assert ended.errors == {0: None}
    assert not subject.idle
    answer(subject, third)
    assert ended.errors == {0: None, 1: None}
    assert subject.idle


def test_a_failure_is_reported_without_requests_in_flight_and_names_the_culprit() -> None:
    ended = Ended()
    subject = opened(ended)
    for name in (1, 2, 3, 4):
        add(subject, ended, name)
    one, two, three, four = take(subject)
    answer(subject, two, TOO_LARGE)
    collapse(subject)
    assert ended.errors == {0: None}  # one, three and four are still under way
    answer(subject, one)
    answer(subject, three, OUT_OF_ORDER)
    collapse(subject)
    assert set(ended.errors) == {0, 1}
    answer(subject, four, OUT_OF_ORDER)
    collapse(subject)
    assert ended.errors[1] is None
    assert isinstance(ended.errors[2], MessageTooLarge)
    assert isinstance(ended.errors[3], EarlierFailed)
    assert isinstance(ended.errors[4], EarlierFailed)
    assert subject.idle


def failed_at_one() -> ProducerPartitionState:
    ended = Ended()
    subject = opened(ended)
    add(subject, ended, 1)
    add(subject, ended, 2)
    one, two = take(subject)
    answer(subject, one, OUT_OF_ORDER)
    answer(subject, two, OUT_OF_ORDER)
    collapse(subject)
    assert isinstance(ended.errors[1], BrokerFenced)
    return subject


def test_after_a_failure_only_the_failed_append_or_earlier_ones_are_accepted() -> None:
    subject = failed_at_one()
    refused = subject.admit(3 * RECORDS)
    assert isinstance(refused, EarlierFailed)
    assert "must start at sequence 10" in str(refused)
    again = Ended()
    add(subject, again, 0)  # accepted before, but the producer has not heard of it
    assert isinstance(subject.admit(2 * RECORDS), EarlierFailed)
    add(subject, again, 1)
    add(subject, again, 2)
    (first,) = take(subject)  # alone, as for any new core
    answer(subject, first)
    for request in take(subject):
        answer(subject, request)
    assert again.errors == {0: None, 1: None, 2: None}


def test_the_order_of_sequences_is_known_where_they_wrap() -> None:
    ended = Ended()
    subject = producer_partition()
    add(subject, ended, 0, at=2**31 - 5)
    (request,) = take(subject)
    answer(subject, request, TOO_LARGE)
    collapse(subject)
    assert isinstance(subject.admit(5), EarlierFailed)
    assert subject.admit(2**31 - 15) is None
    assert subject.admit(2**31 - 5) is None
    assert subject.admit(5) is None


def test_appends_are_rejected_until_a_failure_is_complete() -> None:
    ended = Ended()
    subject = opened(ended)
    add(subject, ended, 1)
    add(subject, ended, 2)
    one, _ = take(subject)
    answer(subject, one, TOO_LARGE)
    assert isinstance(subject.admit(3 * RECORDS), EarlierFailed)


def test_a_partition_without_sequences_continues_at_once() -> None:
    ended = Ended()
    subject = producer_partition(idempotent=False)
    add(subject, ended, 0, at=-1)
    (request,) = take(subject)
    answer(subject, request, TOO_LARGE)
    collapse(subject)
    assert isinstance(ended.errors[0], MessageTooLarge)
    assert subject.admit(-1) is None


def test_a_producer_partition_fails_after_its_timeout() -> None:
    ended = Ended()
    subject = producer_partition()
    add(subject, ended, 0)
    add(subject, ended, 1)
    for now_ms in (0, 300, 600, 1000):
        (request,) = take(subject, now_ms=now_ms)
        subject.disconnected([request], Disconnected("gone"), now_ms=now_ms, chance=0)
    collapse(subject)
    assert isinstance(ended.errors[0], TimedOut)
    assert isinstance(ended.errors[1], EarlierFailed)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_append_ends_once_whatever_the_broker_answers(data: st.DataObject) -> None:
    ended, now_ms, subject = Ended(), 0.0, producer_partition()
    under_way: list[ProduceRequest] = []
    added = 0
    for _ in range(data.draw(st.integers(1, 40))):
        now_ms += data.draw(st.sampled_from([1, 50, 400]))
        step = data.draw(st.sampled_from(["add", "send", "answer", "lose"]))
        if step == "add" and subject.admit(added * RECORDS) is None:
            add(subject, ended, added, batches=data.draw(st.integers(1, 3)))
            added += 1
        elif step == "send":
            under_way += take(subject, now_ms=now_ms)
        elif step == "answer" and under_way:
            code = data.draw(st.sampled_from([0, 0, 0, NOT_LEADER, OUT_OF_ORDER, TOO_LARGE]))
            answer(subject, under_way.pop(0), code, now_ms)
        elif step == "lose":
            subject.disconnected(under_way, Disconnected("x"), now_ms=now_ms, chance=0.5)
            under_way = []
        collapse(subject)
    subject.fail(TimedOut("the end"))
    subject.disconnected(under_way, Disconnected("x"), now_ms=now_ms, chance=0)
    collapse(subject)
    assert set(ended.errors) == set(range(added))
    assert subject.idle


@pytest.mark.parametrize("partition", [0, 3])
def test_a_lane_names_itself(partition: int) -> None:
    text = str(WHERE._replace(partition=partition))
    assert text == f"orders-{partition} of producer 7 epoch 0"
