"""Kills writers at every file call, and checks what each leaves and what a retry makes of it.

    python -m tests.scenarios.outbox.kill_target ROOT SEED SHAPE [few]

A process without threads loads the outbox once and forks a child for every kill, which costs
milliseconds. The child kills itself with SIGKILL before or after its n-th call; `publish` and
`acknowledge` are calls too. The topic is a file that is appended to by one `write` a pointer.
Prints one JSON object: the kills made, by call.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from penstock.base.crc import crc32c
from penstock.base.metrics import Sample
from penstock.outbox.layout import batch_directory, hour_directory, is_temporary, temporary_name
from penstock.outbox.pointer import OutboxRecord, Pointer, decode_pointer, pointer_record
from penstock.outbox.settings import OutboxSettings
from penstock.outbox.writer.safe_write import Tree, WritePlan, as_buffers
from penstock.outbox.writer.writer import OutboxWriter
from tests.faulty_files import FaultyFiles

AT_MS = 1_779_632_400_000


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Batch and the way it is written."""

    partition_id: str
    batch_id: str
    payload: Sequence[bytes]
    durable: bool
    without_renameat2: bool
    whole_writer: bool = False

    @property
    def content(self) -> bytes:
        return b"".join(self.payload)

    @property
    def directory(self) -> str:
        return batch_directory(self.partition_id, self.batch_id, AT_MS)


def payload_of(shape: str, dice: random.Random) -> list[bytes]:
    if shape == "empty":
        return []
    if shape == "one":
        return [dice.randbytes(dice.randint(1, 200_000))]
    if shape == "many":
        return [dice.randbytes(dice.randint(0, 30)) for _ in range(dice.randint(2100, 3000))]
    return [dice.randbytes(dice.randint(300_000, 500_000)) for _ in range(2)]


class Killed(FaultyFiles):
    """Kills its process around one call, or never; without `renameat2` where that is asked for."""

    def __init__(self, at: int, after: bool, without_renameat2: bool) -> None:
        super().__init__(self._kill_before, self._kill_after)
        self._at = at
        self._after_it = after
        self._without_renameat2 = without_renameat2

    def _kill_before(self, number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number == self._at and not self._after_it:
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "rename_new" and self._without_renameat2:
            raise OSError(22, "Invalid argument")

    def _kill_after(self, number: int, *_: object) -> None:
        if number == self._at and self._after_it:
            os.kill(os.getpid(), signal.SIGKILL)


class FileTopic:
    """Records appended to a file, a line each, by one call each."""

    def __init__(self, path: Path, files: FaultyFiles) -> None:
        self._path = path
        self._files = files

    async def start(self) -> None:
        return

    async def stop(self, deadline_seconds: float | None = None) -> None:
        return

    async def publish(self, records: Sequence[OutboxRecord]) -> None:
        for record in records:
            self.append(record)

    def append(self, record: OutboxRecord) -> None:
        topic = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._files.around("publish", os.write, topic, record.value + b"\n")
        os.close(topic)

    def samples(self) -> Iterator[Sample]:
        yield from ()


def write_and_publish(root: Path, scenario: Scenario, files: FaultyFiles, attempt: int) -> None:
    topic = FileTopic(root / "topic", files)
    if scenario.whole_writer:
        asyncio.run(send(root, scenario, files, topic))
        return
    buffers, size_bytes = as_buffers(list(scenario.payload))
    written = Tree(root / "tree", files).write(
        WritePlan(
            hour_directory=hour_directory(scenario.partition_id, AT_MS),
            batch_name=f"batch-{scenario.batch_id}",
            temporary_name=temporary_name(f"{os.getpid()}", attempt),
            buffers=buffers,
            size_bytes=size_bytes,
            durable=scenario.durable,
        )
    )
    pointer = Pointer(
        file_path=f"{scenario.directory}/data.bin",
        batch_id=scenario.batch_id,
        partition_id=scenario.partition_id,
        size_bytes=written.size_bytes,
        crc32c=written.crc32c,
        codec="none",
        event_count=1,
    )
    topic.append(pointer_record(pointer))


async def send(root: Path, scenario: Scenario, files: FaultyFiles, topic: FileTopic) -> None:
    settings = OutboxSettings(
        root=str(root / "tree"), durable=scenario.durable, threshold_bytes=-1, io_threads=2
    )
    async with OutboxWriter(settings, publisher=topic, files=files) as writer:
        await writer.send(
            list(scenario.payload),
            partition_id=scenario.partition_id,
            batch_id=scenario.batch_id,
            at_ms=AT_MS,
        )


def in_child(work: Callable[[int], None]) -> tuple[int, bytes]:
    """Run `work` in a child with a pipe's end; its wait status, and what came through the pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        end(lambda: work(writing))
    os.close(writing)
    said = b""
    while part := os.read(reading, 65536):
        said += part
    os.close(reading)
    return os.waitpid(child, 0)[1], said


def end(work: Callable[[], None]) -> NoReturn:
    try:
        work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


class Check:
    """Runs scenarios and holds what must hold after every kill."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.kills: Counter[str] = Counter()
        (root / "tree").mkdir()
        (root / "topic").touch()

    def calls_of(self, scenario: Scenario) -> list[str]:
        """The calls that a whole run makes, from one that is not killed."""

        def work(pipe: int) -> None:
            files = Killed(-1, False, scenario.without_renameat2)
            write_and_publish(self.root, scenario, files, 0)
            files.around("acknowledge", int)
            os.write(pipe, json.dumps(files.calls).encode())

        status, said = in_child(work)
        must(status == 0, scenario, "the run that is not killed failed")
        calls: list[str] = json.loads(said)
        return calls

    def kill(self, scenario: Scenario, at: int, after: bool, name: str, attempt: int = 1) -> None:
        def work(pipe: int) -> None:
            files = Killed(at, after, scenario.without_renameat2)
            write_and_publish(self.root, scenario, files, attempt)
            files.around("acknowledge", os.write, pipe, b"+")

        status, said = in_child(work)
        where = f"{'after' if after else 'before'} call {at}, {name}"
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        must(killed, scenario, f"{where}: not killed, status {status}")
        self.kills[name] += 1
        whole = self.is_whole(scenario, where)
        published = self.published(scenario)
        must(whole or not said, scenario, f"{where}: acknowledged and not there")
        must(whole or not published, scenario, f"{where}: published and not there")
        must(bool(published) or not said, scenario, f"{where}: acknowledged and not published")
        must(bool(said) == (name == "acknowledge" and after), scenario, f"{where}: said {said!r}")

    def retry(self, scenario: Scenario) -> None:
        def work(pipe: int) -> None:
            files = Killed(-1, False, scenario.without_renameat2)
            write_and_publish(self.root, scenario, files, 9)
            os.write(pipe, b"+")

        status, said = in_child(work)
        must(status == 0 and said == b"+", scenario, "the retry failed")
        must(self.is_whole(scenario, "retry"), scenario, "retried and not there")
        must(bool(self.published(scenario)), scenario, "retried and not published")
        found = list((self.root / "tree" / scenario.partition_id).rglob("data.bin"))
        must(len(found) == 1, scenario, f"{len(found)} payloads")
        shutil.rmtree(self.root / "tree" / scenario.partition_id)

    def is_whole(self, scenario: Scenario, where: str) -> bool:
        """Whether the payload is there; whatever else is there are files of attempts."""
        directory = self.root / "tree" / scenario.directory
        names = os.listdir(directory) if directory.is_dir() else []
        strangers = [name for name in names if name != "data.bin" and not is_temporary(name)]
        must(not strangers, scenario, f"{where}: found {strangers}")
        if "data.bin" not in names:
            return False
        content = (directory / "data.bin").read_bytes()
        must(content == scenario.content, scenario, f"{where}: a torn payload")
        return True

    def published(self, scenario: Scenario) -> list[Pointer]:
        lines = (self.root / "topic").read_bytes().splitlines()
        pointers = [decode_pointer(line) for line in lines]
        (self.root / "topic").write_bytes(b"")
        for pointer in pointers:
            must(pointer.batch_id == scenario.batch_id, scenario, f"a foreign {pointer}")
            must(pointer.size_bytes == len(scenario.content), scenario, f"size of {pointer}")
            must(pointer.crc32c == crc32c(scenario.content), scenario, f"checksum of {pointer}")
        return pointers

    def sweep(self, make: Callable[[str], Scenario]) -> None:
        """Kill before and after every call; after each kill, retry in a new process."""
        for at, name in enumerate(self.calls_of(make("count"))):
            self.published(make("count"))
            for after in (False, True):
                scenario = make(f"{at}-{after:d}")
                self.kill(scenario, at, after, name)
                self.retry(scenario)

    def sweep_retries(self, make: Callable[[str], Scenario]) -> None:
        """The same for a batch that is there already, and then for its next retry."""
        first = make("count")
        self.calls_of(first)
        calls = self.calls_of(first)
        self.published(first)
        for at, name in enumerate(calls):
            for after in (False, True):
                self.kill(first, at, after, name)
        self.retry(first)

    def kill_at_any_time(self, make: Callable[[str], Scenario], dice: random.Random) -> None:
        """Kill from outside, in the middle of whatever the child does."""
        scenario = make("any")
        ready, go = os.pipe()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:

            def work() -> None:
                os.write(go, b".")
                files = Killed(-1, False, scenario.without_renameat2)
                write_and_publish(self.root, scenario, files, 1)
                os.write(writing, b"+")
                signal.pause()

            end(work)
        os.close(writing)
        os.read(ready, 1)
        time.sleep(dice.uniform(0, 0.006))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        said = os.read(reading, 1)
        for handle in (ready, go, reading):
            os.close(handle)
        self.kills["any time"] += 1
        whole, published = self.is_whole(scenario, "any time"), self.published(scenario)
        must(whole or not (said or published), scenario, "any time: acknowledged and not there")
        must(bool(published) or not said, scenario, "any time: acknowledged, not published")
        self.retry(scenario)


def must(holds: bool, scenario: Scenario, what: str) -> None:
    if not holds:
        sizes = f"{len(scenario.payload)} buffers, {len(scenario.content)} bytes"
        raise AssertionError(
            f"{scenario.directory} ({sizes}, durable {scenario.durable},"
            f" renameat2 {not scenario.without_renameat2}): {what}"
        )


def main() -> None:
    root, seed = Path(sys.argv[1]), int(sys.argv[2])
    dice = random.Random(seed)
    check = Check(root)
    numbers = iter(range(10**9))

    def maker(
        shape: str, durable: bool, without: bool = False, whole: bool = False
    ) -> Callable[[str], Scenario]:
        partition = f"p{next(numbers)}-{shape}-{durable:d}{without:d}{whole:d}"
        payload = payload_of(shape, dice)
        return lambda name: Scenario(
            partition_id=f"{partition}-{name}",
            batch_id=f"b-{name}",
            payload=payload,
            durable=durable,
            without_renameat2=without,
            whole_writer=whole,
        )

    shape, few = sys.argv[3], sys.argv[4:] == ["few"]
    gc.freeze()  # what is loaded is shared with the children, and not copied by their collections
    check.sweep(maker(shape, True))
    check.sweep_retries(maker(shape, True))
    if not few:
        check.sweep(maker(shape, True, without=True))
        check.sweep(maker(shape, False))
        check.sweep_retries(maker(shape, False))
    if shape in {"one", "many"} and not few:
        check.sweep(maker(shape, True, whole=True))
    for _ in range(10 if few else 15):
        check.kill_at_any_time(maker(shape, True), dice)
    print(json.dumps({"total": check.kills.total(), "by_call": check.kills}))


if __name__ == "__main__":
    main()
