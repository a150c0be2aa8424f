"""An agent with the null sink in a process of its own, for tests that look at its memory.

python -m tests.host.server.agent_process PATH [name=value…]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from penstock.base.settings import load
from penstock.host.server.agent import HostAgent
from penstock.host.server.settings import HostSettings
from penstock.host.sinks.memory import NullSink


async def serve(path: str, words: list[str]) -> None:
    given = dict(word.split("=", 1) for word in words)
    settings = load(HostSettings, {"host.socket.path": path, **given})
    agent = HostAgent(settings, NullSink())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await agent.start()
    print("ready", flush=True)
    await stop.wait()
    await agent.stop()


class Process(subprocess.Popen[str]):
    @property
    def peak_bytes(self) -> int:
        """The most memory that it has had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


@contextlib.contextmanager
def agent_process(path: str, *, stderr: int | None = None, **options: object) -> Iterator[Process]:
    """A running agent; settings by their names, `_` for `.`."""
    words = [f"{name.replace('_', '.')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "tests.host.server.agent_process", path, *words]
    root = Path(__file__).resolve().parents[3]
    with Process(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(sys.argv[1], sys.argv[2:]))
