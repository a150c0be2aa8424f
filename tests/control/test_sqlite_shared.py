"""Processes that share a SQLite file: visibility of changes, notices, and write locks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest

from penstock.control import CommittedOffset, DatabaseLocked, StaleBroker
from penstock.control.drivers import sqlite_writer
from penstock.control.drivers.notices import UNKNOWN_SIZE, Inbox, SocketNotices, new_inbox
from penstock.control.sqlite import SharedSqliteControlPlane, prepare
from penstock.control.values.diskless import Watermarks
from tests.control.conftest import ManualClock

A, B = UUID(int=1), UUID(int=2)
WITHIN_SECONDS = 20


class Received:
    """Arguments of a control plane's callbacks."""

    def __init__(self) -> None:
        self.image = asyncio.Event()
        self.marks: asyncio.Queue[object] = asyncio.Queue()


@asynccontextmanager
async def shared(
    path: Path, clock: ManualClock
) -> AsyncIterator[list[tuple[SharedSqliteControlPlane, Received, Inbox]]]:
    """Two planes over a file that is made."""
    await prepare(path)
    inboxes = [new_inbox(), new_inbox()]
    async with AsyncExitStack() as stack:
        opened = []
        for place, inbox in enumerate(inboxes):
            stack.callback(inbox.close)
            received = Received()
            plane = SharedSqliteControlPlane(
                path, notices=SocketNotices(inbox, [inboxes[1 - place]]), clock=clock
            )
            plane.watch(received.image.set, received.marks.put_nowait)
            await plane.start()
            stack.push_async_callback(plane.close)
            opened.append((plane, received, inbox))
        yield opened


async def register(plane: SharedSqliteControlPlane, broker_id: int, incarnation: UUID) -> None:
    await plane.register_broker(
        broker_id=broker_id, host="h", port=1, rack=None, incarnation=incarnation
    )


async def test_what_one_changes_the_other_sees_and_hears(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with shared(tmp_path / "control.sqlite", clock) as ((one, _, _), (other, received, _)):
        before = await other.image()
        await register(one, 1, A)
        await asyncio.wait_for(received.image.wait(), WITHIN_SECONDS)
        image = await other.image()
        assert [broker.broker_id for broker in image.brokers] == [1]
        assert image.version > before.version
        assert await other.image() is image, "nothing was read again"
        # Each change finds the newest image in memory of any process.
        await register(other, 2, B)
        topic = await one.create_topic(
            name="t", topic_id=A, partitions=[[1], [2]], configs={}, internal=False
        )
        assert (await other.image()).topics["t"] == topic
        assert (await other.allocate_producer_ids(10)).stop == (
            await one.allocate_producer_ids(1)
        ).start


async def test_registrations_are_renewed_for_all_and_expire_by_any(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with shared(tmp_path / "control.sqlite", clock) as ((one, _, _), (other, received, _)):
        await register(one, 1, A)
        await register(other, 2, B)
        clock.ms += 800
        await one.renew_broker(broker_id=1, incarnation=A)
        clock.ms += 800
        await one.renew_broker(broker_id=1, incarnation=A)
        await asyncio.wait_for(received.image.wait(), WITHIN_SECONDS)
        received.image.clear()
        assert await one.expire_brokers(1_000, by=1) == [2]
        await asyncio.wait_for(received.image.wait(), WITHIN_SECONDS)
        with pytest.raises(StaleBroker):
            await other.renew_broker(broker_id=2, incarnation=B)


async def test_a_restarted_process_finds_the_registered_brokers(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "control.sqlite"
    async with shared(path, clock) as ((one, _, _), (other, _, _)):
        await register(one, 1, A)
        await register(other, 2, B)
        await other.close()
        await other.start()
        assert [broker.broker_id for broker in (await other.image()).brokers] == [1, 2]
    assert (await prepare(path)).brokers == (), "all of them are gone"


async def test_watermarks_are_sent_and_a_full_inbox_causes_a_reload(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with shared(tmp_path / "control.sqlite", clock) as ((one, _, _), (_, received, inbox)):
        marks = Watermarks(log_start_offset=3, high_watermark=9, size_bytes=0)
        one._notify({(A, 0): marks})
        assert await asyncio.wait_for(received.marks.get(), WITHIN_SECONDS) == [
            (A, 0, marks._replace(size_bytes=UNKNOWN_SIZE))
        ]
        for _ in range(5_000):  # no task reads until this task waits
            one._notify({(A, 0): marks})
        assert inbox.bell.recv(1) == b"i"


WRITES = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from penstock.control import CommittedOffset
from penstock.control.drivers.notices import SocketNotices, new_inbox
from penstock.control.sqlite import SharedSqliteControlPlane

async def main(path, group):
    plane = SharedSqliteControlPlane(path, notices=SocketNotices(new_inbox(), []))
    await plane.start()
    offset = 0
    while True:
        offset += 1
        one = CommittedOffset(topic_id=UUID(int=1), topic="t", partition=0, offset=offset)
        await plane.commit_offsets(group_id=group, offsets=[one])
        print(offset, flush=True)

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


async def test_writers_take_turns_and_a_killed_one_blocks_no_other(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "control.sqlite"
    async with shared(path, clock) as ((one, _, _), _):
        await register(one, 1, A)
        await one.create_topic(name="t", topic_id=A, partitions=[[1]], configs={})
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITES, str(path), group], stdout=subprocess.PIPE, text=True
            )
            for group in ("a", "b")
        ]
        said = [0, 0]
        try:
            for _ in range(30):  # both commit without a pause, and each gets its turns
                for place, writer in enumerate(writers):
                    assert writer.stdout is not None
                    said[place] = int(await asyncio.to_thread(writer.stdout.readline))
            writers[0].kill()
            assert writers[1].stdout is not None
            for _ in range(30):
                said[1] = int(await asyncio.to_thread(writers[1].stdout.readline))
        finally:
            for writer in writers:
                writer.kill()
                rest, _ = writer.communicate()
                place = writers.index(writer)
                said[place] = max([said[place], *map(int, rest.split("\n")[:-1])])
        for group, offset in zip("ab", said, strict=True):
            [found] = await one.committed_offsets(group, None)
            assert found.offset in (offset, offset + 1), "what was answered, or was under way"


async def test_a_process_that_holds_on_to_its_turn_is_named(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "LOCK_TIMEOUT_SECONDS", 0.05)
    path = tmp_path / "control.sqlite"
    code = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+');"
        " fcntl.lockf(file, fcntl.LOCK_EX, 1, 1); print('held', flush=True); sys.stdin.read()"
    )
    async with shared(path, clock) as ((one, _, _), _):
        holder = subprocess.Popen(
            [sys.executable, "-c", code, f"{path}-turns"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert holder.stdout is not None
            assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
            with pytest.raises(DatabaseLocked, match=r"control\.sqlite.*for 0\.05 s"):
                await register(one, 1, A)
            assert (await one.image()).brokers == (), "readers never wait"
        finally:
            holder.kill()
            holder.communicate()
        await register(one, 1, A)
        one_offset = CommittedOffset(topic_id=A, topic="t", partition=0, offset=1)
        await one.commit_offsets(group_id="g", offsets=[one_offset])
