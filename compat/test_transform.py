"""Members of a group that copy a topic to another in transactions, by franz-go, over kills.

A program (`franz/transform.go`) reads as a static member, writes what it has read, and has both its
offsets and its records count in one transaction. So readers of committed records see each record of
the source once, in its order, whoever is killed: a member, the broker, or a member that is stopped,
is replaced by another one with its name, and goes on as a zombie.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from compat.conftest import missing
from compat.drivers import eventually
from compat.drivers.confluent import Confluent
from compat.drivers.port import Record
from compat.drivers.remote import environment
from compat.parts import PartMissing, franz_go
from compat.scenes import in_order, plain_records
from compat.security import grant, read, security_of, transactions, write
from compat.servers import Killable, killable

PARTITIONS = 4
RECORDS = 400
SOURCE, TARGET = "source", "target"
WAIT_SECONDS = 90.0


class Copier:
    """A member, in a process that can be killed, stopped and replaced."""

    def __init__(self, bootstrap: str, name: str, log: Path) -> None:
        program = str(franz_go())
        command = [program, bootstrap, SOURCE, TARGET, "copiers", name]
        needs = (*read(SOURCE, "copiers"), write(TARGET), transactions(name))
        grant(bootstrap, "franz-go", needs)
        self._said = log
        with log.open("ab") as said:
            own = environment(security_of("franz-go"))
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=said, env={**os.environ, **own}
            )

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        self._process.send_signal(number)

    def end(self) -> None:
        """kill -9, if it lives."""
        self._process.kill()
        self._process.wait()

    @property
    def status(self) -> int | None:
        """The status that it has ended with."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """Why it has ended."""
        return self._said.read_text(errors="replace")[-2000:]


class Scene:
    """The topic and its copy, and the members by name."""

    def __init__(self, broker: Killable, driver: Confluent, directory: Path) -> None:
        self.broker = broker
        self._driver = driver
        self._directory = directory
        self._copiers: dict[str, Copier] = {}
        self._stack = ExitStack()
        self._sent: list[Record] = []

    def start(self, name: str) -> Copier:
        """Start a member, in the place of one with its name."""
        log = self._directory / f"{name}.log"
        copier = self._copiers[name] = Copier(self.broker.bootstrap, name, log)
        self._stack.callback(copier.end)
        return copier

    def end(self) -> None:
        """End all members."""
        self._stack.close()

    def __getitem__(self, name: str) -> Copier:
        return self._copiers[name]

    def produce(self) -> None:
        """Some more records of the source."""
        sent = plain_records(
            RECORDS,
            partitions=PARTITIONS,
            start=len(self._sent),
            timestamp=int(time.time() * 1000),
        )
        self._driver.produce(SOURCE, sent, idempotent=True)
        self._sent += sent

    def await_copied(self, missing: int = 0) -> None:
        """Until readers of committed records see all but so many, each of them once, in order."""
        seen: list[Record] = []

        def complete() -> bool:
            starts = dict.fromkeys(range(PARTITIONS), 0)
            wanted = len(self._sent) - missing
            seen[:] = self._driver.consume(TARGET, starts, wanted, committed=True)
            return len(seen) >= wanted

        def story() -> str:
            said = [copier.said for copier in self._copiers.values()]
            return f"{len(seen)} of {len(self._sent)} records: {said}"

        eventually(complete, story, seconds=WAIT_SECONDS)
        for part in range(PARTITIONS):
            copied = [each.value for each in in_order(seen) if each.partition == part]
            expected = [each.value for each in self._sent if each.partition == part]
            assert copied == expected[: len(copied)], part


@contextmanager
def copying(directory: Path) -> Iterator[Scene]:
    """Two members at work."""
    with killable(directory / "broker") as broker, Confluent(broker.bootstrap) as driver:
        for name in (SOURCE, TARGET):
            driver.create_topic(name, PARTITIONS, {})
        scene = Scene(broker, driver, directory)
        try:
            for name in ("one", "two"):
                scene.start(name)
            yield scene
        except PartMissing as error:
            missing(error)
        finally:
            scene.end()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_topic_is_copied_once_over_kills_and_by_no_zombie(tmp_path: Path) -> None:
    with copying(tmp_path) as scene:
        scene.produce()
        scene.await_copied(RECORDS // 2)
        scene["one"].end()
        scene.start("one")
        scene.produce()
        scene.await_copied(RECORDS // 2)
        scene.broker.kill()
        scene.broker.start()
        scene.produce()
        scene.await_copied(RECORDS // 2)
        zombie = scene["one"]
        zombie.signal(signal.SIGSTOP)
        scene.start("one")
        scene.produce()
        scene.await_copied()
        zombie.signal(signal.SIGCONT)
        scene.produce()
        eventually(lambda: zombie.status == 1, lambda: zombie.status, seconds=WAIT_SECONDS)
        scene.await_copied()
