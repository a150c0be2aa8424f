"""Lives and deaths: drivers are started and killed until there were enough kills.

A *life* is one driver process with a JVM of its own. Kills of workers, of the planner and of the
broker happen while it runs; the last one of a life is the driver's own. The next driver gets
its JVM ready meanwhile.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.scenarios.spark import deadly
from tests.scenarios.spark.line import Line
from tests.scenarios.spark.points import ANYWHERE, BROKER, DRIVER, EXECUTOR, PLANNER, WORKER, Point

ROOT: Final = Path(__file__).resolve().parents[3]
WAIT_SECONDS: Final = 240.0
"""Longest time for a driver to get ready, or to read the rest; the machine may be busy."""
ORDER_SECONDS: Final = 60.0
"""Longest time for an order to be taken; after it the point counts as not come by."""
ANYWHERE_SECONDS: Final = 3.0
POLL_SECONDS: Final = 0.02
DRAINS_MAX: Final = 12
FIRST_RECORDS: Final = 200
FAST: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
CLASSES: Final = "classes.jsa"
MASTER: Final = "local[2,8]"
SETTINGS: Final = {
    "spark.driver.memory": "600m",
    "spark.python.daemon.module": "tests.scenarios.spark.daemon",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class Wrong(AssertionError):
    """Raised when the output is wrong, or a driver ended by itself."""


class Life:
    """Driver process; `begin` lets it run the pipeline."""

    def __init__(
        self, line: Line, *, bug: str = "", master: str = MASTER,
        settings: Mapping[str, str] | None = None, archive: bool = False,
    ) -> None:  # fmt: skip
        lives = line.folder / "lives"
        lives.mkdir(exist_ok=True)
        self.folder = lives / f"{time.time_ns():020d}"
        for name in ("orders", "taken"):
            (self.folder / name).mkdir(parents=True)
        self._line = line
        self._orders = 0
        environment = {
            deadly.FOLDER: str(self.folder),
            deadly.LOG: str(line.log),
            deadly.BROKER: str(line.broker_file),
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src"))),
        }
        # A short path: Spark puts Unix sockets there.
        self._scratch = scratch = tempfile.mkdtemp(prefix="penstock-life-")
        classes = line.folder.parent / CLASSES
        # Java keeps what it made of Spark's classes in a file: half the work of each start.
        how = "SharedArchiveFile" if classes.exists() else "ArchiveClassesAtExit"
        share = f"-XX:{how}={classes}" if classes.exists() or archive else ""
        chosen = {
            **SETTINGS,
            "spark.driver.extraJavaOptions": f"{FAST} {share} -Djava.io.tmpdir={scratch}",
            "spark.local.dir": scratch,
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
            **(settings or {}),
        }
        given = {"master": master, "settings": chosen, "bug": bug}
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.scenarios.spark.child", json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": scratch, **environment},
                cwd=ROOT,
                start_new_session=True,
            )

    def begin(self) -> None:
        """Wait until it is ready, and let it work."""
        self._await(lambda: (self.folder / "ready").exists(), WAIT_SECONDS)
        work = {
            "file": str(self._line.file),
            "bootstrap": self._line.broker.bootstrap,
            "admin": self._line.broker.admin_url,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work).encode() + b"\n")
        self._process.stdin.flush()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def die_at(self, point: Point, chance: random.Random, seconds: float = ORDER_SECONDS) -> bool:
        """Order a kill and wait until it has happened; False if no process reached the point."""
        before = len(self._line.kills)
        delay_ms = chance.randint(1, point.delay_ms_max) if point.delay_ms_max else 0
        self._orders += 1
        order = deadly.order(self.folder, self._orders, point, delay_ms)
        deadline = time.monotonic() + seconds
        while len(self._line.kills) == before:
            if time.monotonic() > deadline and _withdrawn(order):
                return False
            self._line.mend_broker()
            self._check()
            time.sleep(POLL_SECONDS)
        if point.dies == "driver":
            self._process.wait(WAIT_SECONDS)
        return True

    def kill(self) -> None:
        """Kill it from outside."""
        if self.alive:
            deadly.note(self._line.log, ANYWHERE)
            self.end()

    def end(self) -> None:
        """Kill it, if it is there, without counting."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_SECONDS)
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def await_end(self) -> None:
        """Wait until it has done everything there is to do."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self.end()
                raise Wrong(f"{self._line.folder.name}: the rest was not read in {WAIT_SECONDS} s")
            self._line.mend_broker()
            time.sleep(POLL_SECONDS)
        self._check()
        self.end()

    def said(self) -> str:
        """The end of what it printed."""
        return (self.folder / "log").read_text(errors="replace")[-6_000:]

    def _check(self) -> None:
        if self._process.poll() not in (None, 0, -signal.SIGKILL):
            raise Wrong(f"{self._line.folder.name}: a driver failed:\n{self.said()}")

    def _await(self, condition: object, seconds: float) -> None:
        assert callable(condition)
        deadline = time.monotonic() + seconds
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise Wrong(f"{self._line.folder.name}: a driver did not get ready:\n{self.said()}")
            time.sleep(POLL_SECONDS)


def _withdrawn(order: Path) -> bool:
    try:
        order.unlink()
    except FileNotFoundError:
        return False  # somebody has just taken it
    return True


class Campaign:
    """Lives of one line; `bug` is planted into each."""

    def __init__(
        self, line: Line, *, seed: int, bug: str = "", master: str = MASTER,
        settings: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.line = line
        self.missed: Counter[str] = Counter()
        self.lives = 0
        self._random = random.Random(f"{seed}/{line.folder.name}/kills")
        self._how = {"bug": bug, "master": master, "settings": settings}
        self._next: Life | None = None

    def points(self, points: Sequence[Point]) -> list[Point]:
        """Return those of some points that this line reaches."""
        here = {"any", "letters"} | ({"holding"} if self.line.holding else set())
        return [point for point in points if point.needs in here]

    def choose(self, points: Sequence[Point]) -> Point:
        """A point of those with the fewest kills so far."""
        counts = Counter(self.line.kills) + self.missed
        some = self.points(points) if points is not EXECUTOR else list(points)
        return min(some, key=lambda point: (counts[point.name], self._random.random()))

    def live(self, during: Sequence[Point], last: Point | None, *, more: bool = True) -> None:
        """Run one life: kills during it, then its own. `more` announces another life."""
        life = self._next or self._made()
        self._next = None
        self.lives += 1
        self.line.write_file()
        life.begin()
        self.line.feed(True)
        try:
            if more:
                self._next = self._made()
            for point in during:
                self._kill(life, point)
            self.line.ask_for_releases()
            if last is not None:
                self._kill(life, last)
            else:
                time.sleep(self._random.uniform(0, ANYWHERE_SECONDS))
            life.kill()
        finally:
            self.line.feed(False)
            life.end()
        self.line.mend_broker()

    def _kill(self, life: Life, point: Point) -> None:
        if not life.die_at(point, self._random):
            self.missed[point.name] += 1

    def check(self, *, final: bool = False) -> None:
        """Look at what was written.

        Raises:
            Wrong: something is there twice, or out of order, or (at the end) missing.
        """
        found = self.line.problems(final=final)
        if found:
            raise Wrong(f"{self.line.folder.name}: " + "; ".join(found))

    def finish(self) -> None:
        """Let everything through that is left, and check all of it."""
        for _ in range(DRAINS_MAX):
            with self.line.broker.client() as client:
                self.line.send(client, len(DRIVER))
            self.line.write_file(once=True, known=True)
            if self.line.holding:
                self.line.ask({"keys": "all"})
            life = self._next or self._made()
            self._next = None
            life.begin()
            life.await_end()
            if self.line.held() == 0:
                break
        self.check(final=True)

    def close(self) -> None:
        """End the life that got ready for nothing."""
        if self._next is not None:
            self._next.end()
            self._next = None

    def warm_up(self) -> None:
        """Run a first batch, and keep what Java makes of Spark's classes for the lives to come."""
        with self.line.broker.client() as client:
            self.line.send(client, FIRST_RECORDS)
        self.line.write_file(once=True)
        life = Life(self.line, archive=True)
        life.begin()
        life.await_end()

    def _made(self) -> Life:
        return Life(self.line, **self._how)  # type: ignore[arg-type]


WHILE_ALIVE: Final = (*WORKER, *PLANNER, *BROKER)
