"""Reports of waiting of client commands: due times, and causes from real brokers."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import click
import pytest

from penstock.apps.client.session import FIRST_NOTICE_SECONDS, NOTICE_SECONDS, State
from penstock.apps.client.waiting import LOOK_SECONDS, Silence
from penstock.apps.host.probe import TIMEOUT_SECONDS
from penstock.apps.host.send import NOTICE_SECONDS as NOTICE_BEFORE_SENDING
from penstock.apps.log.consume import consume
from penstock.apps.log.groups import group
from penstock.apps.log.produce import produce
from penstock.apps.log.topics import config
from penstock.apps.log.topics import topic as topic_commands
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.client import Waits
from penstock.client.session import Unanswered
from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.ports import free_port
from tests.security.certificates import keystore

WAIT_SECONDS = 60
QUIET = Waits("", ())
REFUSED = Waits("b:1 refused the connection", ())


def fetch(number: int) -> Waits:
    return Waits("", (Unanswered("b:1", "Fetch", number),))


def silence(idle: str = "") -> Silence:
    return Silence(first_seconds=4, every_seconds=30, subject="topic t", idle=idle)


def test_a_failure_is_said_in_time_and_then_now_and_again() -> None:
    watch = silence()
    said = {at: line for at in range(100) if (line := watch.look(at, REFUSED, 0))}
    assert said == {
        4: "% waiting for 4 s (topic t): b:1 refused the connection",
        34: "% waiting for 34 s (topic t): b:1 refused the connection",
        64: "% waiting for 64 s (topic t): b:1 refused the connection",
        94: "% waiting for 94 s (topic t): b:1 refused the connection",
    }
    assert FIRST_NOTICE_SECONDS + 2 * LOOK_SECONDS < 2
    assert NOTICE_SECONDS == 30


def test_progress_restarts_the_warning_interval() -> None:
    watch = silence()
    assert [watch.look(at, REFUSED, at // 3) for at in range(20)] == [None] * 20
    assert watch.look(25, REFUSED, 6) is not None
    assert watch.look(26, REFUSED, 7) is None
    assert [watch.look(at, REFUSED, 7) is not None for at in (27, 30, 31)] == [False, False, True]


def test_a_call_waits_once_it_is_the_same_for_long() -> None:
    watch = silence()
    assert [watch.look(at, fetch(at), 0) for at in range(40)] == [None] * 40
    found = [watch.look(at, fetch(0), 0) for at in range(100, 106)]
    assert found[:5] == [None] * 5
    assert found[5] == "% waiting for 4 s (topic t): b:1 does not answer Fetch"


def test_having_nothing_to_do_is_said_where_it_is_a_wait() -> None:
    assert [silence().look(at, QUIET, 0) for at in range(9)] == [None] * 9
    idle = silence("no new records")
    said = [idle.look(at, fetch(at), 0) for at in range(5)]
    assert said[-1] == "% waiting for 4 s (topic t): no new records"
    idle.progressed()
    assert [idle.look(at, fetch(at), 0) for at in range(5, 9)] == [None] * 4


def test_a_long_poll_is_not_blamed_and_a_call_without_an_answer_is() -> None:
    """A broker that has nothing answers half a second later; here looks are a tenth apart."""
    idle = silence("no new records")
    said = [idle.look(look / 10, fetch(look // 5), 0) for look in range(44)]
    assert [line for line in said if line] == ["% waiting for 4 s (topic t): no new records"]
    frozen = silence("no new records")
    said = [frozen.look(look / 10, fetch(0), 0) for look in range(44)]
    assert [line for line in said if line] == [
        "% waiting for 4 s (topic t): b:1 does not answer Fetch"
    ]


# commands


class Ears:
    """Lines that a command says, for a test that waits for one."""

    def __init__(self) -> None:
        self._lines: Queue[str] = Queue()
        self.hear = self._lines.put

    def wait_for(self, *words: str) -> str:
        """The next line that has all the words."""
        while True:
            line = self._lines.get(timeout=WAIT_SECONDS)
            if all([word in line for word in words]):
                return line


Start = Callable[..., Future[object]]


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def frozen() -> Iterator[Broker]:
    """A broker in a process of its own, to be stopped with a signal."""
    with Broker(process=True, admin=False) as broker:
        yield broker


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.fixture
def start(ears: Ears, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a command in a thread; its lines about waiting come soon and often.

    Without click's runner: it replaces the streams of the process, and threads that end in another
    order than they began would leave those of another behind.
    """
    threads = ThreadPoolExecutor(4)

    def begin(
        command: click.Command, bootstrap: str, *words: str, stdin: str = "", to: Ears = ears
    ) -> Future[object]:
        state = State(bootstrap=bootstrap, notice_seconds=(0.3, 0.3), notice=to.hear)
        if stdin:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        return threads.submit(
            lambda: command.main(list(words), standalone_mode=False, obj=state) or 0
        )

    yield begin
    threads.shutdown()


def test_consume_says_what_it_waits_for(frozen: Broker, start: Start, ears: Ears) -> None:
    frozen.create_topic("events")
    address = frozen.bootstrap
    reading = start(consume, address, "events", "-c", "1")
    ears.wait_for("% waiting for", "(topic events)", "no new records")
    with stopped(frozen):
        ears.wait_for("(topic events)", f"{address} does not answer Fetch")
    ears.wait_for("no new records")
    frozen.kill()
    ears.wait_for("(topic events)", f"{address} refused the connection")
    frozen.start()
    with frozen.client() as client:
        client.write_arrow("events", _table(b"x"))
    assert reading.result(WAIT_SECONDS) == 0


def _table(value: bytes) -> object:
    import pyarrow as pa

    return pa.table({"value": pa.array([value], pa.binary())})


def test_produce_says_what_it_waits_for(frozen: Broker, start: Start, ears: Ears) -> None:
    frozen.create_topic("events")
    address = frozen.bootstrap
    with stopped(frozen):
        writing = start(produce, address, "events", stdin="a\n")
        ears.wait_for("% waiting for", "(topic events)", f"{address} does not answer")
    assert writing.result(WAIT_SECONDS) == 0


def test_every_command_says_it(frozen: Broker, start: Start) -> None:
    frozen.create_topic("events")
    with stopped(frozen):
        calls = []
        for command, *words in (
            (topic_commands, "list"),
            (group, "list"),
            (config, "describe", "topic", "events"),
        ):
            ears = Ears()
            calls.append(start(command, frozen.bootstrap, *words, to=ears))
            ears.wait_for("% waiting for", f"{frozen.bootstrap} does not answer")
    assert [call.result(WAIT_SECONDS) for call in calls] == [0, 0, 0]


def test_long_work_says_what_it_does(ears: Ears) -> None:
    state = State(notice_seconds=(0.01, 0.01), notice=ears.hear)
    with state.working("starting Spark"):
        assert ears.wait_for("% starting Spark") == "% starting Spark (0 s so far)"
        ears.wait_for("% starting Spark")


def test_sending_to_an_absent_agent_says_so(bare: Run, tmp_path: Path) -> None:
    path = str(tmp_path / "absent.sock")
    ran = bare("host", "send", "--socket", path, "--timeout", "2", stdin="a\n")
    first, last = ran.err.splitlines()
    assert (ran.status, first) == (
        3,
        f"% waiting for an agent: socket {path}: No such file or directory",
    )
    assert "penstock host serve" in last
    assert NOTICE_BEFORE_SENDING + TIMEOUT_SECONDS < 2, "said within two seconds"


def test_a_broker_that_is_not_registered_is_named_at_once(run: Run) -> None:
    for words in (("set", "broker", "7", "num.partitions=3"), ("describe", "broker", "7")):
        begun = SYSTEM_CLOCK.monotonic()
        ran = run("config", *words)
        assert SYSTEM_CLOCK.monotonic() - begun < 2
        assert (ran.status, ran.err) == (
            1,
            "penstock: broker 7 is not registered; registered brokers are 1\n",
        )


def test_a_port_with_tls_is_named_at_once(
    bare: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": keystore(tmp_path),
    }
    with Broker(settings, admin=False) as broker:
        assert broker.server is not None
        host, port = broker.server.bound["SSL"]
        begun = SYSTEM_CLOCK.monotonic()
        ran = bare("-b", f"{host}:{port}", "topic", "list")
        assert SYSTEM_CLOCK.monotonic() - begun < 2
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert f"{host}:{port} expects TLS, but this client connects without it" in ran.err
        assert "security.protocol" in ran.err
        (line,) = [text for text in caplog.messages if "connected without TLS" in text]
        assert line.startswith(f"a client at {host} connected without TLS to port {port}")
        options = ("-X", "security.protocol=SSL")
        plain = bare("-b", broker.bootstrap, "topic", "list", *options)
        assert plain.status in (1, 3)
        assert "Check whether this port expects TLS (security.protocol)." in plain.err


def test_a_quiet_consumer_says_nothing(frozen: Broker, start: Start, ears: Ears) -> None:
    frozen.create_topic("events")
    quiet = start(consume, frozen.bootstrap, "events", "-c", "1", "-q")
    loud = start(consume, frozen.bootstrap, "events", "-c", "1", "-o", "end")
    for _ in range(3):
        ears.wait_for("no new records")
    with frozen.client() as client:
        client.write_arrow("events", _table(b"x"))
    assert [quiet.result(WAIT_SECONDS), loud.result(WAIT_SECONDS)] == [0, 0]


COMMANDS = (
    ("produce", "{}"),
    ("consume", "{}", "-e"),
    ("topic", "describe", "{}"),
    ("topic", "delete", "{}", "--yes"),
    ("topic", "add-partitions", "{}", "-n", "1"),
    ("config", "describe", "topic", "{}"),
    ("config", "set", "topic", "{}", "retention.ms=9000000"),
    ("group", "seek", "some", "-t", "{}", "--to", "end"),
    ("plan", "keys", "{}"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_absent_topics_and_brokers_are_one_line(
    bare: Run, run: Run, words: tuple[str, ...]
) -> None:
    named = [word.format("not-there") for word in words]
    absent = run(*named, stdin="a\n")
    assert (absent.status, absent.err.count("\n"), absent.out) == (1, 1, "")
    assert absent.err.startswith("penstock: topic 'not-there': UNKNOWN_TOPIC_OR_PARTITION (3)")
    assert "`penstock topic create`" in absent.err
    unused = f"127.0.0.1:{free_port()}"
    down = bare("-b", unused, *named, "-X", "default.api.timeout.ms=100", stdin="a\n")
    assert (down.status, down.err.count("\n"), down.out) == (3, 1, "")
    assert down.err.startswith(f"penstock: no broker of {unused} responds; the last error: ")
    assert "Connection refused" in down.err
    assert "start a broker with `penstock serve`" in down.err


@pytest.mark.parametrize(
    "words", [("group", "describe", "unused"), ("group", "delete", "unused", "--yes")]
)
def test_absent_groups_are_one_line(run: Run, words: tuple[str, ...]) -> None:
    absent = run(*words)
    assert (absent.status, absent.err.count("\n")) == (1, 1)
    assert "`penstock group list`" in absent.err


def test_produce_sums_up_on_a_terminal(run: Run, topic: Callable[..., str], bootstrap: str) -> None:
    name = topic(1)
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "penstock", "-b", bootstrap, "produce", name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=theirs, text=True) as command:
        os.close(theirs)
        command.communicate("a\nb\nc\n", timeout=WAIT_SECONDS)
    shown = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        shown += block
    os.close(ours)
    text = shown.decode()
    assert command.returncode == 0
    assert f"% topic {name}: 3 records, " in text
    assert "records/s, " in text
    assert run("produce", name, stdin="d\n").err == "", "a pipe gets none of it"
