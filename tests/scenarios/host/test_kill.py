"""Real kills of agents and producers, before, within and after every frame of a conversation.

What has to hold after each: everything that a producer saw accepted is in the sink; every
publication of a producer that lives has ended exactly once, accepted; the survivor continues,
the agent with the next producer, the producer with the next agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path

import pytest

from tests.scenarios.host.kill_relay import (
    AFTER,
    AGENT,
    BEFORE,
    DOWN,
    MIDDLE,
    PRODUCER,
    UP,
    Plan,
    Relay,
)
from tests.scenarios.host.kill_zygote import LENGTH_BYTES

KILLS_MIN = 600
STEP_KILLS_MIN = 250
SAMPLE_STRIDE = 11
"""Distance between the kills of an ordinary run: a prime, so that all frames and victims occur."""
LANES = 4
PATIENCE_SECONDS = 40.0
SIGKILLED = -signal.SIGKILL


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A producer's script and the kill in it."""

    plan: Plan
    frames: int
    chunks: int
    size: int
    together: bool


KINDS = {"data": (1, 20), "batch": (3, 20), "large": (1, 300_000)}


def scenarios() -> Iterator[Scenario]:
    """Every frame, edge and victim of short conversations of every kind."""
    edges = (BEFORE, MIDDLE, AFTER)
    for (chunks, size), frames, together in product(KINDS.values(), (1, 2, 3), (False, True)):
        up = range(1 + frames)  # HELLO and the data
        # HELLO_ACK and the answers; of frames that were sent together one answer is certain.
        down = range(2 if together else 1 + frames)
        places = [(UP, index) for index in up] + [(DOWN, index) for index in down]
        for (direction, index), when, victim in product(places, edges, (AGENT, PRODUCER)):
            yield Scenario(
                plan=Plan(direction=direction, index=index, when=when, victim=victim),
                frames=frames,
                chunks=chunks,
                size=size,
                together=together,
            )
    # HELLO_ACK, ACCEPTED, and because the agent is stopped in between: DRAIN. The producer has
    # more to publish then, or it would leave first.
    for (chunks, size), frames, when, victim in product(
        KINDS.values(), (2, 3), edges, (AGENT, PRODUCER)
    ):
        plan = Plan(direction=DOWN, index=2, when=when, victim=victim, stop_at=1)
        yield Scenario(plan=plan, frames=frames, chunks=chunks, size=size, together=False)


class Zygote:
    """The process that forks; see `kill_zygote.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()
        self._pids: asyncio.Queue[int] = asyncio.Queue()
        self._exits: dict[int, asyncio.Future[int]] = {}
        self._reader = asyncio.create_task(self._read())
        self.statuses: Counter[int] = Counter()

    async def fork(self, role: str, **arguments: object) -> int:
        async with self._turn:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"role": role, **arguments}).encode() + b"\n")
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await self._pids.get()

    def _exit(self, pid: int) -> asyncio.Future[int]:
        future = self._exits.get(pid)
        if future is None:
            future = self._exits[pid] = asyncio.get_running_loop().create_future()
        return future

    async def gone(self, pid: int) -> int:
        """The status of a process, when it has ended."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await asyncio.shield(self._exit(pid))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if "pid" in said:
                self._pids.put_nowait(said["pid"])
            elif "exit" in said:
                self.statuses[said["status"]] += 1
                self._exit(said["exit"]).set_result(said["status"])

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


@asynccontextmanager
async def zygote() -> AsyncIterator[Zygote]:
    root = Path(__file__).resolve().parents[3]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.scenarios.host.kill_zygote",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
    )
    mother = Zygote(process)
    try:
        yield mother
    finally:
        await mother.close()


class Lane:
    """Path with successive agents and successive producers."""

    def __init__(self, mother: Zygote, directory: Path) -> None:
        self._mother = mother
        self._directory = directory
        self._target = str(directory / "a.sock")
        self._path = str(directory / "r.sock")
        self._relay = Relay(self._path, self._target, mother.gone)
        self._agent = 0
        self._numbers = count()
        self._accepted: set[bytes] = set()
        self.ran = 0

    async def begin(self, die_at: int = -1) -> None:
        file = str(self._directory / f"sink-{next(self._numbers)}")
        self._agent = await self._mother.fork("agent", path=self._target, file=file, die_at=die_at)

    async def run(self, scenario: Scenario) -> None:
        """Run one producer's life, with the kill in it."""
        number = next(self._numbers)
        log = self._directory / f"log-{number}"
        names = [
            [f"{number}/{frame}/{chunk}" for chunk in range(scenario.chunks)]
            for frame in range(scenario.frames)
        ]
        self._relay.begin(scenario.plan)
        producer = await self._mother.fork(
            "producer",
            path=self._path,
            log=str(log),
            payloads=names,
            size=scenario.size,
            together=scenario.together,
            linger=scenario.plan.victim == PRODUCER,
        )
        self._relay.introduce({AGENT: self._agent, PRODUCER: producer})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._relay.killed.wait()  # not reached: the conversation was another one
        plan = scenario.plan
        if plan.victim == AGENT:
            await self.begin()  # over the file that the dead one has left behind
        elif plan.stop_at >= 0:
            assert await self._mother.gone(self._agent) == 0, scenario
            await self.begin()
        status = await self._mother.gone(producer)
        assert status == (0 if plan.victim == AGENT else SIGKILLED), scenario
        fates = self._fates(log)
        assert all(fate == "accepted" for _, fate in fates), (scenario, fates)
        seen = [frame for frame, _ in fates]
        assert len(set(seen)) == len(seen), (scenario, fates)
        if plan.victim == AGENT:
            assert sorted(seen) == list(range(scenario.frames)), (scenario, fates)
        for frame in seen:
            self._accepted.update(name.encode().ljust(scenario.size, b".") for name in names[frame])
        self.ran += 1

    async def run_with_fuse(self, script: Scenario, die_at: int) -> bool:
        """A producer's life with an agent that dies at its `die_at`-th step; False if it did not
        come so far."""
        number = next(self._numbers)
        log = self._directory / f"log-{number}"
        names = [
            [f"{number}/{frame}/{chunk}" for chunk in range(script.chunks)]
            for frame in range(script.frames)
        ]
        await self.begin(die_at)
        producer = await self._mother.fork(
            "producer",
            path=self._target,
            log=str(log),
            payloads=names,
            size=script.size,
            together=script.together,
            linger=False,
        )
        ends = [asyncio.create_task(self._mother.gone(pid)) for pid in (self._agent, producer)]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        died = ends[0].done() and ends[0].result() == SIGKILLED
        if died:
            await self.begin()
        assert await ends[1] == 0, (script, die_at)
        if not ends[0].done():
            ends[0].cancel()
        # Callbacks of different futures may run in different threads, so in any order.
        assert sorted(self._fates(log)) == [(frame, "accepted") for frame in range(script.frames)]
        self._accepted.update(
            name.encode().ljust(script.size, b".") for chunks in names for name in chunks
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._agent, signal.SIGTERM)
        status = await self._mother.gone(self._agent)
        if died:
            assert status == 0
        return died or status == SIGKILLED  # some steps come when the producer has left

    def _fates(self, log: Path) -> list[tuple[int, str]]:
        """Return the outcomes of frames that the producer could report."""
        if not log.exists():
            return []
        lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
        return [(int(number), fate) for number, fate in lines]

    async def close(self) -> None:
        await self._relay.close()

    async def end(self) -> None:
        """A last producer is served; the agent ends well; nothing accepted is missing."""
        self._relay.begin(None)
        log = self._directory / "log-last"
        last = await self._mother.fork(
            "producer",
            path=self._path,
            log=str(log),
            payloads=[["last"]],
            size=10,
            together=False,
            linger=False,
        )
        assert await self._mother.gone(last) == 0
        assert self._fates(log) == [(0, "accepted")]
        self._accepted.add(b"last......")
        os.kill(self._agent, signal.SIGTERM)
        assert await self._mother.gone(self._agent) == 0
        self.check()

    def check(self) -> None:
        """Check that no event that a producer saw accepted is missing."""
        stored: set[bytes] = set()
        for file in self._directory.glob("sink-*"):
            stored.update(records(file.read_bytes()))
        assert self._accepted <= stored, sorted(self._accepted - stored)[:5]


def records(data: bytes) -> Iterator[bytes]:
    """Return what a sink has written; an agent may have died within the last one."""
    at = 0
    while at + LENGTH_BYTES <= len(data):
        size = int.from_bytes(data[at : at + LENGTH_BYTES])
        at += LENGTH_BYTES
        if at + size <= len(data):
            yield data[at : at + size]
        at += size


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stride", [SAMPLE_STRIDE, pytest.param(1, marks=pytest.mark.long)])
async def test_kills_at_every_frame(stride: int) -> None:
    every = list(scenarios())
    assert len(every) >= KILLS_MIN
    expected = len(every[::stride])
    todo = iter(every[::stride])

    async def work(mother: Zygote, directory: Path) -> int:
        lane = Lane(mother, directory)
        try:
            await lane.begin()
            for scenario in todo:
                try:
                    await lane.run(scenario)
                except Exception as error:
                    error.add_note(f"after {lane.ran} in this lane: {scenario}")
                    raise
            await lane.end()
        finally:
            await lane.close()
        return lane.ran

    async with zygote() as mother:
        with tempfile.TemporaryDirectory(prefix="ps-") as name:
            directories = [Path(name) / str(number) for number in range(LANES)]
            for directory in directories:
                directory.mkdir()
            ran = await asyncio.gather(*(work(mother, directory) for directory in directories))
        assert sum(ran) == expected
        assert mother.statuses[SIGKILLED] == expected, mother.statuses
        assert set(mother.statuses) == {0, SIGKILLED}


STEPS_MAX = 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stride", [SAMPLE_STRIDE, pytest.param(1, marks=pytest.mark.long)])
async def test_kills_at_every_step_of_the_agent(stride: int) -> None:
    """Before and after each call on a connection, in the middle of each answer and each write."""
    nowhere = Plan(direction=UP, index=-1, when=BEFORE, victim=AGENT)
    scripts = [
        Scenario(plan=nowhere, frames=frames, chunks=chunks, size=size, together=together)
        for (chunks, size), frames, together in product(KINDS.values(), (1, 3), (False, True))
    ]
    todo = iter(scripts)

    async def work(mother: Zygote, directory: Path) -> int:
        lane = Lane(mother, directory)
        kills = 0
        try:
            for script in todo:
                for die_at in range(0, STEPS_MAX, stride):
                    if not await lane.run_with_fuse(script, die_at):
                        break
                    kills += 1
                else:
                    raise AssertionError(f"no end of {script}")
            lane.check()
        finally:
            await lane.close()
        return kills

    async with zygote() as mother:
        with tempfile.TemporaryDirectory(prefix="ps-") as name:
            directories = [Path(name) / str(number) for number in range(LANES)]
            for directory in directories:
                directory.mkdir()
            kills = await asyncio.gather(*(work(mother, directory) for directory in directories))
        print("KILLS", sum(kills))
        assert sum(kills) >= STEP_KILLS_MIN // stride
        assert mother.statuses[SIGKILLED] == sum(kills)
        assert set(mother.statuses) == {0, SIGKILLED}
