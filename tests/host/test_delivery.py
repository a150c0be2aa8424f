"""Delivery: what is sent again and in which order, what ends and how, when epochs are raised."""

from __future__ import annotations

import pytest

from penstock.host.client_machine import ClientState, ClientTerms, Disconnect
from penstock.host.errors import (
    ClientClosed,
    FrameFailed,
    FrameRefused,
    FrameTooLarge,
    HandshakeRefused,
    InvalidChunks,
    LostOnDisconnect,
    NoCredit,
    NotConnected,
    ProducerFenced,
    PublishTimedOut,
)
from penstock.host.port import ACCEPTED, PENDING, ChunkFormat, Chunks, Failed
from penstock.host.publication import Publication, batch, single
from penstock.wire.frames import HELLO_ACK, Frame, Header
from tests.host.pair import Pair, busy


def submit(pair: Pair, *payloads: bytes, topic: str = "", partition: int = -1) -> list[Publication]:
    publications = [single(data, topic=topic, partition=partition) for data in payloads]
    for publication in publications:
        pair.delivery.submit(publication, pair.now_ms)
    return publications


def payloads(pair: Pair) -> list[bytes]:
    return [payload for _, _, payload in pair.delivered]


def numbers(pair: Pair) -> list[int]:
    return [log_sequence for log_sequence, _, _ in pair.delivered]


# With resend


def test_what_was_submitted_before_the_connection_is_sent_with_it() -> None:
    pair = Pair()
    first, second = submit(pair, b"a", b"b")
    assert pair.delivery.outstanding == 2
    pair.connect()
    assert first.ended
    assert second.ended
    assert first.error is None
    assert payloads(pair) == [b"a", b"b"]
    assert pair.delivery.outstanding == 0 == pair.delivery.buffered_bytes


def test_lost_frames_come_again_in_order_and_with_their_identity() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: PENDING
    pair.connect()
    submit(pair, b"a", b"b", b"c")
    pair.exchange()
    seen = list(pair.delivered)
    assert len(seen) == 3
    pair.cut()
    later = submit(pair, b"d")[0]
    pair.verdict = lambda chunks: ACCEPTED
    assert pair.delivery.reconnect_at_ms == pair.now_ms + 25
    pair.connect()
    assert pair.delivered[3:6] == seen
    assert payloads(pair)[6:] == [b"d"]
    assert later.ended
    assert pair.delivery.outstanding == 0
    assert pair.delivery.resent == 3
    assert pair.hellos == [(-1, 0), (7, 0)]


def test_a_failed_frame_waits_for_those_behind_it_and_for_the_pause() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: PENDING
    pair.connect()
    submit(pair, b"a", b"b")
    pair.exchange()
    pair.complete(Failed("busy", retryable=True, retry_after_ms=100))
    submit(pair, b"c")
    pair.advance(150)
    assert payloads(pair) == [b"a", b"b"]  # b is not answered yet
    pair.complete()
    assert payloads(pair) == [b"a", b"b", b"a", b"c"]


def test_the_pause_of_a_failed_frame() -> None:
    pair = Pair()
    pair.verdict = busy
    pair.connect()
    publication = submit(pair, b"a")[0]
    pair.exchange()
    assert pair.delivery.next_wake_ms(pair.now_ms) == pair.now_ms + 100
    pair.verdict = lambda chunks: ACCEPTED
    pair.advance(99)
    assert not publication.ended
    pair.advance(1)
    assert publication.ended
    assert publication.error is None


def test_a_pause_does_not_wake_a_client_without_a_connection() -> None:
    pair = Pair()
    pair.verdict = busy
    pair.connect()
    submit(pair, b"a")
    pair.exchange()
    pair.delivery.pump(pair.now_ms)
    pair.cut()
    pair.advance(10)
    pair.delivery.reconnect_at_ms = pair.now_ms + 5_000
    assert pair.delivery.next_wake_ms(pair.now_ms + 1_000) == pair.now_ms + 5_000


def test_a_permanent_failure_ends_the_publication() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: Failed("no such topic", retryable=False)
    pair.connect()
    publication = submit(pair, b"a")[0]
    pair.exchange()
    assert isinstance(publication.error, FrameRefused)
    assert pair.delivery.outstanding == 0


def test_the_buffer_is_bounded() -> None:
    pair = Pair(buffer_bytes_max=10, buffer_frames_max=3)
    submit(pair, b"1234", b"1234")
    with pytest.raises(
        NoCredit, match="8 bytes have not ended; 3 more would exceed the maximum of 10"
    ):
        submit(pair, b"123")
    submit(pair, b"1")
    with pytest.raises(NoCredit, match="3 frames have not ended; the maximum is 3"):
        submit(pair, b"")
    with pytest.raises(FrameTooLarge, match="buffer of 10"):
        submit(pair, b"x" * 11)


def test_time_over_before_and_after_sending() -> None:
    pair = Pair(delivery_timeout_ms=1_000)
    pair.verdict = lambda chunks: PENDING
    pair.connect()
    sent = submit(pair, b"a")[0]
    pair.exchange()
    pair.cut()
    unsent = submit(pair, b"b")[0]
    assert pair.delivery.next_wake_ms(pair.now_ms + 500) == pair.now_ms + 500  # reconnects
    pair.advance(1_000)
    assert isinstance(sent.error, PublishTimedOut)
    assert "no answer" in str(sent.error)
    assert isinstance(unsent.error, PublishTimedOut)
    assert "not sent" in str(unsent.error)
    pair.connect()
    assert payloads(pair) == [b"a"]


def test_a_frame_that_was_sent_back_all_the_time_says_why() -> None:
    pair = Pair(delivery_timeout_ms=1_000)
    pair.verdict = lambda chunks: Failed("the sink is full", True, 100)
    pair.connect()
    publication = submit(pair, b"a", topic="t", partition=0)[0]
    for _ in range(12):
        pair.exchange()
        pair.advance(100)
    assert isinstance(publication.error, PublishTimedOut)
    assert publication.error.reason == "the sink is full"
    assert "times as retryable in 1000 ms: the sink is full" in str(publication.error)


def test_an_answer_after_the_time_is_over_frees_the_credit() -> None:
    pair = Pair(delivery_timeout_ms=1_000)
    pair.verdict = lambda chunks: PENDING
    pair.connect()
    publication = submit(pair, b"a", topic="t", partition=0)[0]
    pair.exchange()
    pair.advance(1_000)
    assert isinstance(publication.error, PublishTimedOut)
    assert pair.delivery.machine.window.taken.slots == 1
    pair.complete()
    assert pair.delivery.machine.window.taken.slots == 0
    submit(pair, b"b", topic="t", partition=0)
    pair.exchange()
    assert numbers(pair) == [0, 1]  # it was taken after all: no gap


def test_too_large_for_the_agent() -> None:
    pair = Pair(buffer_bytes_max=1 << 22)
    big, small = submit(pair, b"x" * (1 << 21), b"y", topic="t", partition=0)
    pair.connect()
    assert isinstance(big.error, FrameTooLarge)
    assert small.ended
    assert small.error is None
    assert numbers(pair) == [0]


def test_closed_and_abandoned() -> None:
    pair = Pair()
    first = submit(pair, b"a")[0]
    pair.delivery.close()
    with pytest.raises(ClientClosed):
        submit(pair, b"b")
    pair.connect()
    assert first.ended
    assert first.error is None
    pair = Pair()
    left = submit(pair, b"a")[0]
    pair.delivery.abandon(ClientClosed("gone"))
    assert isinstance(left.error, ClientClosed)
    assert pair.delivery.outstanding == 0


def test_a_large_payload_goes_through_the_ring() -> None:
    terms = ClientTerms(ring_bytes=1 << 10, ring_payload_bytes_min=100)
    pair = Pair(terms=terms)
    pair.connect(ring=True)
    submit(pair, b"a" * 500, b"b" * 500, b"c" * 50)
    pair.exchange()
    assert payloads(pair) == [b"a" * 500, b"b" * 500, b"c" * 50]
    space = pair.delivery.machine.space
    assert space is not None
    assert space.taken_bytes == 0
    assert bytes(pair.ring[:500]) == b"a" * 500


def test_a_payload_waits_for_room_in_the_ring_and_goes_inline_only_when_it_never_fits() -> None:
    terms = ClientTerms(ring_bytes=1 << 10, ring_payload_bytes_min=100)
    pair = Pair(terms=terms)
    pair.connect(ring=True)
    publications = submit(pair, b"a" * 600, b"b" * 700, b"c" * 2_000)
    pair.delivery.pump(pair.now_ms)
    assert [each.first_sequence for each in publications] == [0, -1, -1]
    pair.exchange()
    assert payloads(pair) == [b"a" * 600, b"b" * 700, b"c" * 2_000]
    assert all(publication.ended for publication in publications)


def test_what_waits_for_an_agent_that_will_never_take_it_ends_at_once() -> None:
    pair = Pair()
    (publication,) = submit(pair, b"a")
    pair.delivery.connected(0, ring=False)
    refusal = Frame(Header(type=HELLO_ACK, reason="no such topic"), memoryview(b""))
    (event,) = pair.delivery.receive(refusal, 0)
    assert event == Disconnect("no such topic", refused=True, retryable=False)
    assert isinstance(publication.error, HandshakeRefused)
    assert pair.delivery.outstanding == 0


def test_a_fenced_producer_stops_permanently() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: Failed("epoch 3 has written", retryable=False, fenced=True)
    pair.connect()
    first, second = submit(pair, b"a", b"b")
    pair.exchange()
    assert isinstance(first.error, ProducerFenced)
    assert isinstance(second.error, ProducerFenced)
    with pytest.raises(ProducerFenced):
        submit(pair, b"c")


# Producer partitions


def test_lanes_are_numbered_each_on_its_own() -> None:
    pair = Pair()
    pair.connect()
    submit(pair, b"a", b"b", topic="t", partition=0)
    submit(pair, b"c", topic="t", partition=1)
    submit(pair, b"d")
    pair.exchange()
    assert sorted((data, number) for number, _, data in pair.delivered) == [
        (b"a", 0), (b"b", 1), (b"c", 0), (b"d", -1),
    ]  # fmt: skip


def test_records_of_batches_are_counted() -> None:
    pair = Pair()
    pair.connect()
    frame = batch([b"x", b"y"], event_counts=[10, 20], topic="t", partition=0,
                  format=ChunkFormat.RECORD_BATCH)  # fmt: skip
    pair.delivery.submit(frame, pair.now_ms)
    pair.delivery.submit(batch([b"1", b"2", b"3"], topic="t", partition=0), pair.now_ms)
    submit(pair, b"z", topic="t", partition=0)
    pair.exchange()
    assert numbers(pair) == [0, 30, 33]


def test_a_lane_begins_with_one_frame_and_has_at_most_five_batches_under_way() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: PENDING
    pair.connect()
    submit(pair, *(bytes([n]) for n in range(8)), topic="t", partition=0)
    pair.exchange()
    assert numbers(pair) == [0]
    pair.complete()
    assert numbers(pair) == [0, 1, 2, 3, 4, 5]
    pair.complete()
    assert numbers(pair) == [0, 1, 2, 3, 4, 5, 6]


def test_what_a_lane_cannot_take() -> None:
    pair = Pair()
    frame = batch([b"x"] * 6, topic="t", partition=0, format=ChunkFormat.RECORD_BATCH)
    with pytest.raises(
        InvalidChunks, match="6 record batches cannot be idempotent; the maximum is 5"
    ):
        pair.delivery.submit(frame, pair.now_ms)
    empty = single(b"x", event_count=0, topic="t", partition=0, format=ChunkFormat.RECORD_BATCH)
    with pytest.raises(InvalidChunks, match="without records"):
        pair.delivery.submit(empty, pair.now_ms)
    assert pair.delivery.outstanding == 0


def started_lane(pair: Pair) -> None:
    """Connect and let a first frame of the lane be accepted."""
    pair.connect()
    submit(pair, b"0", topic="t", partition=0)
    pair.exchange()
    pair.delivered.clear()


def test_frames_behind_a_refused_frame_are_renumbered() -> None:
    pair = Pair()
    started_lane(pair)
    pair.verdict = lambda chunks: PENDING
    bad, behind, last = submit(pair, b"a", b"b", b"c", topic="t", partition=0)
    pair.exchange()
    assert numbers(pair) == [1, 2, 3]
    pair.complete(Failed("too large", retryable=False))
    pair.complete(Failed("out of order", retryable=True))
    pair.complete(Failed("out of order", retryable=True))
    assert isinstance(bad.error, FrameRefused)
    assert isinstance(pair.events[-1], Disconnect)
    pair.delivered.clear()
    pair.verdict = lambda chunks: ACCEPTED
    pair.cut()
    assert pair.delivery.reconnect_at_ms == pair.now_ms
    pair.connect()
    pair.advance(50)
    assert pair.hellos[-1] == (7, 1)
    assert payloads(pair) == [b"b", b"c"]
    assert numbers(pair) == [0, 1]
    assert behind.error is None is last.error
    assert last.ended
    assert pair.delivery.epochs_raised == 1


def test_a_frame_that_may_be_in_the_log_keeps_its_sequence() -> None:
    pair = Pair(delivery_timeout_ms=1_000)
    started_lane(pair)
    pair.verdict = lambda chunks: PENDING
    given_up = submit(pair, b"a", topic="t", partition=0)[0]
    pair.advance(500)
    behind = submit(pair, b"b", topic="t", partition=0)[0]
    pair.exchange()
    pair.cut()
    pair.advance(500)  # a is over: nobody knows whether it was written
    assert isinstance(given_up.error, PublishTimedOut)
    pair.delivered.clear()
    pair.connect()
    later = submit(pair, b"c", topic="t", partition=0)[0]
    pair.exchange()
    assert pair.delivered == [(2, 2, b"b")]
    pair.complete(ACCEPTED)  # so a was written too
    assert behind.error is None
    pair.complete(ACCEPTED)
    assert later.ended
    assert numbers(pair) == [2, 3]
    assert pair.delivery.epochs_raised == 0


def test_a_gap_in_one_lane_does_not_stop_another_before_the_epoch_is_raised() -> None:
    pair = Pair(delivery_timeout_ms=1_000)
    started_lane(pair)
    pair.verdict = lambda chunks: PENDING
    submit(pair, b"a", topic="t", partition=0)
    pair.advance(500)
    submit(pair, b"b", topic="t", partition=0)
    pair.exchange()
    pair.cut()
    pair.advance(500)
    pair.connect()
    pair.verdict = lambda chunks: (
        ACCEPTED if chunks.partition == 1 else Failed("out of order", retryable=True)
    )
    pair.complete(Failed("out of order", retryable=True))
    waiting = submit(pair, b"c", topic="t", partition=0)[0]
    other = submit(pair, b"x", topic="t", partition=1)[0]
    pair.advance(100)
    assert other.ended
    assert not waiting.ended
    pair.verdict = lambda chunks: ACCEPTED
    pair.advance(400)  # b is over as well: nothing numbered is without an answer
    assert isinstance(pair.events[-1], Disconnect)
    pair.cut()
    pair.connect()
    assert waiting.ended
    assert waiting.error is None
    assert pair.hellos[-1] == (7, 1)


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    pair = Pair(producer_id=7, producer_epoch=2**15 - 1)
    started_lane(pair)
    pair.verdict = lambda chunks: PENDING
    submit(pair, b"a", b"b", topic="t", partition=0)
    pair.exchange()
    pair.complete(Failed("bad", retryable=False))
    pair.complete(Failed("out of order", retryable=True))
    pair.delivered.clear()
    pair.verdict = lambda chunks: ACCEPTED
    pair.cut()
    pair.connect()
    pair.advance(50)
    assert pair.hellos == [(7, 2**15 - 1), (-1, 0)]
    assert numbers(pair) == [0]


def test_frames_that_are_refused_one_by_one_need_no_new_epoch() -> None:
    pair = Pair()
    pair.verdict = lambda chunks: Failed("no such topic", retryable=False)
    pair.connect()
    refused = submit(pair, b"a", b"b", b"c", topic="t", partition=0)
    pair.exchange()
    assert all(isinstance(publication.error, FrameRefused) for publication in refused)
    assert numbers(pair) == [0, 0, 0]
    assert pair.delivery.epochs_raised == 0


# Without resend


def test_without_resend_everything_fails_fast() -> None:
    pair = Pair(resend=False)
    with pytest.raises(NotConnected):
        submit(pair, b"a")
    pair.connect()
    pair.verdict = lambda chunks: PENDING
    publication = submit(pair, b"a", topic="t", partition=0)[0]
    pair.exchange()
    assert numbers(pair) == [-1]  # what is not repeated needs no number
    pair.cut()
    assert isinstance(publication.error, LostOnDisconnect)
    assert pair.delivery.machine.state is ClientState.DISCONNECTED
    pair.connect()
    pair.verdict = busy
    failed = submit(pair, b"b")[0]
    pair.exchange()
    assert isinstance(failed.error, FrameFailed)
    assert failed.error.retry_after_ms == 100
    with pytest.raises(NoCredit, match="pause"):
        submit(pair, b"c")
    assert pair.delivery.outstanding == 0 == pair.delivery.buffered_bytes


def test_without_resend_the_publish_timeout_holds() -> None:
    pair = Pair(resend=False, terms=ClientTerms(publish_timeout_ms=300))
    pair.connect()
    pair.verdict = lambda chunks: PENDING
    publication = submit(pair, b"a")[0]
    pair.exchange()
    assert pair.delivery.next_wake_ms(pair.now_ms) == pair.now_ms + 300
    pair.advance(300)
    assert isinstance(publication.error, PublishTimedOut)
    assert pair.delivery.next_wake_ms(pair.now_ms) > pair.now_ms
    pair.complete()
    assert pair.delivery.machine.window.taken.slots == 0


def test_without_resend_credit_runs_out() -> None:
    pair = Pair(resend=False)
    pair.connect()
    pair.verdict = lambda chunks: PENDING
    submit(pair, *[b"x"] * 64)
    with pytest.raises(NoCredit, match="0 chunks"):
        submit(pair, b"y")


def test_every_chunk_of_a_topic_goes_to_the_sink_once() -> None:
    seen: list[Chunks] = []

    def keep(chunks: Chunks) -> Failed:
        seen.append(chunks)
        return Failed("corrupt", retryable=False)

    pair = Pair()
    pair.verdict = keep
    pair.connect()
    submit(pair, b"a", topic="t", partition=1)
    pair.exchange()
    assert [(c.topic, c.partition, c.producer_id, c.producer_epoch) for c in seen] == [
        ("t", 1, 7, 0)
    ]
