"""Contract of every sink."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.base.buffers import ReceivePool
from penstock.host.port import ACCEPTED, ChunkFormat, ChunkSink
from penstock.host.sinks.counting import Counts
from penstock.host.sinks.memory import MemorySink, NullSink
from penstock.host.sinks.outbox import OutboxSink
from penstock.testing import Broker
from tests.host.sinks.conftest import Sender, log_sink
from tests.host.sinks.frames import Fate, batch, batches, fates, frame, leased

ROOM = 1 << 20


@dataclass
class Subject:
    """A running sink, and the topic that it takes frames for."""

    sink: Any
    topic: str

    @property
    def counts(self) -> Counts:
        counts: Counts = self.sink.counts
        return counts


Build = Callable[[], AbstractAsyncContextManager[Subject]]


@pytest.fixture(params=["null", "memory", "outbox", "log"])
def build(request: pytest.FixtureRequest) -> Build:
    """Makes a running sink of each kind, in the test's own loop."""
    kind = request.param
    name = request.getfixturevalue("topic")() if kind == "log" else "orders"
    broker: Broker | None = request.getfixturevalue("log_broker") if kind == "log" else None

    @asynccontextmanager
    async def make() -> AsyncIterator[Subject]:
        if broker is not None:
            async with log_sink(broker.bootstrap, retained_bytes_max=2 * ROOM) as sink:
                yield Subject(sink, name)
            return
        makers: dict[str, Callable[[], ChunkSink]] = {
            "null": NullSink,
            "memory": lambda: MemorySink(bytes_max=2 * ROOM),
            "outbox": lambda: OutboxSink(Sender(), retained_bytes_max=2 * ROOM),
        }
        made = makers[kind]()
        await made.start()
        yield Subject(made, name)
        await made.stop(5)

    return make


async def test_names_itself_and_the_largest_frame(build: Build) -> None:
    async with build() as subject:
        assert subject.sink.name in {"null", "memory", "outbox", "log"}
        assert subject.sink.frame_bytes_max > 900_000
        assert subject.sink.retained_bytes == 0


async def test_new_producers_get_new_ids_and_known_producers_keep_theirs(
    build: Build,
) -> None:
    async with build() as subject:
        given = [(await subject.sink.introduce(-1, [])).producer_id for _ in range(3)]
        assert len(set(given)) == 3
        assert min(given) >= 0
        assert max(given) < 2**63
        assert (await subject.sink.introduce(41, [subject.topic])).producer_id == 41


async def test_accepts_frames_and_counts_them(build: Build) -> None:
    async with build() as subject:
        frames = [
            frame([b"one", b"two"], topic=subject.topic, log_sequence=0, event_count=2),
            frame([b"", b"x" * 9], topic=subject.topic, log_sequence=2, first_sequence=2),
            batches([[b"a"], [b"b", b"c"]], topic=subject.topic, log_sequence=4, first_sequence=4),
        ]
        size = sum(len(chunks.payload) for chunks in frames)
        assert await fates(subject.sink, frames) == [ACCEPTED] * 3
        counts = subject.counts
        assert (counts.accepted_frames, counts.accepted_chunks) == (3, 6)
        assert (counts.accepted_events, counts.accepted_bytes) == (7, size)
        assert (counts.failed_frames, counts.refused_frames) == (0, 0)
        assert subject.sink.retained_bytes == 0
        await subject.sink.check()  # and says that it would take more


async def test_the_same_frame_may_come_again(build: Build) -> None:
    async with build() as subject:
        for _ in range(2):
            again = [frame([b"one"], topic=subject.topic, log_sequence=0)]
            assert await fates(subject.sink, again * 2) == [ACCEPTED] * 2


async def test_gives_every_lease_back(build: Build) -> None:
    async with build() as subject:
        pool = ReceivePool(8 << 20)
        made = [
            leased(pool, [b"x" * 1000] * 3, topic=subject.topic, first_sequence=0),
            leased(
                pool,
                [batch([b"y" * 500])],
                topic=subject.topic,
                first_sequence=3,
                event_count=1,
                format=ChunkFormat.RECORD_BATCH,
            ),
        ]
        handed = [Fate(subject.sink, chunks) for chunks in made]
        for chunks in made:
            assert chunks.lease is not None
            chunks.lease.release()  # the connection lets go after `accept`
        assert [await fate.of() for fate in handed] == [ACCEPTED] * 2
        assert pool.received_bytes == 0


async def test_takes_the_largest_frame_that_it_names_in_many_chunks(build: Build) -> None:
    async with build() as subject:
        most = subject.sink.frame_bytes_max
        sizes = [most // 4096] * 4095
        sizes.append(most - sum(sizes))
        content = bytes(most)
        view = memoryview(content)
        chunks = frame([view[:size] for size in sizes], payload=view, topic=subject.topic)
        assert await fates(subject.sink, [chunks]) == [ACCEPTED]


async def test_stopping_twice_is_harmless(build: Build) -> None:
    async with build() as subject:
        taken = Fate(subject.sink, frame([b"x"], topic=subject.topic))
        await subject.sink.stop(5)
        await subject.sink.stop(5)
        assert await taken.of() == ACCEPTED
        assert subject.sink.retained_bytes == 0
