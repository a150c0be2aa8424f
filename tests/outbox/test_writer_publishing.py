"""Publishing by the writer: payloads in records or files, failures, timeouts, errors."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.base.crc import crc32c
from penstock.base.errors import (
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.outbox.errors import (
    OutboxBusy,
    OutboxClosed,
    PublishFailed,
    PublishRefused,
    PublishTimedOut,
)
from penstock.outbox.pointer import decode_pointer
from tests.outbox.writers import (
    AT_MS,
    CONTENT,
    GatedFiles,
    Topic,
    data_files,
    running,
    until,
)


async def test_small_payloads_travel_in_the_record(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    async with running(tmp_path, topic=topic, threshold_bytes=10) as writer:
        small = await writer.send(
            [b"01234", b"56789"], partition_id="p", batch_id="s", event_count=2, codec="raw",
            at_ms=AT_MS,
        )  # fmt: skip
        large = await writer.send(b"0123456789x", partition_id="p", batch_id="l", at_ms=AT_MS)
        assert topic.started
    assert topic.stopped
    assert (small.inline, large.inline) == (True, False)
    assert (small.pointer, small.crc32c) == (None, crc32c(b"0123456789"))
    assert small.identity.at_ms == AT_MS
    assert data_files(tmp_path) == [b"0123456789x"]
    first, second = topic.records
    assert (first.key, first.value) == (b"p", b"0123456789")
    assert dict(first.headers)["event-count"] == b"2"
    assert decode_pointer(second.value) == large.pointer
    counts = writer.counts.of("p")
    assert (counts.inline, counts.published, counts.succeeded) == (1, 2, 1)


async def test_without_a_threshold_all_goes_to_files(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    async with running(tmp_path, topic=topic, threshold_bytes=-1) as writer:
        assert not (await writer.send(b"", partition_id="p")).inline
    assert data_files(tmp_path) == [b""]


@pytest.mark.parametrize("inline", [True, False])
async def test_a_failed_publish_leaves_the_file_and_may_be_repeated(
    tmp_path: Path, inline: bool
) -> None:
    topic = Topic(tmp_path)
    topic.error = UnavailableError("no broker")
    async with running(tmp_path, topic=topic, threshold_bytes=1 << 20 if inline else 0) as writer:
        with pytest.raises(PublishFailed, match="its record was not published: no broker") as info:
            await writer.send(CONTENT, partition_id="p", at_ms=AT_MS)
        assert isinstance(info.value, RetriableError)
        identity = info.value.identity
        assert identity is not None
        assert data_files(tmp_path) == ([] if inline else [CONTENT])
        assert writer.counts.of("p").in_flight_operations == 0
        topic.error = None
        result = await writer.send(
            CONTENT, partition_id="p", batch_id=identity.batch_id, at_ms=identity.at_ms
        )
        assert result.idempotent_existing_write is not inline
        assert writer.counts.of("p").publish_failed == 1
    assert len(topic.records) == 1
    assert data_files(tmp_path) == ([] if inline else [CONTENT])


async def test_a_refused_publish_says_so(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.error = InvalidError("no such topic")
    async with running(tmp_path, topic=topic) as writer:
        with pytest.raises(PublishRefused, match="no such topic") as caught:
            await writer.send(b"x", partition_id="p")
    assert isinstance(caught.value, InvalidError)


@pytest.mark.parametrize("error", [OutboxBusy("full"), OutboxClosed("gone")])
async def test_what_the_publisher_says_of_itself_is_passed_on(
    tmp_path: Path, error: PenstockError
) -> None:
    topic = Topic(tmp_path)
    topic.error = error
    async with running(tmp_path, topic=topic) as writer:
        with pytest.raises(type(error)) as caught:
            await writer.send(b"x", partition_id="p", batch_id="b")
    assert caught.value is not error, "two callers must not share one error's identity"


async def test_a_publish_that_hangs_keeps_its_room(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    topic.gate.clear()
    async with running(
        tmp_path, topic=topic, publish_timeout_ms=30, in_flight_operations=1, threshold_bytes=0
    ) as writer:
        with pytest.raises(PublishTimedOut, match="30 ms") as caught:
            await writer.send(CONTENT, partition_id="p")
        assert caught.value.identity is not None
        counts = writer.counts.of("p")
        assert counts.in_flight_operations == 1
        waiting = asyncio.create_task(writer.write(b"next", partition_id="p"))
        await until(lambda: counts.pending)
        topic.gate.set()
        await waiting
    assert len(topic.records) == 1


async def test_a_cancelled_write_is_not_published(tmp_path: Path) -> None:
    files, topic = GatedFiles(), Topic(tmp_path)
    async with running(tmp_path, files, topic, threshold_bytes=0) as writer:
        call = asyncio.create_task(writer.send(CONTENT, partition_id="p"))
        await until(files.entered.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        files.gate.set()
        await until(lambda: not writer.counts.of("p").in_flight_operations)
    assert data_files(tmp_path) == [CONTENT]
    assert topic.records == []


async def test_sequential_sends_keep_their_order(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    async with running(tmp_path, topic=topic, threshold_bytes=3) as writer:
        for number in range(20):
            await writer.send(b"x" * (number % 7), partition_id="p", batch_id=str(number))
    ids = [dict(record.headers)["message-id"] for record in topic.records]
    assert ids == [b"outbox-%d" % number for number in range(20)]
