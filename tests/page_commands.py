"""Pages of the documentation as programs: writes their files and runs their commands, in order.

A fenced block is one of these:

- a file, if its title is a file name: ```toml title="orders.toml"
- a long-running command, if its title is a terminal: ```sh title="Terminal 2"
- commands of the reader's shell: ```sh
- expected output of the block before it, or of the terminal that its title names: ```text, where
  `…` stands for any characters
- an installation, if its title is "Install"; it is not run here
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.ports import free_port

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
BLOCK: Final = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PORTS: Final = ("9092", "9093", "9094", "9292", "9293", "9294", "9644", "9645", "9646", "8081")
INSTALL: Final = "Install"
TERMINAL: Final = "Terminal"
OUTPUT: Final = "text"
OUTPUT_SECONDS: Final = 120.0
COMMAND_SECONDS: Final = 240.0
POLL_SECONDS: Final = 0.02
STATE: Final = ".shell-state"
NOTICES: Final = re.compile(r"^% .*\n", re.MULTILINE)
"""Lines of commands that report waiting and ends of topics, at any time."""


class Block(NamedTuple):
    """Fenced block of a page."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    return [Block(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def expected(text: str) -> re.Pattern[str]:
    """Return the pattern of an output block; `…` stands for any characters."""
    parts = (re.escape(part) for part in text.strip().split("…"))
    return re.compile(r"[\s\S]*?".join(parts))


class Terminal:
    """Command that runs until the page ends; its output is collected in a file."""

    def __init__(self, command: str, directory: Path, env: Mapping[str, str], output: Path) -> None:
        self._output = output
        with output.open("wb") as sink:
            self._process = subprocess.Popen(
                ["bash", "-c", command], cwd=directory, env=env, stdin=subprocess.DEVNULL,
                stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def text(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: re.Pattern[str]) -> None:
        """Wait until the output has the pattern.

        Raises:
            AssertionError: the command ended, or the time is over, without it.
        """
        deadline = time.monotonic() + OUTPUT_SECONDS
        while not pattern.search(self.text()):
            ended = self._process.poll() is not None
            if (ended and not pattern.search(self.text())) or time.monotonic() > deadline:
                raise AssertionError(f"no {pattern.pattern!r} in:\n{self.text()}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """End all processes of the terminal, as closing its window does."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(30)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._process.wait(30)


class Run:
    """Run of a page in an empty directory, with free ports in place of the page's.

    Args:
        directory: where files are written and commands run.
        replaced: further texts of the page, such as addresses, and their replacements.
        programs: directory of programs that the page expects on the path.
    """

    def __init__(
        self,
        directory: Path,
        replaced: Mapping[str, str] | None = None,
        programs: Path = Path(sys.executable).parent,
    ) -> None:
        self.directory = directory
        self.replaced = {port: str(free_port()) for port in PORTS} | dict(replaced or {})
        self.outputs: list[str] = []
        """Output of each block of commands, in order."""
        self._terminals: dict[str, Terminal] = {}
        self._last: Terminal | None = None
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "KAFKA_"))}
        here = self.replaced
        self._env = kept | {
            "PATH": os.pathsep.join(
                [str(Path(sys.executable).parent), str(programs), os.environ["PATH"]]
            ),
            "PENSTOCK_BOOTSTRAP": f"127.0.0.1:{here['9092']}",
            "PENSTOCK_ADMIN_URL": f"http://127.0.0.1:{here['9644']}",
            "PENSTOCK_REGISTRY": f"http://127.0.0.1:{here['8081']}",
            "PENSTOCK_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        # Brokers without a file of settings have the ports of this run, as they have the defaults
        # of the page. The environment would override a file.
        self._defaults = {
            "PENSTOCK_LISTENERS": f"PLAINTEXT://127.0.0.1:{here['9092']}",
            "PENSTOCK_ADMIN_LISTENER": f"127.0.0.1:{here['9644']}",
            "PENSTOCK_REGISTRY_LISTENER": f"127.0.0.1:{here['8081']}",
        }

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in reversed(self._terminals.values()):
            terminal.stop()

    def page(self, page: Path) -> None:
        """Perform all blocks of a page."""
        for block in blocks(page):
            self.perform(block)

    def perform(self, block: Block) -> None:
        """Write the file, run the commands, or compare the output, of a block."""
        text = self._replace(block.text)
        if block.language == OUTPUT:
            self._compare(self._terminals.get(block.title, self._last), expected(text))
        elif block.title.startswith(TERMINAL):
            self._open(block.title, text)
        elif block.title and block.title != INSTALL:
            (self._working_directory() / block.title).write_text(text, encoding="utf-8")
        elif block.language == "sh" and not block.title:
            self._last = None
            self.outputs.append(self._commands(text))

    def _working_directory(self) -> Path:
        """Return the directory of the reader's shell, which `cd` has changed."""
        state = self.directory / STATE
        lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
        return Path(shlex.split(lines[-1])[1]) if lines else self.directory

    def _replace(self, text: str) -> str:
        names = "|".join(map(re.escape, sorted(self.replaced, key=len, reverse=True)))
        pattern = rf"(?<!\d)(?:{names})(?!\d)"
        return re.sub(pattern, lambda match: self.replaced[match[0]], text)

    def close(self, title: str) -> None:
        """End the command of a terminal."""
        self._terminals.pop(title).stop()

    def _open(self, title: str, text: str) -> None:
        if title in self._terminals:
            self.close(title)
        env = self._env if "--config" in text else self._env | self._defaults
        output = self.directory / f".{title.replace(' ', '-').lower()}"
        self._last = Terminal(text, self.directory, env, output)
        self._terminals[title] = self._last

    def _commands(self, text: str) -> str:
        state = self.directory / STATE
        restore = f"test ! -e {state} || source {state}"
        save = f"{{ declare -px; printf 'cd %q\\n' \"$PWD\"; }} > {state}"
        ran = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; {restore}\n{text}\n{save}"],
            cwd=self.directory, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=False,
        )  # fmt: skip
        others = "".join(f"\n{name}:\n{one.text()}" for name, one in self._terminals.items())
        assert ran.returncode == 0, f"{text}\n{ran.stdout}{others}"
        return NOTICES.sub("", ran.stdout)

    def _compare(self, terminal: Terminal | None, pattern: re.Pattern[str]) -> None:
        if terminal is not None:
            terminal.wait_for(pattern)
        else:
            assert pattern.search(self.outputs[-1]), (pattern.pattern, self.outputs[-1])


@contextmanager
def performed(
    name: str, directory: Path, replaced: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Run all of a page below `docs`; processes that it started end with the context."""
    with Run(directory, replaced) as run:
        run.page(DOCS / name)
        yield run
