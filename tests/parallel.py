"""Test processes (`--processes N`) that are forked after pytest has collected the tests.

Collecting 15,000 tests takes a processor a quarter of a minute. Processes that collect by
themselves, as those of pytest-xdist do, would each spend that time again. A process takes whole
files and runs them with fixtures of its own; it ends the fixtures of a package when it continues
with a file of another one.

Most of the cost is in what the files of a folder share: Spark's session, foreign clients and their
server, brokers, PostgreSQL, S3. Files are therefore handed out in the order of their folders,
Spark's first, those of foreign clients last. The first two processes begin with Spark's files, from
either end; the others begin with the other files, from either end. A Spark session takes ten
seconds to start and a minute to become fast: other processes start one only when no other file is
left.
"""

from __future__ import annotations

import mmap
import os
import sys
import traceback
import warnings
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, Final

import pytest

FOLDERS: Final = ("spark", "apps", "scenarios", "host", "deploy", "broker", "outbox")
"""Folders of `tests`, the most expensive first; the others follow by name."""
SPARK: Final = f"tests/{FOLDERS[0]}/"
SPARK_PROCESSES: Final = 2
TOGETHER: Final = {
    # They share the results of `source_facts.py`.
    **{f"tests/test_{name}.py": "parsing" for name in ("imports", "language", "tidy")},
    # They share an installed image.
    **{f"tests/deploy/test_{name}.py": "image" for name in ("agent", "commands", "image")},
}
"""Names of groups of files that one process runs, by file."""
_CRASHED: Final = 70
"""Exit status of a process in which pytest itself has failed."""


def rank(item: pytest.Item) -> int:
    """Return the position of the test's folder in the order of a run."""
    top, folder, *_ = item.nodeid.split("/")
    if top != "tests":
        return len(FOLDERS) + 1
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


class FileQueue:
    """Files that no process has taken yet, each with the indices of its tests in the session."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._files: dict[str, list[int]] = {}
        for index, item in enumerate(items):
            file = item.nodeid.split("::")[0]
            self._files.setdefault(TOGETHER.get(file, file), []).append(index)

    def __len__(self) -> int:
        return len(self._files)

    def take(self, process: int) -> list[int]:
        """Return the tests of the next file for a process; none if all files are taken."""
        spark = [file for file in self._files if file.startswith(SPARK)]
        others = [file for file in self._files if not file.startswith(SPARK)]
        queue = (spark or others) if process < SPARK_PROCESSES else (others or spark)
        return self._files.pop(queue[-1 if process % 2 else 0]) if queue else []

    def put_back(self, items: list[pytest.Item], left: list[int]) -> None:
        """Return the tests of a file whose process has died."""
        if left:
            self._files[items[left[0]].nodeid.split("::")[0]] = left


class Worker:
    """A forked process, as its parent knows it."""

    def __init__(self, number: int, pid: int, connection: Connection) -> None:
        self.number, self.pid, self.connection = number, pid, connection
        self.left: list[int] = []
        """Tests that it has taken and not begun."""
        self.running: int | None = None


class Run:
    """A run of all collected tests by forked processes."""

    def __init__(self, session: pytest.Session, processes: int) -> None:
        self._session, self._items = session, session.items
        self._queue = FileQueue(session.items)
        self._workers: dict[Connection, Worker] = {}
        self._stop = mmap.mmap(-1, 1)  # shared with the processes: not zero once they are to stop
        self._base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for number in range(min(processes, len(self._queue))):
            self._fork(number)

    def until_done(self) -> None:
        try:
            while self._workers:
                for connection in wait(list(self._workers)):
                    self._receive(self._workers[connection])  # type: ignore[index]
                if self._session.shouldfail or self._session.shouldstop:
                    self._stop[0] = 1
        finally:
            self._stop[0] = 1
            for worker in self._workers.values():
                worker.connection.close()
                os.waitpid(worker.pid, 0)

    def _receive(self, worker: Worker) -> None:
        try:
            kind, data = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._ended(worker)
        else:
            self._received(worker, kind, data)

    def _received(self, worker: Worker, kind: str, data: Any) -> None:
        config = self._session.config
        match kind:
            case "next":
                taken = [] if self._stop[0] else self._queue.take(worker.number)
                worker.left = list(taken)
                worker.connection.send(taken)
            case "begin":
                worker.running = data
                worker.left = [index for index in worker.left if index != data]
            case "report":
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                config.hook.pytest_runtest_logreport(report=report)
            case "end":
                worker.running = None
                item = self._items[data]
                config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            case "warning":
                text, category, when, nodeid, location = data
                message = warnings.WarningMessage(text, category, *location[:2])
                config.hook.pytest_warning_recorded.call_historic(
                    kwargs={
                        "warning_message": message, "when": when, "nodeid": nodeid,
                        "location": location,
                    }
                )  # fmt: skip

    def _ended(self, worker: Worker) -> None:
        """Report the test in which a process has died, and start another process."""
        del self._workers[worker.connection]
        worker.connection.close()
        _, wait_status = os.waitpid(worker.pid, 0)
        status = os.waitstatus_to_exitcode(wait_status)
        if worker.running is None:
            if status or (worker.left and not self._stop[0]):
                raise pytest.Session.Interrupted(f"a test process ended with status {status}")
            return
        item = self._items[worker.running]
        how = f"signal {-status}" if status < 0 else f"status {status}"
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"its process ended with {how}", "call",
        )  # fmt: skip
        item.config.hook.pytest_runtest_logreport(report=report)
        self._queue.put_back(self._items, worker.left)
        self._fork(worker.number)

    def _fork(self, number: int) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python 3.12 warns of other threads. Those are of allocators, which handle forks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid:
            theirs.close()
            self._workers[ours] = Worker(number, pid, ours)
            return
        status = _CRASHED
        try:
            for other in self._workers:
                other.close()
            ours.close()
            try:
                _Process(self._session, theirs, self._stop, self._base / f"process{number}").run()
            finally:
                self._session._setupstate.teardown_exact(None)
            status = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)


class _Process:
    """The child's side: runs tests, and sends reports and warnings to the parent."""

    def __init__(
        self, session: pytest.Session, connection: Connection, stop: mmap.mmap, base: Any
    ) -> None:
        self._session, self._connection, self._stop = session, connection, stop
        config = session.config
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files would be shared with the parent
        capture.start_global_capturing()
        for name in ("terminalreporter", "run-report"):
            config.pluginmanager.unregister(name=name)
        config.pluginmanager.register(self)
        config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
        base.mkdir(exist_ok=True)

    def run(self) -> None:
        items, taken = self._session.items, self._next()
        while taken:
            following: list[int] = []
            for place, index in enumerate(taken, 1):
                if self._stop[0]:
                    following, next_item = [], None
                elif place < len(taken):
                    next_item = items[taken[place]]
                else:
                    following = self._next()
                    next_item = items[following[0]] if following else None
                self._connection.send(("begin", index))
                hook = items[index].config.hook
                hook.pytest_runtest_protocol(item=items[index], nextitem=next_item)
                self._connection.send(("end", index))
                if next_item is None:
                    return
            taken = following

    def _next(self) -> list[int]:
        self._connection.send(("next", None))
        taken: list[int] = self._connection.recv()
        return taken

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._connection.send(("report", data))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        place = location or (warning_message.filename, warning_message.lineno, "")
        text, category = str(warning_message.message), warning_message.category
        self._connection.send(("warning", (text, category, when, nodeid, place)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--processes", type=int, default=0, metavar="N",
        help="run the tests in N processes, which are forked after the collection",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    processes = session.config.getoption("processes")
    if not processes or session.config.option.collectonly or session.testsfailed:
        return None
    Run(session, processes).until_done()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True
