"""The memory sink: copies, bounds, draining."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.host.errors import SinkUnavailable
from penstock.host.port import ACCEPTED, ChunkFormat, Failed
from penstock.host.sinks.memory import MemorySink
from tests.host.sinks.frames import fates, frame


async def test_holds_copies_of_chunks_and_what_they_came_with() -> None:
    sink = MemorySink()
    content = bytearray(b"onetwo")
    view = memoryview(content)
    chunks = frame(
        [view[:3], view[3:]], payload=view, producer_id=5, producer_epoch=2, first_sequence=9,
        event_count=4, topic="orders", partition=3, log_sequence=7,
        format=ChunkFormat.RECORD_BATCH,
    )  # fmt: skip
    assert await fates(sink, [chunks, frame([b"a", b"bc"], gap=b"--")]) == [ACCEPTED] * 2
    content[:] = bytes(6)
    first, second = sink.drain()
    assert first.chunks == (b"one", b"two")
    assert second.chunks == (b"a", b"bc")
    assert (first.producer_id, first.producer_epoch, first.first_sequence) == (5, 2, 9)
    assert (first.topic, first.partition, first.log_sequence) == ("orders", 3, 7)
    assert (first.event_count, first.format) == (4, ChunkFormat.RECORD_BATCH)


@pytest.mark.parametrize("limits", [{"bytes_max": 25}, {"frames_max": 2}], ids=["bytes", "frames"])
async def test_sends_frames_back_while_it_is_full(limits: dict[str, Any]) -> None:
    sink = MemorySink(retry_after_ms=20, **limits)
    frames = [frame([bytes(10)], first_sequence=at) for at in range(3)]
    one, two, three = await fates(sink, frames)
    assert (one, two) == (ACCEPTED, ACCEPTED)
    assert isinstance(three, Failed)
    assert (three.retryable, three.retry_after_ms) == (True, 20)
    assert sink.counts.failed_frames == 1
    assert sink.held_bytes == 20
    with pytest.raises(SinkUnavailable, match="the memory sink is full: it holds 2 frames of 20"):
        await sink.check()
    assert [held.first_sequence for held in sink.drain(1)] == [0]
    await sink.check()
    assert await fates(sink, frames[2:]) == [ACCEPTED]
    assert [held.first_sequence for held in sink.drain()] == [1, 2]
    assert sink.held_bytes == 0
    assert sink.drain() == []


async def test_without_a_drain_a_frame_without_room_is_refused_permanently() -> None:
    sink = MemorySink(bytes_max=25, drained=False)
    *_, last = await fates(sink, [frame([bytes(10)], first_sequence=at) for at in range(3)])
    assert isinstance(last, Failed)
    assert not last.retryable
    assert "host.memory.bytes" in last.reason
    assert sink.counts.refused_frames == 1
