"""A writer that is killed leaves objects whole or absent, and all that it was answered for."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from penstock.objects import DirectoryStore
from penstock.objects.directory import PARTIAL

KILLS = 3
WRITER = """
import asyncio, sys
from pathlib import Path
from penstock.objects import DirectoryStore

async def write(store, worker):
    for number in range(100_000):
        key = f"wal/{number % 7}/{sys.argv[2]}-{worker}-{number}"
        size = 1 + number * 7919 % 200_000
        await store.put(key, [key.encode(), b"." * size, b"end"])
        sys.stdout.write(key + "\\n")
        sys.stdout.flush()

async def main():
    store = DirectoryStore(Path(sys.argv[1]))
    await asyncio.gather(*(write(store, worker) for worker in range(4)))

asyncio.run(main())
"""


def content(key: str) -> bytes:
    size = 1 + int(key.rpartition("-")[2]) * 7919 % 200_000
    return key.encode() + b"." * size + b"end"


def killed_writer(root: Path, life: int, answers: int) -> list[str]:
    """Run a writer until it has answered so often, kill it; the keys that it answered for."""
    command = [sys.executable, "-c", WRITER, str(root), str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(answers)]
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
    return [line.removesuffix("\n") for line in said if line.endswith("\n")]


async def test_objects_are_whole_or_absent_after_a_kill(tmp_path: Path) -> None:
    dice = random.Random(1)
    answered: list[str] = []
    for life in range(KILLS):
        run = asyncio.to_thread(killed_writer, tmp_path, life, dice.randrange(20, 120))
        answered += await run
    store = DirectoryStore(tmp_path)
    listed = {info.key: info.size_bytes async for info in store.list("")}
    assert set(answered) <= set(listed)
    for key, size in listed.items():
        assert bytes(await store.get(key, 0, size)) == content(key)
    assert len(os.listdir(tmp_path / PARTIAL)) <= 4 * KILLS
    await store.close()
