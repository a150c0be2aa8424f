"""Writer: admission, retries, timeouts that free nothing, stopping."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.base.crc import crc32c
from penstock.base.errors import (
    FencedError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.base.metrics import Registry, render
from penstock.outbox.errors import (
    AdmissionTimedOut,
    BatchConflict,
    BatchIdentity,
    InvalidBatchId,
    InvalidPartitionId,
    InvalidPath,
    InvalidPayload,
    OutboxBusy,
    OutboxClosed,
    ReadOnlyRoot,
    RootUnavailable,
    StorageFull,
    SyncFailed,
    WriteTimedOut,
)
from penstock.outbox.metrics import OTHER, PARTITION_LABELS_MAX
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.writer import OutboxWriter, WriteResult
from tests.faulty_files import FaultyFiles
from tests.outbox.writers import (
    AT_MS,
    CONTENT,
    WAIT_SECONDS,
    FailingFiles,
    GatedFiles,
    Topic,
    data_files,
    running,
    until,
)


async def test_a_write_and_its_retry(tmp_path: Path) -> None:
    async with running(tmp_path) as writer:
        first = await writer.write(
            [CONTENT[:100], CONTENT[100:]], partition_id="p", batch_id="b", event_count=7,
            codec="zstd", at_ms=AT_MS,
        )  # fmt: skip
        pointer = first.pointer
        assert pointer.file_path == "p/year=2026/month=05/day=24/hour=14/batch-b/data.bin"
        assert (pointer.size_bytes, pointer.crc32c) == (len(CONTENT), crc32c(CONTENT))
        assert (pointer.event_count, pointer.codec) == (7, "zstd")
        assert (first.idempotent_existing_write, first.attempts) == (False, 1)
        assert first.identity == BatchIdentity(partition_id="p", batch_id="b", at_ms=AT_MS)
        again = await writer.write(
            CONTENT, partition_id="p", batch_id="b", event_count=7, codec="zstd",
            at_ms=AT_MS + 60_000,
        )  # fmt: skip
        assert again.pointer == pointer
        assert again.idempotent_existing_write
        with pytest.raises(BatchConflict) as caught:
            await writer.write(bytes(len(CONTENT)), partition_id="p", batch_id="b", at_ms=AT_MS)
        assert caught.value.identity == first.identity
        counts = writer.counts.of("p")
        assert (counts.succeeded, counts.existing, counts.failed) == (2, 1, 1)
        assert counts.written_bytes == len(CONTENT)
        assert sum(counts.latency.counts) == 2
    assert data_files(tmp_path) == [CONTENT]


async def test_of_different_payloads_of_one_batch_one_wins(tmp_path: Path) -> None:
    """Gathered or whole, from two writers at once; the winner's retries succeed."""
    payloads = [bytes([number]) * 70_000 for number in range(8)]
    async with running(tmp_path) as one, running(tmp_path) as two:
        for batch in range(10):
            calls = [
                (one, two)[number % 2].write(
                    payload if number % 3 else [payload[:100], payload[100:]],
                    partition_id="p", batch_id=f"b{batch}", at_ms=AT_MS,
                )
                for number, payload in enumerate(payloads)
            ]  # fmt: skip
            results = await asyncio.gather(*calls, return_exceptions=True)
            won = [number for number, r in enumerate(results) if isinstance(r, WriteResult)]
            lost = [r for r in results if isinstance(r, BatchConflict)]
            assert (len(won), len(lost)) == (1, 7)
            (winner,) = won
            assert data_files(tmp_path)[batch] == payloads[winner]
            again = await two.write(
                payloads[winner], partition_id="p", batch_id=f"b{batch}", at_ms=AT_MS
            )
            assert again.idempotent_existing_write


async def test_ids_are_made_where_they_are_left_out(tmp_path: Path) -> None:
    async with running(tmp_path) as writer:
        results = [await writer.write(b"x", partition_id="p") for _ in range(2)]
    ids = {result.identity.batch_id for result in results}
    assert len(ids) == 2
    assert all(len(batch_id) == 32 for batch_id in ids)
    assert results[0].identity.at_ms > AT_MS


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("sync_file", errno.EIO),
        ("sync_directory", errno.EIO),
        ("create", errno.EMFILE),
        ("write", errno.ENOSPC),
        ("close", errno.EDQUOT),
        ("rename_new", errno.ESTALE),
        ("open_directory", errno.EIO),
    ],
)
async def test_what_may_pass_is_tried_again(tmp_path: Path, name: str, number: int) -> None:
    files = FailingFiles(name, number, 2)
    async with running(tmp_path, files, attempts_max=3) as writer:
        result = await writer.write(CONTENT, partition_id="p", batch_id="b")
        assert writer.counts.of("p").retries == result.attempts - 1 > 0
    assert len(files.created) == len(set(files.created)), "every attempt has a name of its own"
    assert data_files(tmp_path) == [CONTENT]


async def test_attempts_are_bounded_and_the_error_names_the_batch(tmp_path: Path) -> None:
    files = FailingFiles("sync_file", errno.EIO, 99)
    async with running(tmp_path, files, attempts_max=4) as writer:
        with pytest.raises(SyncFailed, match=r"sync p/year=.*EIO") as caught:
            await writer.write(CONTENT, partition_id="p", at_ms=AT_MS)
        assert isinstance(caught.value, RetriableError)
        assert len(files.created) == 4
        identity = caught.value.identity
        assert identity is not None
        assert data_files(tmp_path) == []
        files.left = 0
        result = await writer.write(
            CONTENT, partition_id="p", batch_id=identity.batch_id, at_ms=identity.at_ms
        )
        assert result.identity == identity
        counts = writer.counts.of("p")
        assert (counts.failed, counts.succeeded, counts.retries) == (1, 1, 3)


async def test_what_does_not_pass_is_not_tried_again(tmp_path: Path) -> None:
    files = FailingFiles("make_directory", errno.EROFS, 1)
    async with running(tmp_path, files) as writer:
        with pytest.raises(ReadOnlyRoot) as caught:
            await writer.write(CONTENT, partition_id="p")
        assert isinstance(caught.value, UnavailableError)
        assert files.left == 0
        assert writer.counts.of("p").retries == 0


async def test_pauses_take_no_thread(tmp_path: Path) -> None:
    """The writer has one thread, and another write pauses long between its attempts."""
    files = FailingFiles("sync_file", errno.EIO, 1)
    pausing: dict[str, Any] = {"backoff_first_ms": 60_000, "backoff_max_ms": 60_000}
    async with running(tmp_path, files, io_threads=1, **pausing) as writer:
        slow = asyncio.create_task(writer.write(CONTENT, partition_id="p", batch_id="slow"))
        await until(lambda: writer.counts.of("p").retries)
        for number in range(5):
            await writer.write(b"fast", partition_id="p", batch_id=str(number))
        assert not slow.done()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
    assert data_files(tmp_path) == [b"fast"] * 5, "a caller that has gone is not retried for"


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_a_timeout_frees_nothing(tmp_path: Path, how: str) -> None:
    files = GatedFiles()
    released: list[str] = []
    timeout_ms = 300 if how == "timeout" else 60_000
    async with running(
        tmp_path, files, in_flight_operations=1, write_timeout_ms=timeout_ms
    ) as writer:
        payload = bytearray(CONTENT)
        call = asyncio.create_task(
            writer.write(
                payload, partition_id="p", batch_id="b", at_ms=AT_MS,
                released=lambda: released.append("b"),
            )
        )  # fmt: skip
        for _ in range(20):
            await asyncio.sleep(0)
        assert files.entered.wait(WAIT_SECONDS)  # here, so that no time-out can end it before
        if how == "cancel":
            call.cancel()
        with pytest.raises(asyncio.CancelledError if how == "cancel" else WriteTimedOut) as caught:
            await call
        counts = writer.counts.of("p")
        assert (counts.in_flight_operations, counts.in_flight_bytes) == (1, len(CONTENT))
        assert released == []
        with pytest.raises(BufferError):
            payload.clear()  # a file call still reads it
        if how == "timeout":
            error = caught.value
            assert isinstance(error, RetriableError)
            assert "300 ms (outbox.write.timeout.ms)" in str(error)
            assert error.identity == BatchIdentity(partition_id="p", batch_id="b", at_ms=AT_MS)  # type: ignore[attr-defined]
            assert counts.timed_out == 1
        waiting = asyncio.create_task(writer.write(b"next", partition_id="p", batch_id="n"))
        await until(lambda: counts.pending)
        files.gate.set()
        await until(lambda: released)
        if how == "cancel":
            await waiting
            again = await writer.write(CONTENT, partition_id="p", batch_id="b", at_ms=AT_MS)
            assert again.idempotent_existing_write
        else:
            await asyncio.gather(waiting, return_exceptions=True)
        payload.clear()
        assert released == ["b"], "once"
    assert CONTENT in data_files(tmp_path), "the write went on to its end"


async def test_waiting_for_room_ends(tmp_path: Path) -> None:
    files = GatedFiles()
    released: list[int] = []
    async with running(
        tmp_path, files, in_flight_bytes=100, acquire_timeout_ms=300, pending_max=1
    ) as writer:
        first = asyncio.create_task(writer.write(b"x" * 60, partition_id="p"))
        await until(files.entered.is_set)
        second = asyncio.create_task(
            writer.write(b"x" * 60, partition_id="p", released=lambda: released.append(2))
        )
        while not writer.counts.of("p").pending:
            await asyncio.sleep(0)  # `until` would give the time-out time
        with pytest.raises(OutboxBusy, match="1 writes wait for admission; the limit is 1") as busy:
            await writer.write(b"x", partition_id="p", released=lambda: released.append(3))
        assert busy.value.identity is not None
        with pytest.raises(
            AdmissionTimedOut, match=r"60 bytes were not admitted within 300 ms .*: 60 of 100 bytes"
        ):
            await second
        assert sorted(released) == [2, 3]
        assert writer.counts.of("p").pending == 0
        files.gate.set()
        await first
    assert len(data_files(tmp_path)) == 1


async def test_an_oversized_payload_runs_alone(tmp_path: Path) -> None:
    files = GatedFiles()
    async with running(tmp_path, files, in_flight_bytes=100) as writer:
        calls = [
            asyncio.create_task(writer.write(b"x" * size, partition_id="p", batch_id=str(size)))
            for size in (10, 1000, 20)
        ]
        await until(lambda: writer.counts.of("p").pending == 2)
        await until(lambda: files.holding == 1)
        files.gate.set()
        await asyncio.gather(*calls)
    assert len(data_files(tmp_path)) == 3


async def test_a_cancelled_waiter_begins_nothing(tmp_path: Path) -> None:
    files = GatedFiles()
    released: list[int] = []
    async with running(tmp_path, files, in_flight_operations=1) as writer:
        first = asyncio.create_task(writer.write(b"first", partition_id="p"))
        await until(files.entered.is_set)
        second = asyncio.create_task(
            writer.write(b"second", partition_id="p", released=lambda: released.append(2))
        )
        third = asyncio.create_task(writer.write(b"third", partition_id="p"))
        await until(lambda: writer.counts.of("p").pending == 2)
        second.cancel()
        await until(lambda: released)
        assert writer.counts.of("p").pending == 1
        files.gate.set()
        await asyncio.gather(first, third)
    assert sorted(data_files(tmp_path)) == [b"first", b"third"]


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_leaks_whatever_happens(tmp_path: Path, seed: int) -> None:
    """Calls are cancelled and time out at any moment; files and publishes fail."""
    dice = random.Random(seed)
    topic = Topic(tmp_path)
    released = [0] * 150

    def fail(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if name in {"create", "write", "sync_file", "sync_directory"} and dice.random() < 0.03:
            raise OSError(dice.choice([errno.EIO, errno.ENOSPC, errno.EROFS]), "")

    async def one(number: int) -> None:
        released_it: Callable[[], None] = lambda: released.__setitem__(  # noqa: E731
            number, released[number] + 1
        )
        topic.error = dice.choice([None, None, RetriableError("later")])
        await writer.send(
            b"x" * dice.randint(0, 3000), partition_id="p", batch_id=str(number), at_ms=AT_MS,
            released=released_it,
        )  # fmt: skip

    async with running(
        tmp_path, FaultyFiles(fail), topic, in_flight_bytes=5000, in_flight_operations=3,
        threshold_bytes=100, attempts_max=2, write_timeout_ms=40, pending_max=60,
    ) as writer:  # fmt: skip
        calls = []
        for number in range(len(released)):
            calls.append(asyncio.create_task(one(number)))
            for _ in range(dice.randint(0, 6)):
                await asyncio.sleep(0)
            if dice.random() < 0.5:
                dice.choice(calls).cancel()
            if dice.random() < 0.1:
                await asyncio.sleep(dice.uniform(0, 0.01))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(
        isinstance(item, (PenstockError, asyncio.CancelledError, type(None))) for item in results
    )
    begun = [number for number, call in enumerate(results) if released[number]]
    assert all(released[number] == 1 for number in begun)
    never_begun = [results[number] for number in range(len(released)) if not released[number]]
    assert all(isinstance(result, asyncio.CancelledError) for result in never_begun)
    for path in tmp_path.rglob("data.bin.tmp*"):
        raise AssertionError(f"{path} was left")


async def test_stop_finishes_what_is_under_way(tmp_path: Path) -> None:
    files, topic = GatedFiles(), Topic(tmp_path)
    writer = OutboxWriter(
        OutboxSettings(root=str(tmp_path), threshold_bytes=0, in_flight_operations=2),
        publisher=topic,
        files=files,
    )
    await writer.start()
    calls = [
        asyncio.create_task(writer.send(CONTENT, partition_id="p", batch_id=str(number)))
        for number in range(4)
    ]
    await until(files.entered.is_set)
    stopping = asyncio.create_task(writer.stop())
    await asyncio.sleep(0)
    with pytest.raises(OutboxClosed) as caught:
        await writer.send(b"x", partition_id="p")
    assert isinstance(caught.value, FencedError)
    files.gate.set()
    await stopping
    await asyncio.gather(*calls)
    assert len(topic.records) == 4
    assert data_files(tmp_path) == [CONTENT] * 4


async def test_stop_with_a_deadline_cancels_unstarted_writes(tmp_path: Path) -> None:
    files = GatedFiles()
    writer = OutboxWriter(OutboxSettings(root=str(tmp_path), in_flight_operations=1), files=files)
    await writer.start()
    calls = [asyncio.create_task(writer.write(CONTENT, partition_id="p")) for _ in range(3)]
    await until(files.entered.is_set)
    stopping = asyncio.create_task(writer.stop(0.01))
    results = await asyncio.gather(*calls[1:], return_exceptions=True)
    assert [type(result) for result in results] == [OutboxClosed] * 2
    assert not stopping.done(), "a file call that is under way cannot be taken back"
    files.gate.set()
    await stopping
    await calls[0]
    assert data_files(tmp_path) == [CONTENT]


async def test_a_writer_starts_again_after_it_was_stopped(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    writer = OutboxWriter(OutboxSettings(root=str(tmp_path)), publisher=topic)
    for number in range(2):
        async with writer:
            await writer.send(b"x", partition_id="p", batch_id=str(number))
    assert len(topic.records) == 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition_id": "../etc"}, InvalidPartitionId),
        ({"partition_id": ""}, InvalidPartitionId),
        ({"batch_id": "a/b"}, InvalidBatchId),
        ({"batch_id": "x" * 65}, InvalidBatchId),
        ({"at_ms": -1}, InvalidPath),
        ({"codec": "a b"}, InvalidPayload),
        ({"event_count": -1}, InvalidPayload),
        ({"payload": "text"}, InvalidPayload),
        ({"payload": b"x" * 101}, InvalidPayload),
    ],
)
async def test_calls_that_can_never_work(
    tmp_path: Path, options: dict[str, Any], error: type[PenstockError]
) -> None:
    released: list[int] = []
    arguments = {"payload": b"x", "partition_id": "p", "released": lambda: released.append(1)}
    async with running(tmp_path, topic=Topic(tmp_path), payload_bytes_max=100) as writer:
        for call in (writer.write, writer.send):
            with pytest.raises(error):
                await call(**{**arguments, **options})
    assert released == [1, 1]
    assert list(tmp_path.iterdir()) == []


async def test_a_root_that_is_not_there(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    writer = OutboxWriter(OutboxSettings(root=str(tmp_path / "no")), publisher=topic)
    with pytest.raises(RootUnavailable, match="ENOENT"):
        await writer.start()
    assert not topic.started
    with pytest.raises(OutboxClosed):
        await writer.write(b"x", partition_id="p")
    await writer.stop()


async def test_a_writer_without_a_publisher_does_not_send(tmp_path: Path) -> None:
    async with running(tmp_path) as writer:
        with pytest.raises(InvalidPayload, match="requires a publisher"):
            await writer.send(b"x", partition_id="p")


async def test_series_are_bounded(tmp_path: Path) -> None:
    topic = Topic(tmp_path)
    many = PARTITION_LABELS_MAX + 50
    async with running(tmp_path, topic=topic) as writer:
        await asyncio.gather(
            *[writer.send(b"x", partition_id=f"p{number}") for number in range(many)]
        )
        samples = list(writer.samples())
        labels = {sample.labels[0] for sample in samples if sample.labels}
        assert len(labels) == PARTITION_LABELS_MAX + 1
        assert writer.counts.of("p1").published == 1
        assert writer.counts.of("anything else").published == 50
        registry = Registry()
        registry.add(writer.samples)
        text = render(registry.collect()).decode()
    assert f'penstock_outbox_published_records_total{{partition_id="{OTHER}"}} 50.0' in text
    assert 'penstock_outbox_write_latency_seconds_count{partition_id="p1"} 0' in text


async def test_the_kinds_of_a_full_disk(tmp_path: Path) -> None:
    files = FailingFiles("write", errno.ENOSPC, 99)
    async with running(tmp_path, files, attempts_max=2) as writer:
        with pytest.raises(StorageFull, match=r"write p/.*ENOSPC"):
            await writer.write(CONTENT, partition_id="p")
        assert data_files(tmp_path) == []
