"""The outbox sink over a sender in memory: identity, bounds, failures, the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.base.errors import InvalidError, RetriableError, UnavailableError
from penstock.host.port import ACCEPTED, Failed
from penstock.host.sinks import outbox
from penstock.host.sinks.outbox import OutboxSink, batch_id_of
from tests.host.sinks.conftest import Sender
from tests.host.sinks.frames import Fate, fates, frame


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_123

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return 0.0


async def test_a_frame_becomes_one_payload_named_by_its_identity() -> None:
    sender = Sender()
    sink = OutboxSink(sender, clock=FakeClock())
    chunks = frame(
        [b"one", b"two"], producer_id=0xBEEF, producer_epoch=3, first_sequence=40, event_count=9
    )
    assert await fates(sink, [chunks]) == [ACCEPTED]
    assert sender.payloads == {("orders", "beef-3-40"): b"onetwo"}
    (call,) = sender.calls
    assert call["event_count"] == 9
    assert call["at_ms"] == 1_700_000_000_123


async def test_gaps_between_chunks_are_left_out() -> None:
    sender = Sender()
    chunks = frame([b"one", b"", b"two"], gap=b"...")
    assert await fates(OutboxSink(sender), [chunks]) == [ACCEPTED]
    assert list(sender.payloads.values()) == [b"onetwo"]


async def test_a_partition_id_of_the_sinks_own_takes_all_topics() -> None:
    sender = Sender()
    sink = OutboxSink(sender, partition_id="site-1")
    frames = [frame([b"x"], topic=name, first_sequence=at) for at, name in enumerate(["a", ""])]
    assert await fates(sink, frames) == [ACCEPTED, ACCEPTED]
    assert {partition for partition, _ in sender.payloads} == {"site-1"}


async def test_a_frame_without_a_topic_is_refused_permanently() -> None:
    sink = OutboxSink(Sender())
    (verdict,) = await fates(sink, [frame([b"x"], topic="")])
    assert isinstance(verdict, Failed)
    assert not verdict.retryable
    assert "names no topic" in verdict.reason
    assert sink.counts.refused_frames == 1


def test_batch_ids_fit_the_outbox() -> None:
    widest = frame([b""], producer_id=2**63 - 1, producer_epoch=2**15 - 1, first_sequence=2**64 - 1)
    assert len(batch_id_of(widest)) <= 64
    assert batch_id_of(frame([b""], producer_id=-1)) == "ffffffffffffffff-0-0"


async def test_the_same_frame_waits_with_the_one_under_way() -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender)
    first = Fate(sink, frame([b"x"]))
    again = Fate(sink, frame([b"x"]))
    assert (first.pending, again.pending) == (True, True)
    assert sink.retained_bytes == 1
    for content in ([b"different"], [b"y"]):
        (other,) = await fates(sink, [frame(content)])
        assert isinstance(other, Failed)
        assert not other.retryable
        reason = other.reason
    assert f"CRC32C {crc32c(b'x'):08x}, but was sent again" in reason
    assert f"CRC32C {crc32c(b'y'):08x}" in reason
    sender.gate.set()
    assert [await first.of(), await again.of()] == [ACCEPTED, ACCEPTED]
    assert len(sender.calls) == 1


async def test_the_same_frame_does_not_wait_without_bound() -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender)
    handed = [Fate(sink, frame([b"x"])) for _ in range(12)]
    assert 0 < sum(fate.pending for fate in handed) < 12
    sender.gate.set()
    for fate in handed:
        verdict = await fate.of()
        assert verdict == ACCEPTED or (isinstance(verdict, Failed) and verdict.retryable)


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (RetriableError("later"), True),
        (UnavailableError("the disk is away"), True),
        (InvalidError("another size"), False),
        (OSError("unforeseen"), True),
    ],
)
async def test_a_failed_write_fails_its_frame(error: Exception, retryable: bool) -> None:
    sender = Sender()
    sender.error = error
    sink = OutboxSink(sender)
    (verdict,) = await fates(sink, [frame([b"x"])])
    assert isinstance(verdict, Failed)
    assert verdict.retryable is retryable
    assert str(error) in verdict.reason
    assert (sink.retained_bytes, sink.retained_frames) == (0, 0)
    sender.error = None
    assert await fates(sink, [frame([b"x"])]) == [ACCEPTED]


async def test_a_frame_that_was_sent_back_keeps_the_time_of_its_first_attempt() -> None:
    sender, clock = Sender(), FakeClock()
    sink = OutboxSink(sender, clock=clock)
    sender.error = RetriableError("later")
    await fates(sink, [frame([b"x"])])
    clock.ms += 3_600_000
    await fates(sink, [frame([b"x"])])
    sender.error = None
    assert await fates(sink, [frame([b"x"]), frame([b"y"], first_sequence=1)]) == [ACCEPTED] * 2
    first, second, third, other = [call["at_ms"] for call in sender.calls]
    assert first == second == third == 1_700_000_000_123
    assert other == clock.ms


async def test_the_times_of_frames_that_never_come_back_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "SENT_BACK_MAX", 2)
    sender, clock = Sender(), FakeClock()
    sink = OutboxSink(sender, clock=clock)
    sender.error = RetriableError("later")
    await fates(sink, [frame([b"x"], first_sequence=at) for at in range(3)])
    clock.ms += 1
    sender.calls.clear()
    await fates(sink, [frame([b"x"], first_sequence=at) for at in (2, 0)])
    assert [call["at_ms"] for call in sender.calls] == [clock.ms - 1, clock.ms]


@pytest.mark.parametrize(
    "bounds", [{"retained_bytes_max": 25}, {"retained_frames_max": 2}], ids=["bytes", "frames"]
)
async def test_what_is_under_way_is_bounded(bounds: dict[str, Any]) -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender, retry_after_ms=30, **bounds)
    handed = [Fate(sink, frame([bytes(10)], first_sequence=at)) for at in range(3)]
    assert [fate.pending for fate in handed] == [True, True, False]
    full = await handed[2].of()
    assert isinstance(full, Failed)
    assert (full.retryable, full.retry_after_ms) == (True, 30)
    sender.gate.set()
    assert [await fate.of() for fate in handed[:2]] == [ACCEPTED, ACCEPTED]
    assert await fates(sink, [frame([bytes(10)], first_sequence=2)]) == [ACCEPTED]


async def test_the_payload_may_change_once_the_frame_was_taken() -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender)
    content = bytearray(b"before")
    fate = Fate(sink, frame([memoryview(content)], payload=memoryview(content)))
    content[:] = b"after!"
    sender.gate.set()
    assert await fate.of() == ACCEPTED
    assert list(sender.payloads.values()) == [b"before"]


async def test_stopping_waits_for_writes() -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender)
    fate = Fate(sink, frame([b"x"]))
    stopping = asyncio.ensure_future(sink.stop(30))
    while not sender.calls:
        await asyncio.wait([stopping], timeout=0.001)
    late = await Fate(sink, frame([b"y"], first_sequence=9)).of()
    assert isinstance(late, Failed)
    sender.gate.set()
    await stopping
    assert await fate.of() == ACCEPTED


@pytest.mark.parametrize("seconds", [0.0, 0.05])
async def test_stopping_sends_back_what_does_not_end_in_time(seconds: float) -> None:
    sender = Sender()
    sender.gate.clear()
    sink = OutboxSink(sender)
    handed = [Fate(sink, frame([b"x"], first_sequence=at)) for at in range(3)]
    await sink.stop(seconds)
    for fate in handed:
        verdict = await fate.of()
        assert isinstance(verdict, Failed)
        assert verdict.retryable
    (late,) = await fates(sink, [frame([b"y"], first_sequence=9)])
    assert isinstance(late, Failed)
    assert late.retryable
    assert sink.retained_bytes == 0
