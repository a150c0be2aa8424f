"""Sink `http` beside a real HTTP server: bodies, order, retries, rejected rows, TLS."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.base.errors import InvalidSetting
from penstock.connect import Records, RowsRejected, SinkBatch, SinkUnavailable
from penstock.connect.errors import ConnectorFailed
from penstock.connect.http import HttpSink, HttpSinkSettings
from penstock.testing import Broker
from tests.connect.postgresql.bed import run_once
from tests.ports import free_port
from tests.security.certificates import keystore, truststore

Response = tuple[int, dict[str, str]]
OK: Response = (200, {})


class Server:
    """HTTP server that records requests. `plan` returns the response to a request's body."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.accepted: list[bytes] = []
        self.heads: list[tuple[str, str, dict[str, str]]] = []
        self.plan: Callable[[bytes], Response] = lambda body: OK
        self.port = 0
        self._lock = threading.Lock()

    def respond(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Response:
        with self._lock:
            self.heads.append((method, path, headers))
            self.bodies.append(body)
            response = self.plan(body)
            if response[0] < 300:
                self.accepted.append(body)
        return response

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/events?source=log"


def _handler(state: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = state.respond(self.command, self.path, dict(self.headers), body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            text = b"not like this" if status >= 300 else b""
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_PUT = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    state = Server()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as state:
        yield state


@contextmanager
def sink(url: str, **options: Any) -> Iterator[HttpSink]:
    made = HttpSink(HttpSinkSettings(url=url, **options), "hook")
    try:
        yield made
    finally:
        made.close()


def batch(values: Any, partitions: Sequence[int] | None = None, start: int = 0) -> SinkBatch:
    count = len(values)
    rows = pa.table(
        {
            "value": values,
            "partition": pa.array(partitions or [0] * count, pa.int32()),
            "offset": pa.array(range(start, start + count), pa.int64()),
        }
    )
    return SinkBatch(topic="t", parts=[Records("t", rows)], next_offsets={0: start + count})


def numbered(count: int) -> Any:
    return pa.array([{"n": number} for number in range(count)])


def numbers(bodies: Sequence[bytes]) -> list[int]:
    return [row["n"] for body in bodies for row in json.loads(body)]


# Bodies


def test_bodies(server: Server) -> None:
    values = pa.array([{"a": "é", "b": None}, None, {"a": None, "b": 1.5}])
    expected = [{"a": "é", "b": None}, None, {"a": None, "b": 1.5}]
    for body in ("array", "lines", "single"):
        with sink(server.url, body=body, request_rows=2) as target:
            target.write(batch(values))
    array, lines, single = server.bodies[:2], server.bodies[2:4], server.bodies[4:]
    assert [row for part in array for row in json.loads(part)] == expected
    assert [json.loads(line) for part in lines for line in part.splitlines()] == expected
    assert [json.loads(part) for part in single] == expected
    assert [len(part) for part in (array, lines, single)] == [2, 2, 3]
    assert {path for _, path, _ in server.heads} == {"/events?source=log"}


def test_values_as_they_are(server: Server) -> None:
    with sink(server.url, verbatim=True, method="PUT") as target:
        assert target.raw
        target.write(batch(pa.array([b'{"a":1.0 }', b"2"], pa.binary())))
    assert server.bodies == [b'[{"a":1.0 },2]']
    assert server.heads[0][0] == "PUT"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"bearer_token": "secret"}, "Bearer secret"),
        ({"user": "Aladdin", "password": "open sesame"}, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
        ({"headers": ("Authorization: Key 7", "X-Tag: a: b")}, "Key 7"),
    ],
)
def test_headers(server: Server, options: dict[str, Any], expected: str) -> None:
    with sink(server.url, body="lines", **options) as target:
        target.write(batch(numbered(1)))
        assert "secret" not in repr(target.settings) + str(target.plan())
        assert "sesame" not in repr(target.settings)
    headers = server.heads[0][2]
    assert headers["Authorization"] == expected
    assert headers["Content-Type"] == "application/x-ndjson"
    assert headers.get("X-Tag", "a: b") == "a: b"


def test_partitions_are_sent_in_order_and_at_once(server: Server) -> None:
    arrived = threading.Barrier(3, timeout=20)

    def plan(body: bytes) -> Response:
        first = json.loads(body)[0]["n"]
        if first < 3:  # the first request of each partition waits for those of the others
            server._lock.release()
            try:
                arrived.wait()
            finally:
                server._lock.acquire()
        return OK

    server.plan = plan
    with sink(server.url, request_rows=10, concurrency=3) as target:
        target.write(batch(numbered(300), [number % 3 for number in range(300)]))
    found = numbers(server.accepted)
    assert sorted(found) == list(range(300))
    for partition in range(3):
        mine = [number for number in found if number % 3 == partition]
        assert mine == sorted(mine)


# Retries


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_request_is_sent_again(server: Server, status: int) -> None:
    refusals = iter([(status, {}), (status, {"Retry-After": "0"})])
    server.plan = lambda body: next(refusals, OK)
    with sink(server.url) as target:
        target.write(batch(numbered(3)))
        assert target.facts() == {"requests": 3, "retries": 2}
    assert numbers(server.accepted) == [0, 1, 2]


def test_retry_after_is_waited_for(server: Server) -> None:
    refusals = iter([(429, {"Retry-After": "1"})])
    server.plan = lambda body: next(refusals, OK)
    with sink(server.url) as target:
        began = datetime.now(UTC)
        target.write(batch(numbered(1)))
        assert datetime.now(UTC) - began >= timedelta(seconds=1)


def test_a_long_pause_is_left_to_the_runner(server: Server) -> None:
    server.plan = lambda body: (503, {"Retry-After": "120"})
    with sink(server.url) as target:
        with pytest.raises(SinkUnavailable, match="status 503 not like this") as caught:
            target.write(batch(numbered(1)))
        assert caught.value.pause_seconds == 120
        at = format_datetime(datetime.now(UTC) + timedelta(seconds=300), usegmt=True)
        server.plan = lambda body: (429, {"Retry-After": at})
        with pytest.raises(SinkUnavailable) as caught:
            target.write(batch(numbered(1)))
        assert 280 < caught.value.pause_seconds <= 300
    assert len(server.bodies) == 2


def test_a_server_that_is_away() -> None:
    url = f"http://127.0.0.1:{free_port()}/"
    with sink(url, retry_seconds=0) as target:
        assert "cannot be reached" in target.problems()[0]
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            target.write(batch(numbered(1)))


def test_closed_connections_are_opened_again(server: Server) -> None:
    server.plan = lambda body: (200, {"Connection": "close"})
    with sink(server.url, body="single") as target:
        assert target.problems() == []
        target.write(batch(numbered(5)))
    assert [json.loads(body)["n"] for body in server.accepted] == [0, 1, 2, 3, 4]


# Rejected rows


@pytest.mark.parametrize("bad", [set(), {0}, {6}, {2, 3}, {0, 1, 2, 3, 4, 5, 6}])
def test_rejected_rows_are_found_and_the_others_sent_once(server: Server, bad: set[int]) -> None:
    def plan(body: bytes) -> Response:
        return (422, {}) if bad & set(numbers([body])) else OK

    server.plan = plan
    with sink(server.url) as target:
        if bad:
            with pytest.raises(RowsRejected, match="status 422 not like this") as caught:
                target.write(batch(numbered(7)))
            assert set(caught.value.rows) == bad
            assert list(caught.value.rows) == sorted(bad)
            left = numbered(7).filter(pa.array([n not in bad for n in range(7)]))
            offsets = pa.array([n for n in range(7) if n not in bad], pa.int64())
            rows = pa.table(
                {
                    "value": left,
                    "partition": pa.array([0] * len(left), pa.int32()),
                    "offset": offsets,
                }
            )
            target.write(SinkBatch(topic="t", parts=[Records("t", rows)], next_offsets={0: 7}))
        else:
            target.write(batch(numbered(7)))
        assert numbers(server.accepted) == [n for n in range(7) if n not in bad]
        target.write(batch(numbered(7)))  # a retry after an error of another batch
        assert numbers(server.accepted) == [n for n in range(7) if n not in bad]


def test_a_run_sends_each_row_once(server: Server, tmp_path: Path) -> None:
    states = iter([(422, {}), (503, {}), OK, (503, {}), (422, {}), (503, {})])

    def plan(body: bytes) -> Response:
        return OK if json.loads(body)["n"] % 3 else next(states, OK)

    server.plan = plan
    file = tmp_path / "hook.toml"
    file.write_text(
        f'[sink]\nconnector = "http"\nurl = "{server.url}"\ntopics = ["t"]\nbody = "single"\n'
        "retry_seconds = 0.0\nbatch_rows = 8\nflush_interval_seconds = 3600.0\n"
        '[errors]\ndead_letters = "t.dead"\nretry_delay_max_seconds = 0.3\n'
    )
    with Broker() as broker, broker.client() as client:
        broker.create_topic("t")
        client.write_arrow("t", pa.table({"value": [b'{"n": %d}' % n for n in range(20)]}))
        run = run_once(file, broker.bootstrap)
        dead = [
            json.loads(value)["n"] for value in client.read_arrow("t.dead")["value"].to_pylist()
        ]
    assert run.status.status.retries == 3
    assert len(dead) == 2
    assert sorted([*(json.loads(body)["n"] for body in server.accepted), *dead]) == list(range(20))
    assert (run.status.status.records, run.status.status.dead_letters) == (18, 2)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "Correct bearer_token"),
        (404, "Correct the URL and the method"),
        (301, "Set the URL it redirects to"),
    ],
)
def test_responses_that_concern_all_rows(server: Server, status: int, words: str) -> None:
    server.plan = lambda body: (status, {"Location": "http://127.0.0.1:9/"})
    with sink(server.url) as target, pytest.raises(ConnectorFailed, match=words):
        target.write(batch(numbered(4)))
    assert len(server.bodies) == 1


# Settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "ftp://host/"}, "https://host/path"),
        ({"url": "https://a:b@host/"}, "must have no user"),
        ({"url": "http://host.example/", "bearer_token": "x"}, "only to https"),
        ({"url": "https://host/", "bearer_token": "x", "user": "y"}, "either bearer_token or user"),
        ({"url": "https://host/", "headers": ("X",)}, "Name: value"),
    ],
)
def test_settings_that_are_wrong(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        HttpSinkSettings(**options)


def test_tls(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore(tmp_path))
    with running(context) as state:
        url = f"https://localhost:{state.port}/"
        with sink(url, ca_file=truststore(tmp_path), bearer_token="x") as target:
            assert target.problems() == []
            target.write(batch(numbered(3)))
        assert numbers(state.accepted) == [0, 1, 2]
        with sink(url, retry_seconds=0) as target:
            assert "TLS with https://localhost" in target.problems()[0]
            with pytest.raises(SinkUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                target.write(batch(numbered(1)))
        lost = sink(url, ca_file=str(tmp_path / "gone"))
        with lost as target, pytest.raises(ConnectorFailed, match="correct the path"):
            target.write(batch(numbered(1)))
