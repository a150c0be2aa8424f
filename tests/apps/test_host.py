"""`penstock host` as processes: the ready line, health, status, sending, a roll of two agents."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.apps.host.probe import TIMEOUT_SECONDS as PROBE_SECONDS
from penstock.host import HostClient
from penstock.host.client.futures import PublishFuture
from penstock.security.credentials import ITERATIONS, SCRAM_SHA_256, derive
from penstock.testing import Broker
from tests.apps.conftest import Ran, Run
from tests.apps.test_serve import environment
from tests.host.server.peers import data, hello
from tests.machine import disk_of
from tests.security.certificates import keystore, truststore

READY = re.compile(r"penstock host ready socket=(\S+) http=(\S+) sink=(\w+)\n")
TIMEOUT_SECONDS = 60


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ps-") as name:
        yield Path(name)


@pytest.fixture
def path(folder: Path) -> str:
    return str(folder / "host.sock")


class Agent(subprocess.Popen[str]):
    """An agent's process, and what its ready line said."""

    path = http = sink = ""


@contextmanager
def agent(path: str, *words: str, **extra: str) -> Iterator[Agent]:
    """An agent that is ready; it is killed in the end if it still lives."""
    command = [sys.executable, "-m", "penstock", "host", "serve", "--socket", path, *words]
    with Agent(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**extra),
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = READY.fullmatch(line)
            assert found is not None, (line, process.stderr and process.stderr.read())
            process.path, process.http, process.sink = found.groups()
            assert process.path == path
            yield process
        finally:
            process.kill()


def ended(process: Agent) -> str:
    """Its standard error, after it has ended with status 0."""
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert process.stderr is not None
    return process.stderr.read()


def refused(*words: str, **extra: str) -> str:
    """Return the one line of `penstock host serve` that fails to start."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "host", "serve", *words],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env=environment(**extra),
        check=False,
    )
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


def probed(run: Callable[[], Ran]) -> Ran:
    """Probe a running agent; a busy machine may keep it longer than a probe
    waits, and a supervisor asks again.
    """
    by = time.monotonic() + TIMEOUT_SECONDS
    while "no answer within" in (ran := run()).err:
        assert time.monotonic() < by
    return ran


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ready_healthy_and_a_clean_end(path: str, bare: Run, number: signal.Signals) -> None:
    ran = bare("host", "health", "--socket", path)
    assert ran.status == 1
    assert "No such file" in ran.err
    with agent(path, "--sink", "null") as process:
        assert process.http == "-"
        ran = probed(lambda: bare("host", "health", "--socket", path))
        assert ran.status == 0, ran.err
        assert ran.out.startswith("healthy")
        ran = probed(lambda: bare("host", "status", "--socket", path, "--output", "json"))
        assert json.loads(ran.out)["state"] == "serving"
        with HostClient(path) as client:
            client.send(b"one", timeout=TIMEOUT_SECONDS)
        process.send_signal(number)
        assert ended(process) == ""
    assert not os.path.lexists(path)
    ran = bare("host", "status", "--socket", path)
    assert ran.status == 1


def health_as_a_process(*words: str, **extra: str) -> Ran:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "host", "health", *words],
        timeout=TIMEOUT_SECONDS,
        env=environment(**extra),
        check=False,
        capture_output=True,
        text=True,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def test_health_as_a_process(path: str) -> None:
    with agent(path, "--sink", "null"):
        for words, extra in ((["--socket", path], {}), ([], {"PENSTOCK_HOST_SOCKET_PATH": path})):
            ran = probed(partial(health_as_a_process, *words, **extra))
            assert ran.status == 0, ran


def test_health_of_what_is_no_agent(path: str, bare: Run) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        ran = bare("host", "health", "--socket", path)
        assert ran.status == 1
        assert "refused" in ran.err
        silent.listen()
        ran = bare("host", "health", "--socket", path)
        assert ran.status == 1
        assert f"no answer within {PROBE_SECONDS:g} s" in ran.err
        assert PROBE_SECONDS < 1


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
def test_health_of_something_that_talks_nonsense(path: str, bare: Run, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(path)
        odd.listen()

        def talk() -> None:
            peer, _ = odd.accept()
            with peer:
                peer.recv(100)
                peer.sendall(said)

        thread = threading.Thread(target=talk)
        thread.start()
        ran = bare("host", "health", "--socket", path)
        thread.join()
        assert ran.status == 1
        assert ran.err.count("\n") == 1


def test_status_over_http(path: str, bare: Run) -> None:
    with (
        agent(path, "--sink", "null", "--http", "127.0.0.1:0") as process,
        HostClient(path, client_name="till") as client,
    ):
        client.send(b"one", timeout=TIMEOUT_SECONDS)
        ran = bare("host", "status", "--http", process.http)
        assert ran.status == 0, ran.err
        assert "till" in ran.out
        ran = bare("--output", "json", "host", "status", "--http", process.http)
        assert json.loads(ran.out)["accepted"] == {"chunks": 1, "events": 1, "bytes": 3}
    ran = bare("host", "status", "--http", process.http)
    assert ran.status == 1
    assert "/v1/status" in ran.err


@pytest.mark.parametrize("secured", [False, True])
def test_status_of_an_agent_with_rules(
    path: str, folder: Path, bare: Run, monkeypatch: pytest.MonkeyPatch, secured: bool
) -> None:
    password = "correct horse"
    kept = derive(SCRAM_SHA_256, password, salt=b"0123456789abcdef", iterations=ITERATIONS)
    rules = folder / "rules"
    rules.write_text(
        f'[[rule]]\nuser = "eye"\npassword = "{kept.text()}"\nprincipal = "User:eye"\n'
        "observes = true\n"
    )
    options = folder / "client.properties"
    words = ["--sink", "null", "--http", "127.0.0.1:0", "-X", f"host.acl.file={rules}"]
    if secured:
        words += ["-X", "host.http.security.protocol=SSL"]
        words += ["-X", f"host.http.ssl.keystore.location={keystore(folder)}"]

    def configure(password: str) -> None:
        lines = ["security.protocol=SASL_SSL", "sasl.username=eye", f"sasl.password={password}"]
        options.write_text("\n".join([*lines, f"ssl.truststore.location={truststore(folder)}"]))

    with agent(path, *words) as process:
        address = f"https://{process.http}" if secured else process.http
        ran = bare("host", "status", "--http", address)
        assert ran.status == 1
        assert "CERTIFICATE_VERIFY_FAILED" in ran.err or "401 Unauthorized" in ran.err
        monkeypatch.setenv("PENSTOCK_CLIENT_CONFIG", str(options))
        configure(password)
        ran = bare("--output", "json", "host", "status", "--http", address)
        assert ran.status == 0, ran.err
        assert json.loads(ran.out)["state"] == "serving"
        configure("wrong")
        ran = bare("host", "status", "--http", address)
        assert ran.status == 1
        assert "401 Unauthorized: the credentials are not accepted here" in ran.err
        assert "wrong" not in ran.err


def test_settings_from_everywhere(path: str, folder: Path) -> None:
    file = folder / "host.toml"
    file.write_text('[host]\nsink = "memory"\nsocket.mode = "0600"\n')
    words = ("--config", str(file), "-X", "host.credit.bytes=65536", "--log-format", "json")
    with agent(
        path, *words, "--log-level", "info", PENSTOCK_HOST_IDLE_TIMEOUT_MS="12345"
    ) as process:
        assert process.sink == "memory"
        assert os.lstat(path).st_mode & 0o777 == 0o600
        with HostClient(path) as client:
            client.wait_started(TIMEOUT_SECONDS)
            assert client.credit.payload_bytes == 65_536
        process.terminate()
        assert '"level": "info"' in ended(process).splitlines()[0]


def test_what_it_refuses_to_start_with(path: str, folder: Path) -> None:
    said = refused("--socket", path, "-X", "host.credit.byte=1")
    assert "did you mean host.credit.bytes?" in said
    said = refused("--socket", path, "--sink", "null", "-X", "host.socket.mode=abc")
    assert "host.socket.mode" in said
    assert "octal" in said
    said = refused("--socket", path, "--sink", "null", "-X", "audit.topic=__audit")
    assert "audit.topic = '__audit': must be empty, since only brokers write" in said
    said = refused("--socket", path, "--sink", "outbox")
    assert "outbox.root" in said
    (folder / "file").write_text("")
    said = refused("--socket", str(folder / "file"), "--sink", "null")
    assert "not deleted" in said
    said = refused("--socket", "/tmp/" + "x" * 200, "--sink", "null")
    assert "107" in said
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = f"127.0.0.1:{holder.getsockname()[1]}"
        said = refused("--socket", path, "--sink", "null", "--http", taken)
    assert "in use" in said
    assert taken in said
    assert not os.path.lexists(path)


def test_a_live_agent_is_not_replaced(path: str, bare: Run) -> None:
    with agent(path, "--sink", "null"):
        assert "another agent uses it" in refused("--socket", path, "--sink", "null")
        assert probed(lambda: bare("host", "health", "--socket", path)).status == 0


def test_sending_lines(path: str, folder: Path, bare: Run) -> None:
    file = folder / "lines"
    file.write_text("".join(f"line {number}\n" for number in range(1201)))
    with agent(path, "--sink", "null", "--http", "127.0.0.1:0") as process:
        ran = bare("host", "send", "--socket", path, str(file))
        assert ran.status == 0, ran.err
        assert ran.out == "1201 accepted, 0 failed\n"
        ran = bare("--output", "json", "host", "send", "--socket", path, stdin="a\r\nb\n\nc")
        assert json.loads(ran.out) == {"accepted": 4, "failed": 0}
        ran = bare("--output", "json", "host", "status", "--http", process.http)
        assert json.loads(ran.out)["accepted"]["chunks"] == 1205
    ran = bare("host", "send", "--socket", path, "--timeout", "0.2", stdin="a\n")
    assert ran.status == 3
    assert "start an agent with `penstock host serve`, or give its socket" in ran.err


def test_a_full_memory_sink(path: str, bare: Run) -> None:
    words = ("--sink", "memory", "-X", "host.memory.bytes=1024", "--http", "127.0.0.1:0")
    with agent(path, *words) as process:
        assert probed(lambda: bare("host", "health", "--socket", path)).status == 0
        ran = bare("host", "send", "--socket", path, "--batch", "1", stdin=f"{'x' * 600}\n" * 2)
        assert (ran.status, ran.out) == (1, "1 accepted, 1 failed\n")
        assert "the memory sink is full: it holds 1 frames of 600 bytes" in ran.err
        assert "host.memory.bytes" in ran.err
        status, answer = post(process, b"y" * 600)
        assert (status, answer["error"]) == (422, "sink_refused")
        until(lambda: bare("host", "health", "--socket", path).status)
        ran = bare("host", "health", "--socket", path)
        assert "the agent's sink does not accept data: the memory sink is full" in ran.err
        shown = json.loads(bare("host", "status", "--socket", path, "--output", "json").out)
        assert (shown["state"], "memory sink is full" in shown["reason"]) == ("blocked", True)
        assert probed(lambda: bare("host", "health", "--socket", path, "--live")).status == 0
        ran = bare("host", "status", "--socket", path, "--http", process.http)
        assert "the memory sink is full" in " ".join(ran.out.split())


def test_a_frozen_broker(path: str, bare: Run) -> None:
    with Broker(process=True, admin=False) as broker, broker.client() as client:
        client.create_topic("lines")
        words = ("--sink", "log", "-b", broker.bootstrap, "--http", "127.0.0.1:0")
        with agent(path, *words, "-X", "host.http.timeout.ms=6000") as process:
            assert post(process, b"before", "?topic=lines")[0] == 200
            assert broker.pid is not None
            os.kill(broker.pid, signal.SIGSTOP)
            try:
                with ThreadPoolExecutor(40) as pool:
                    targets = ["?topic=lines"] * 20 + ["?topic=others"] * 20
                    answers = list(pool.map(partial(post, process, b"x"), targets))
                assert {status for status, _ in answers} == {503}
                assert all(broker.bootstrap in answer["message"] for _, answer in answers)
                until(lambda: bare("host", "health", "--socket", path).status)
                ran = bare("host", "health", "--socket", path)
                assert f"no broker of {broker.bootstrap} responds" in ran.err
                assert probed(lambda: bare("host", "health", "--socket", path, "--live")).out
                ran = bare(
                    "host", "send", "--socket", path, "--topic", "lines", "--timeout", "9",
                    stdin="a\n",
                )  # fmt: skip
                assert ran.status == 1
                assert "the log sink did not answer within 4000 ms" in ran.err
                assert broker.bootstrap in ran.err
                assert "start an agent" not in ran.err
            finally:
                os.kill(broker.pid, signal.SIGCONT)
            until(lambda: not bare("host", "health", "--socket", path).status)
            assert post(process, b"after", "?topic=lines")[0] == 200
        values = client.read_arrow("lines", columns=("value",))["value"].to_pylist()
        assert {values[0], values[-1]} == {b"before", b"after"}


def test_a_stopped_agent_is_not_taken_for_none(path: str, bare: Run) -> None:
    with agent(path, "--sink", "null") as process:
        process.send_signal(signal.SIGSTOP)
        try:
            ran = bare("host", "send", "--socket", path, "--timeout", "0.2", stdin="a\n")
        finally:
            process.send_signal(signal.SIGCONT)
    assert ran.status == 3
    assert "no answer within" in ran.err
    assert "start an agent" not in ran.err


def post(process: Agent, body: bytes, query: str = "") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(process.http, timeout=TIMEOUT_SECONDS)
    with closing(connection):
        connection.request(
            "POST", f"/v1/ingest{query}", body, {"content-type": "application/octet-stream"}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_the_benchmark(path: str, bare: Run) -> None:
    with agent(path, "--sink", "null"):
        words = ("--socket", path, "--seconds", "0.1", "--size", "65536", "--output", "json")
        ran = bare("host", "bench", *words)
        assert ran.status == 0, ran.err
        results = json.loads(ran.out)
        assert results["ratio_of_raw"] > 0
        assert results["round_trip_p50_us"] > 0


def test_into_the_log(path: str, bare: Run) -> None:
    with Broker(admin=False) as broker, broker.client() as client:
        client.create_topic("readings", 2)
        with agent(path, "--bootstrap", broker.bootstrap, "--http", "127.0.0.1:0") as process:
            ran = bare("host", "send", "--socket", path, "--topic", "readings", stdin="a\nb\nc\n")
            assert ran.status == 0, ran.err
            ran = bare("host", "send", "--socket", path, "--topic", "nope", stdin="a\n")
            assert ran.status != 0
            assert "nope" in ran.err
            process.terminate()
            ended(process)
        values = client.read_arrow("readings").column("value").to_pylist()
    assert sorted(values) == [b"a", b"b", b"c"]


def test_into_the_outbox(path: str, folder: Path, bare: Run) -> None:
    (folder / "tree").mkdir()
    with Broker(admin=False) as broker, broker.client() as client:
        client.create_topic("pointers", 1)
        words = ("--sink", "outbox", "--outbox-root", str(folder / "tree"))
        options = ("--outbox-topic", "pointers", "-X", "outbox.inline.threshold.bytes=-1")
        with agent(path, *words, *options, "--bootstrap", broker.bootstrap) as process:
            ran = bare("host", "send", "--socket", path, "--topic", "tills", stdin="a\nb\n")
            assert ran.status == 0, ran.err
            process.terminate()
            ended(process)
        assert client.read_arrow("pointers").num_rows == 1
    (file,) = (folder / "tree" / "tills").rglob("data.bin")
    assert file.read_bytes() == b"ab"


def test_an_outbox_whose_disk_is_full(path: str, folder: Path, bare: Run) -> None:
    """Health says so while it is, and no longer once there is room."""
    with (
        disk_of("40m", folder / "disk") as small_disk,
        Broker(admin=False) as broker,
        broker.client() as client,
    ):
        client.create_topic("pointers")
        words = ("--sink", "outbox", "-b", broker.bootstrap, "--outbox-topic", "pointers")
        filler = small_disk / "filler"
        with agent(path, *words, "--outbox-root", str(small_disk)):
            until(lambda: not bare("host", "health", "--socket", path).status)
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
            until(lambda: bare("host", "health", "--socket", path).status)
            ran = bare("host", "health", "--socket", path)
            assert "the agent's sink does not accept data: outbox root: " in ran.err
            assert "bytes are free, but a payload may have" in ran.err
            filler.unlink()
            until(lambda: not bare("host", "health", "--socket", path).status)


def test_a_second_signal_ends_it_at_once() -> None:
    text = (
        "import asyncio; from penstock.apps.process.daemon import _on_signal;"
        "stop = asyncio.Event(); _on_signal(stop); assert stop.is_set(); _on_signal(stop)"
    )
    done = subprocess.run([sys.executable, "-c", text], timeout=TIMEOUT_SECONDS, check=False)
    assert done.returncode == 1


def test_a_second_signal_does_not_wait_for_the_drain(path: str) -> None:
    """It would wait for the answer to what a producer has sent, as the broker is gone."""
    drain = ("-X", f"host.drain.timeout.ms={10 * TIMEOUT_SECONDS * 1000}")
    with Broker(admin=False) as broker, socket.socket(socket.AF_UNIX) as producer:
        broker.create_topic("readings")
        with agent(path, "--bootstrap", broker.bootstrap, *drain) as process:
            producer.connect(path)
            producer.sendall(hello(topics=["readings"]))
            assert producer.recv(1000)
            broker.stop()
            producer.sendall(data(0, topic="readings", partition=0, log_sequence=0))
            process.terminate()
            until(lambda: not os.path.lexists(path))
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 1


def until(condition: Callable[[], object]) -> None:
    by = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < by
        time.sleep(0.002)


# Two agents on one path, one after the other and side by side


class Publisher:
    """Publishes without a pause while agents come and go."""

    def __init__(self, path: str) -> None:
        self.client = HostClient(path, topics=("readings",), client_name="publisher")
        self.sent: list[bytes] = []
        self.futures: list[PublishFuture] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self.client.wait_started(TIMEOUT_SECONDS)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(0.005):  # slower than a loaded log takes single records
            value = b"%d" % len(self.sent)
            self.futures.append(self.client.publish(value, topic="readings", partition=0))
            self.sent.append(value)

    def more(self, count: int = 50) -> None:
        """Return when so many more have been sent, and all but a few accepted."""
        goal = len(self.sent) + count
        until(lambda: len(self.sent) >= goal and self.client.outstanding <= count)

    def finish(self) -> None:
        """Publish no more; everything published must have been accepted."""
        self._stop.set()
        self._thread.join()
        self.client.close(TIMEOUT_SECONDS)
        errors = [future.exception() for future in self.futures]
        assert [error for error in errors if error is not None] == []

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        self._thread.join()
        self.client.close(0)


@pytest.mark.long
@pytest.mark.parametrize("order", ["old first", "new first", "killed"])
def test_rolling_from_one_agent_to_the_next(path: str, order: str) -> None:
    with Broker(admin=False) as broker, broker.client() as client:
        client.create_topic("readings", 1)
        drain = ("-X", f"host.drain.timeout.ms={TIMEOUT_SECONDS * 1000}")
        words = ("--bootstrap", broker.bootstrap, *drain)
        with agent(path, *words) as old, Publisher(path) as publisher:
            publisher.more()
            if order == "new first":
                with agent(path, *words, "--takeover") as new:
                    publisher.more()  # still through the old one
                    old.terminate()
                    assert ended(old) == ""
                    assert os.path.lexists(path), "a late cleanup leaves the new one's file"
                    publisher.more()
                    health = probed(partial(health_as_a_process, "--socket", path))
                    assert health.status == 0, health
                    publisher.finish()
                    new.terminate()
                    assert ended(new) == ""
            else:
                if order == "killed":
                    old.kill()
                    old.wait(TIMEOUT_SECONDS)
                    assert os.path.lexists(path)
                else:
                    old.terminate()
                    until(lambda: not os.path.lexists(path))  # and it may drain yet
                with agent(path, *words) as new:
                    publisher.more()
                    publisher.finish()
                    new.terminate()
                    assert ended(new) == ""
                assert old.wait(TIMEOUT_SECONDS) == (-9 if order == "killed" else 0)
        values = client.read_arrow("readings").column("value").to_pylist()
        assert values == publisher.sent
        assert not os.path.lexists(path)
