"""Failures of connectors, caused in real systems: each state has its cause, until it ends.

A failure must be shown within `SHOWN_SECONDS` after it is caused, or after the connector first
needs what it has lost: a right or a slot at its next check of the server (`LOOK_SECONDS`), a target
at the next row. RETRYING and FAILED have the same cause in the command `status`, the REST interface
and the metrics. No state in between is RUNNING. The connector recovers by itself when the cause
ends. Only a lost slot needs a command, for a new snapshot.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

from penstock.apps.cli import main
from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.status import StatusFile
from penstock.testing import Broker
from tests.connect.postgresql.bed import LOGICAL, database
from tests.connect.worker_bed import WorkerProcess, wait_until, worker_of
from tests.machine import disk_of
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server

SHOWN_SECONDS = 5.0
RETRY = "[errors]\nretry_delay_max_seconds = 0.3\n"
FEED = "feed"
"""Topic and connector: rows for sinks, two a second."""
DROP = """
DO $$ DECLARE name text := '{slot}'; BEGIN LOOP
    PERFORM pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots
        WHERE slot_name = name AND active;
    BEGIN PERFORM pg_drop_replication_slot(name); RETURN;
    EXCEPTION WHEN object_in_use THEN END;
END LOOP; END $$
"""


class Death(NamedTuple):
    """Connector that has died, and how it has to be shown.

    Attributes:
        lasting: whether the connector fails again until the cause ends.
        writes: whether the connector has new rows by itself.
    """

    name: str
    state: str
    cause: str
    lasting: bool = True
    writes: bool = True


@dataclass
class Bed:
    """Worker with a small disk for its states, and the systems that its connectors use."""

    worker: WorkerProcess
    disk: Path
    stack: contextlib.ExitStack

    @cached_property
    def server(self) -> PostgresServer:
        """A server of PostgreSQL that may be stopped."""
        return self.stack.enter_context(postgres_server(settings=LOGICAL))

    def write(self, name: str, text: str) -> str:
        """Write a connector's file at once, and wait until the connector runs."""
        part = self.worker.directory / f"{name}.part"
        part.write_text(f'name = "{name}"\n{text}')
        part.rename(part.with_suffix(".toml"))
        return name

    def runs(self, name: str, text: str) -> str:
        self.write(name, text)
        self.worker.wait(name, "RUNNING")
        return name

    def source(self, name: str, more: str = "", after: str = "") -> str:
        return f'[source]\nconnector = "dying.py:Dying"\ntopic = "{name}"\n{more}\n{RETRY}{after}'

    def sink(self, connector: str, url: str, more: str = "") -> str:
        if not (self.worker.directory / f"{FEED}.toml").exists():
            self.runs(FEED, self.source(FEED))
        keys = f'connector = "{connector}"\ntopics = ["{FEED}"]\nurl = "{url}"\n{more}'
        return f"[sink]\n{keys}\n{RETRY}"

    def capture(self, name: str) -> str:
        """Run a connector of a table `orders` whose user may be deprived of its rights."""
        database_name = self.stack.enter_context(self.server.database())
        self.url = self.server.url(database_name)
        self.execute("CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders VALUES (1)")
        self.execute(f"CREATE ROLE {name} LOGIN REPLICATION")
        self.execute(f"GRANT ALL ON DATABASE {database_name} TO {name}")
        self.execute(f"ALTER TABLE orders OWNER TO {name}")
        url = self.url.replace("penstock@", f"{name}@")
        keys = f'connector = "postgresql"\nurl = "{url}"\ntables = ["public.orders"]\n'
        return self.runs(name, f"[source]\n{keys}{RETRY}")

    def execute(self, statement: str) -> None:
        with database(self.url) as opened:
            opened(statement)


def command(*words: str) -> tuple[int, str]:
    """Run a command of the command line; return its status and output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            main(list(words))
        except SystemExit as ended:
            return int(ended.code or 0), output.getvalue()
    return 0, output.getvalue()


# Deaths


@contextmanager
def out_of_memory(bed: Bed) -> Iterator[Death]:
    limit = bed.worker.directory / "memory"
    name = bed.runs("memory", bed.source("memory", f'memory = "{limit}"'))
    limit.touch()
    yield Death(name, "FAILED", "Unable to allocate")
    limit.unlink()


@contextmanager
def killed(bed: Bed) -> Iterator[Death]:
    name = bed.runs("killed", bed.source("killed"))
    pid = bed.worker.pid(name)
    os.kill(pid, signal.SIGKILL)  # as the kernel does when memory runs out
    yield Death(name, "FAILED", f"process {pid} was killed by signal 9", lasting=False)


@contextmanager
def lost_database(bed: Bed) -> Iterator[Death]:
    name = bed.capture("away")
    bed.server.stop()
    yield Death(name, "RETRYING", "PostgreSQL at", writes=False)
    bed.server.start()


@contextmanager
def lost_slot(bed: Bed) -> Iterator[Death]:
    name = bed.capture("slotless")
    bed.execute(DROP.format(slot=f"penstock_{name}"))
    cause = f"replication slot penstock_{name} is lost: it does not exist"
    yield Death(name, "FAILED", cause, writes=False)
    file = bed.worker.directory / f"{name}.toml"
    status, output = command("connect", "reset", str(file), "--yes", "-b", bed.worker.bootstrap)
    assert (status, "removed" in output) == (0, True)


@contextmanager
def full_state_disk(bed: Bed) -> Iterator[Death]:
    name = bed.runs("stateless", bed.source("stateless"))
    with full(bed.disk):
        yield Death(name, "FAILED", "No space left on device")


@contextmanager
def full_target_disk(bed: Bed) -> Iterator[Death]:
    target = bed.stack.enter_context(disk_of("1m", bed.worker.directory / "target"))
    more = 'file_format = "jsonl"\nrotate_seconds = 0.2'
    name = bed.runs("files", bed.sink("files", str(target), more))
    with full(target):
        yield Death(name, "RETRYING", f"cannot write to {target}")


@contextmanager
def revoked_select(bed: Bed) -> Iterator[Death]:
    name = bed.capture("forbidden")
    bed.execute(f"REVOKE SELECT ON orders FROM {name}")
    cause = f"may not read orders; run GRANT SELECT ON orders TO {name}"
    yield Death(name, "FAILED", cause, writes=False)
    bed.execute(f"GRANT SELECT ON orders TO {name}")


@contextmanager
def revoked_replication(bed: Bed) -> Iterator[Death]:
    name = bed.capture("unreplicated")
    bed.execute(f"ALTER ROLE {name} NOREPLICATION")
    bed.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
    yield Death(name, "FAILED", "to start", writes=False)
    bed.execute(f"ALTER ROLE {name} REPLICATION")


@contextmanager
def poison_record(bed: Bed) -> Iterator[Death]:
    keys = f'connector = "files"\ntopics = ["poison"]\nurl = "{bed.worker.directory}/poison"\n'
    keys += "rotate_rows = 1\n"  # offsets are committed with complete files
    with Client(bed.worker.bootstrap) as client:
        client.create_topic("poison", 1)
        name = bed.runs("poison", f"[sink]\n{keys}{RETRY}")
        client.write_arrow("poison", pa.table({"value": [b'{"n": 1}', b"nonsense"]}))
    yield Death(name, "FAILED", "topic poison: 1 rows cannot be processed: row 1")
    bed.write(name, f'[sink]\n{keys}{RETRY}dead_letters = "poison.dead"\n')


@contextmanager
def http_target_down(bed: Bed) -> Iterator[Death]:
    port = free_port()
    url = f"http://127.0.0.1:{port}/events"
    with http_server(port):
        name = bed.runs("hook", bed.sink("http", url))
        before = bed.worker.metric("records_total", name)
        wait_until(
            lambda: bed.worker.metric("records_total", name) > before, lambda: "no row was sent"
        )
    yield Death(name, "RETRYING", f"{url} does not accept requests")
    bed.stack.enter_context(http_server(port))


@contextmanager
def sql_target_down(bed: Bed) -> Iterator[Death]:
    url = bed.server.url(bed.stack.enter_context(bed.server.database()))
    with database(url) as opened:
        opened("CREATE TABLE rows (at bigint, text text)")
    name = bed.runs("rows", bed.sink("sql", url, 'table = "rows"'))
    bed.server.stop()
    yield Death(name, "RETRYING", "the database does not respond")
    bed.server.start()


@contextmanager
def wrong_settings(bed: Bed) -> Iterator[Death]:
    name = bed.runs("settings", bed.source("settings"))
    bed.write(name, bed.source(name, 'nothing = "x"'))
    yield Death(name, "FAILED", "source.nothing: there is no setting of this name")
    bed.write(name, bed.source(name))


# Parts


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a file system until the context ends."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        filler.unlink()


class Accepts(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def http_server(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Accepts)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory = tmp_path_factory.mktemp("connectors")
    shutil.copy(Path(__file__).parent / "dying.py", directory)
    with (
        contextlib.ExitStack() as stack,
        Broker(process=True) as broker,
        disk_of("2m", directory / "states") as disk,
        worker_of(directory, broker.bootstrap, disk) as worker,
    ):
        yield Bed(worker, disk, stack)


# Tests

Plant = Callable[[Bed], AbstractContextManager[Death]]
QUICK: tuple[Plant, ...] = (full_state_disk, http_target_down)
LONG: tuple[Plant, ...] = (
    killed, out_of_memory, lost_database, lost_slot, full_target_disk, revoked_select,
    revoked_replication, poison_record, sql_target_down, wrong_settings,
)  # fmt: skip


@pytest.mark.parametrize(
    "plant", [*QUICK, *(pytest.param(plant, marks=pytest.mark.long) for plant in LONG)]
)
def test_a_death_is_shown_with_its_cause_and_mended(bed: Bed, plant: Plant) -> None:
    worker = bed.worker
    with plant(bed) as death:
        assert worker.wait(death.name, death.state, death.cause) < SHOWN_SECONDS
        if death.lasting:
            assert_shown(worker, death)
            assert_stays(worker, death)
    mended = time.monotonic()
    worker.wait(death.name, "RUNNING")
    if not death.writes:
        bed.execute("INSERT INTO orders SELECT max(id) + 1 FROM orders")
    wait_until(
        lambda: worker.metric("last_commit_age_seconds", death.name) < time.monotonic() - mended,
        lambda: f"{death.name} has not committed since the cause ended",
    )
    worker.remove(death.name)


def assert_shown(worker: WorkerProcess, death: Death) -> None:
    """Wait until the command `status` and the metrics show the state that the interface shows."""

    def shown() -> bool:
        status, output = command("connect", "status", "--worker", worker.url, "--output", "json")
        [row] = [row for row in json.loads(output) if row["connector"] == death.name]
        assert row["state"] != "RUNNING"
        assert death.cause in row["cause"]
        same = worker.metric("state", death.name, state=death.state) == 1
        return same and (row["state"], status) == (death.state, int(death.state == "FAILED"))

    wait_until(shown, lambda: f"{death} is not shown everywhere")


def assert_stays(worker: WorkerProcess, death: Death) -> None:
    """Wait for further attempts, which must not show the connector as running."""
    metric = "retries_total" if death.state == "RETRYING" else "restarts_total"
    before = worker.metric(metric, death.name)

    def tried_again() -> bool:
        state, cause = worker.state(death.name)
        assert state != "RUNNING"
        assert death.cause in cause
        return worker.metric(metric, death.name) > before and state == death.state

    wait_until(tried_again, lambda: f"{death.name} makes no further attempt")


@pytest.mark.long
def test_a_process_that_hangs_has_a_cause(bed: Bed) -> None:
    name = bed.runs("hanging", bed.source("hanging"))
    pid = bed.worker.pid(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        bed.worker.wait(name, "RUNNING", "no step has ended for 1")
        status, output = command("connect", "status", "--worker", bed.worker.url)
        assert (status, "no step has ended for" in output) == (0, True)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: bed.worker.state(name) == ("RUNNING", ""), lambda: "the cause remains")
    bed.worker.remove(name)


class Hour(running.Stop):
    """Clock that pauses advance; after an hour the target is up, and the run ends after it."""

    def __init__(self, down: Path, status: StatusFile) -> None:
        super().__init__()
        self.down, self.status = down, status
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return sum(self.pauses)

    def now_ms(self) -> int:
        return round(1000 * self.monotonic())

    def pause(self, seconds: float) -> None:
        if self.down.exists():
            assert self.status.status.state == "RETRYING"
            assert self.status.status.cause == "the file system is away"
            self.pauses.append(seconds)
            if self.monotonic() > 3600:
                self.down.unlink()
        elif self.status.status.records:
            assert self.status.status.state == "RUNNING"
            self.set()


def test_a_target_that_is_down_for_an_hour_is_tried_every_minute(tmp_path: Path) -> None:
    plugin, down = Path(__file__).parent / "plugin.py", tmp_path / "down"
    down.touch()
    file = tmp_path / "hour.toml"
    file.write_text(
        f'name = "hour"\n[sink]\nconnector = "{plugin}:Lines"\ntopics = ["hour"]\n'
        f'path = "{tmp_path}/lines"\ndown = "{down}"\n'
    )
    with Broker() as broker, broker.client() as client:
        client.create_topic("hour", 1)
        client.write_arrow("hour", pa.table({"value": [b'{"n": 1}', b'{"n": 2}']}))
        spec = load(file, bootstrap=broker.bootstrap)
        status = StatusFile("hour", "sink", tmp_path / "state")
        stop = Hour(down, status)
        running.run(running.Run(spec=spec, client=client, status=status, stop=stop, clock=stop))
    assert (tmp_path / "lines").read_text() == "1\n2\n"
    assert max(stop.pauses) <= spec.errors.retry_delay_max_seconds == 60
    assert min(stop.pauses[10:]) >= 30
    assert len(stop.pauses) == status.status.retries
