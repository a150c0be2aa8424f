"""A local topic of several leaders becomes diskless, and a broker dies or pauses at a step.

The brokers are separate processes over one database and one directory of objects. An idempotent
producer runs throughout: in the end each of its records is there once and in order, in either state
of the topic.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio import to_thread
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from penstock.records import split_batches
from tests.broker.diskless.dying import ASKED_STEPS, JOINED_STEPS
from tests.broker.diskless.live import Consuming, Producing
from tests.broker.diskless.serving import SETTINGS, Serving, until
from tests.broker.diskless.test_configs import altered, configs_of
from tests.broker.wire_client import WireClient, batch, produce_request

LEADERS: Final = (1, 2, 1, 2)
PARTITIONS: Final = len(LEADERS)
RECOVER_SECONDS: Final = 40.0
"""Time until the partitions of remaining brokers accept records: a session of 4 s, its detection,
and a margin for a busy machine.
"""

FENCE_SECONDS: Final = 1.5
"""Maximum fence of producers while a broker pauses: less than its session."""

COMMITTED_STEPS: Final = ("told fenced", "over", "committed", "refreshed")
NOT_LEADER: Final = 6


class House:
    """Brokers 1 and 2, which lead the topic's partitions in turn; others lead none."""

    def __init__(self, directory: Path, url: str) -> None:
        self.brokers: dict[int, Serving] = {}
        self.session_ms = 4000
        self._directory = directory
        self._url = url

    async def start(self, count: int, armed: Mapping[int, str]) -> None:
        """Start brokers, of which the armed ones end at their steps, and create the topic."""
        self.brokers = {node: self._broker(node) for node in range(1, count + 1)}
        await asyncio.gather(
            *[broker.start(dies_at=armed.get(node, "")) for node, broker in self.brokers.items()]
        )
        await self._create()

    def _broker(self, node: int) -> Serving:
        directory = self._directory / str(node)
        directory.mkdir()
        settings = {
            **SETTINGS,
            "node.id": str(node),
            "control.url": self._url,
            "diskless.storage.url": (self._directory / "objects").as_uri(),
            "log.diskless.enable": "true",
            "broker.session.timeout.ms": str(self.session_ms),
            "broker.heartbeat.interval.ms": "200",
        }
        return Serving(directory, settings)

    async def _create(self) -> None:
        leaders = [
            {"partition_index": index, "broker_ids": [leader]}
            for index, leader in enumerate(LEADERS)
        ]
        topic = {
            "name": "t",
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": leaders,
            "configs": [{"name": "diskless.enable", "value": "false"}],
        }
        async with self.connected(1) as client:

            async def created() -> bool:
                answer = await client.call("CreateTopics", 7, {"topics": [topic], "timeout": 5000})
                return bool(answer.topics[0].error_code == 0)

            await eventually(created)  # once broker 1 has heard of broker 2

    @asynccontextmanager
    async def connected(self, node: int) -> AsyncIterator[WireClient]:
        client = await self.brokers[node].connect()
        try:
            yield client
        finally:
            await client.close()

    @property
    def bootstrap(self) -> str:
        return ",".join([broker.bootstrap for broker in self.brokers.values()])

    async def ask(self, node: int) -> int | None:
        """Request the switch at a broker; return the error code, None without a response."""
        try:
            async with self.connected(node) as client:
                answer = await altered(client, "t", diskless_enable="true")
        except (ConnectionError, EOFError):
            return None
        return int(answer.error_code)

    async def ask_until(self, node: int, ended: asyncio.Task[int]) -> int | None:
        """Request the switch until it succeeds or a broker has ended; return as `ask` does.

        A switch fails before that if the session of a broker expires, as on a busy machine.
        """
        while True:
            answer = await self.ask(node)
            if answer in (0, None) or ended.done():
                return answer

    async def kinds(self) -> set[str]:
        """Return the topic's `diskless.enable` at each broker."""
        found = set()
        for node in self.brokers:
            async with self.connected(node) as client:
                found.add((await configs_of(client, "t"))["diskless.enable"])
        return found

    async def fetched(self, sql: str, *arguments: Any) -> list[Any]:
        """Return rows of the database."""
        connection = await asyncpg.connect(self._url)
        try:
            return list(await connection.fetch(sql, *arguments))
        finally:
            await connection.close()

    async def counts_as_gone(self, node: int) -> bool:
        sql = "SELECT FROM brokers WHERE broker_id = $1 AND NOT registered"
        return bool(await self.fetched(sql, node))

    async def takes_records(self, producing: Producing, *, but: int) -> None:
        """Wait until the remaining brokers have accepted new records."""
        now = producing.count
        left = [index for index, leader in enumerate(LEADERS) if leader != but]

        def taken() -> bool:
            newest = [producing.delivered[index][-1:] for index in left]
            return all(records and records[-1].number >= now for records in newest)

        async with asyncio.timeout(RECOVER_SECONDS):
            await until(taken)

    async def switch_is_over(self) -> bool:
        """Whether the switch can no longer take effect."""
        return not await self.fetched("SELECT * FROM diskless_switches")

    async def settled(self, kind: str) -> None:
        """Wait until no trace of the switch is left, and all brokers agree on the topic."""

        async def over() -> bool:
            return await self.switch_is_over() and await self.kinds() == {kind}

        await eventually(over)

    async def served(self, node: int) -> list[bytes]:
        """Return all batches of the partitions, as a broker serves them from the store."""
        async with self.connected(node) as client:
            return [await _whole(client, index) for index in range(PARTITIONS)]

    async def ends_whole(self, producing: Producing, asked: int) -> None:
        """Wait until the topic is diskless, and all brokers serve all produced records."""
        assert await self.ask(asked) == 0
        await self.settled("true")
        await to_thread(producing.wait_for, 200)
        await to_thread(producing.finish)
        consuming = Consuming(self.bootstrap, partitions=PARTITIONS)
        consuming.start()
        await to_thread(consuming.finish, producing.count)
        assert consuming.seen == producing.written()
        first, *others = await asyncio.gather(*[self.served(node) for node in self.brokers])
        counts = [sum([header.record_count for header in split_batches(data)]) for data in first]
        assert counts == [len(part) for part in producing.written()]
        assert all([data == first for data in others])


async def _whole(client: WireClient, partition: int) -> bytes:
    data, offset = b"", 0
    async with asyncio.timeout(RECOVER_SECONDS):
        while True:
            answer = await client.fetch("t", offset, partition=partition, max_wait=100)
            assert answer.error_code == 0
            for header in split_batches(answer.records or b""):
                assert header.base_offset == offset
                offset = header.next_offset
            data += answer.records or b""
            if offset and offset >= answer.high_watermark:
                return data


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(RECOVER_SECONDS):
        while not await holds():
            await asyncio.sleep(0.02)


@pytest.fixture
async def house(tmp_path: Path, postgres_url: str) -> AsyncIterator[House]:
    house = House(tmp_path, postgres_url)
    yield house
    for broker in house.brokers.values():
        await broker.kill()


@pytest.fixture
def produce(house: House) -> Iterator[Callable[[], Producing]]:
    """Start a producer to all partitions, and stop it after the test."""
    made: list[Producing] = []

    def produce() -> Producing:
        made.append(
            Producing(
                house.bootstrap,
                partitions=PARTITIONS,
                burst=400,
                pause_seconds=0.005,
                settings={"socket.timeout.ms": 3000},
            )
        )
        made[0].start()
        return made[0]

    yield produce
    for producing in made:
        producing.end()


Produce = Callable[[], Producing]


DEATHS: Final = [
    # asked, dies, step
    *[(1, 2, step) for step in JOINED_STEPS],
    *[(1, 1, step) for step in ASKED_STEPS],
    # The third leads nothing.
    *[(3, 3, step) for step in ASKED_STEPS],
    *[(3, 2, step) for step in ("told ready", "fenced", "told fenced")],
]


@pytest.mark.long
@pytest.mark.parametrize(("asked", "dies", "step"), DEATHS)
async def test_killed_broker_takes_no_record_with_it(
    house: House, produce: Produce, asked: int, dies: int, step: str
) -> None:
    await house.start(max(2, asked), {dies: step})
    producing = produce()
    await to_thread(producing.wait_for, 400)
    ended = asyncio.create_task(house.brokers[dies].ended())
    asking = asyncio.create_task(house.ask_until(asked, ended))
    assert await ended == -signal.SIGKILL
    await house.takes_records(producing, but=dies)
    await house.brokers[dies].start()
    answer = await asking
    assert (answer is None) is (asked == dies)
    diskless = step in COMMITTED_STEPS if answer is None else answer == 0
    await house.settled("true" if diskless else "false")
    await house.ends_whole(producing, asked)


PAUSES: Final = [
    # asked, pauses, step, and the session of brokers
    (1, 1, "all fenced", 60_000),
    (1, 1, "all fenced", 2000),
    (1, 1, "committed", 2000),
    (1, 2, "tail copied", 60_000),
    (1, 2, "tail copied", 2000),
    (1, 2, "told fenced", 2000),
]


@pytest.mark.long
@pytest.mark.parametrize(("asked", "pauses", "step", "session_ms"), PAUSES)
async def test_paused_broker_takes_no_record_of_its_own(
    house: House, produce: Produce, asked: int, pauses: int, step: str, session_ms: int
) -> None:
    """It resumes after the others have ended the switch, with a record to append.

    By then its session has expired, or the time limit of the others has passed.
    """
    armed = dict.fromkeys((1, 2), f"never,SIGKILL,{FENCE_SECONDS}")
    house.session_ms = session_ms
    await house.start(2, {**armed, pauses: f"{step},SIGSTOP,{FENCE_SECONDS}"})
    producing = produce()
    await to_thread(producing.wait_for, 400)
    async with house.connected(pauses) as client:
        paused = house.brokers[pauses].pid
        asking = asyncio.create_task(house.ask(asked))
        await until(lambda: _state(paused) == "T")
        await eventually(house.switch_is_over)  # where the other has fenced after the paused one
        await house.takes_records(producing, but=pauses)
        if session_ms / 1000 < RECOVER_SECONDS:
            await eventually(partial(house.counts_as_gone, pauses))
        request = produce_request("t", batch(b"late"), partition=LEADERS.index(pauses))
        client.writer.write(client.frame("Produce", 9, request))
        await client.writer.drain()
        os.kill(paused, signal.SIGCONT)
        late = await client.response("Produce", 9)
    assert late.responses[0].partition_responses[0].error_code == NOT_LEADER
    diskless = step in COMMITTED_STEPS
    assert (await asking == 0) is diskless
    await house.settled("true" if diskless else "false")
    await house.ends_whole(producing, asked)


def _state(pid: int) -> str:
    """Return a process's state as the kernel names it: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
