"""The HTTP front: what it takes, and how it says no."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from penstock.base.errors import InvalidSetting, UnavailableError
from penstock.base.http_listener import parse_address
from penstock.client.errors import UnknownTopic
from penstock.host.port import Failed
from penstock.host.server.agent import HostAgent
from penstock.host.server.http import LINES, OCTETS
from penstock.host.server.ingest import NotJson, TooMuch, check_json, cut_lines, line_parts
from tests.host.server.peers import PATIENCE_SECONDS, GateSink, data, peer, serving, until

LOCAL = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Browser:
    """Raw HTTP/1.1 connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, agent: HostAgent, tls: ssl.SSLContext | None = None) -> Browser:
        assert agent.http is not None
        return cls(*await asyncio.open_connection(*agent.http.address, ssl=tls))

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        length: int | None = None,
    ) -> None:
        headers = {"host": "localhost", **(headers or {})}
        length = len(body) if length is None else length
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if "transfer-encoding" not in headers:
            lines.append(f"content-length: {length}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self.writer.drain()

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(head[0].split()[1]), headers, body)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def call(
    agent: HostAgent,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    browser = await Browser.open(agent, tls)
    try:
        await browser.send(method, path, body, headers)
        return await browser.answer()
    finally:
        await browser.close()


async def ingest(agent: HostAgent, body: bytes, kind: str = OCTETS, query: str = "") -> Answer:
    return await call(agent, "POST", f"/v1/ingest{query}", body, {"content-type": kind})


async def test_one_chunk() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        answer = await ingest(agent, b"\x00\n\xffpayload", query="?topic=orders&partition=1")
        assert answer.status == 200
        assert answer.json == {"accepted_chunks": 1, "accepted_events": 1}
        assert sink.accepted == [b"\x00\n\xffpayload"]
        assert sink.topics == [("orders",)]


@pytest.mark.parametrize(
    "sent", [{"host": "attacker.example:8088"}, {"origin": "http://attacker.example"}]
)
async def test_a_page_of_another_site_publishes_nothing(sent: dict[str, str]) -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL, http_hosts=("agent.internal",)) as agent:
        path, octets = "/v1/ingest?topic=t", {"content-type": OCTETS}
        answer = await call(agent, "POST", path, b"x", {**octets, **sent})
        assert (answer.status, answer.json["error"]) == (400, "invalid_request")
        assert "this listener" in answer.json["message"]
        for meant in ("agent.internal:8088", "localhost", "[::1]:8088"):
            same = {"host": meant, "origin": f"http://{meant}"}
            assert (await call(agent, "POST", path, b"x", {**octets, **same})).status == 200
        assert (await call(agent, "GET", "/v1/status", headers={"host": "x"})).status == 200
    assert sink.accepted == [b"x"] * 3


async def test_lines() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        body = b'{"a": 1}\n{"a": 2}\r\n\n\r\n{"a": 3}'
        answer = await ingest(agent, body, LINES + "; charset=utf-8")
        assert answer.json == {"accepted_chunks": 3, "accepted_events": 3}
        assert sink.accepted == [b'{"a": 1}', b'{"a": 2}', b'{"a": 3}']


async def test_many_lines_make_many_frames() -> None:
    sink = GateSink()
    sink.frame_bytes_max = 50_000
    async with serving(sink, http_listener=LOCAL) as agent:
        lines = [b"7" * (number % 30 + 1) for number in range(20_000)]
        answer = await ingest(agent, b"\n".join(lines), LINES)
        assert answer.json["accepted_chunks"] == 20_000
        assert sink.accepted == lines


async def test_the_verdict_is_waited_for() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL) as agent:
        browser = await Browser.open(agent)
        for verdict, status in (
            (Failed("no room", retryable=True, retry_after_ms=1500), 429),
            (Failed("broken", retryable=False), 422),
        ):
            await browser.send("POST", "/v1/ingest", b"one", {"content-type": OCTETS})
            await until(lambda: sink.pending)
            sink.release(verdict)
            answer = await browser.answer()
            assert answer.status == status
            assert answer.json["message"] == verdict.reason
            assert answer.json["accepted_chunks"] == 0
            assert answer.headers.get("retry-after") == ("2" if verdict.retryable else None)
        await browser.send("POST", "/v1/ingest", b"one", {"content-type": OCTETS})
        await until(lambda: sink.pending)
        sink.release()
        assert (await browser.answer()).status == 200
        await browser.close()
        assert sink.accepted == [b"one"]


async def test_a_body_accepted_in_part() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL) as agent:
        browser = await Browser.open(agent)
        await browser.send("POST", "/v1/ingest", b"1\n" * 5000, {"content-type": LINES})
        await until(lambda: len(sink.pending) == 2)
        (first, complete), sink.pending = sink.pending[0], sink.pending[1:]
        first.release()
        complete(Failed("later", retryable=True))
        sink.release()
        answer = await browser.answer()
        assert answer.status == 429
        assert answer.json["accepted_chunks"] == 5000 - 4096
        await browser.close()


@pytest.mark.parametrize(
    ("options", "body", "kind", "dimension", "limit", "value"),
    [
        ({"credit_bytes": 10_000}, b"x" * 6_000, OCTETS, "payload_bytes", 10_000, 6_000),
        ({"credit_chunks": 4096}, b"1\n" * 3000, LINES, "chunk_slots", 4096, 3000),
        ({"credit_events": 4000}, b"1\n" * 3000, LINES, "raw_events", 4000, 3000),
    ],
)
async def test_credit_runs_out(
    options: dict[str, Any], body: bytes, kind: str, dimension: str, limit: int, value: int
) -> None:
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL, retry_after_ms=30, **options) as agent:
        browser = await Browser.open(agent)
        await browser.send("POST", "/v1/ingest", body, {"content-type": kind})
        await until(lambda: sink.pending)
        answer = await ingest(agent, body, kind)
        assert answer.status == 429
        assert answer.headers["retry-after"] == "1"
        said = answer.json
        assert said["error"] == "throttling_quota_exceeded"
        assert (said["dimension"], said["limit"], said["value"]) == (dimension, limit, value)
        assert said["retry_after_ms"] == 30
        sink.release()
        assert (await browser.answer()).status == 200
        await browser.send("POST", "/v1/ingest", body, {"content-type": kind})
        await until(lambda: sink.pending)
        sink.release()
        assert (await browser.answer()).status == 200
        await browser.close()


async def test_bodies_over_the_limit() -> None:
    sink = GateSink()
    sink.frame_bytes_max = 3_000
    async with serving(sink, http_listener=LOCAL, http_body_max_bytes=5_000) as agent:
        answer = await ingest(agent, b"x" * 5_001)
        assert (answer.status, answer.json["error"]) == (413, "content_too_large")
        assert "5001" in answer.json["message"]
        assert "5000" in answer.json["message"]
        assert answer.headers["connection"] == "close"
        assert (await ingest(agent, b"x" * 3_001)).status == 413
        assert (await ingest(agent, b"x" * 3_000)).status == 200
        assert (await ingest(agent, b"1" * 3_001, LINES)).status == 413
        assert (await ingest(agent, b"1" * 2_400 + b"\n" + b"1" * 2_400, LINES)).status == 200
        browser = await Browser.open(agent)  # announced only
        await browser.send("POST", "/v1/ingest", b"", {"content-type": OCTETS}, length=1 << 40)
        assert (await browser.answer()).status == 413
        await browser.close()


async def test_a_body_in_pieces() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL, http_body_max_bytes=1000) as agent:
        browser = await Browser.open(agent)
        pieces = {"content-type": OCTETS, "transfer-encoding": "chunked"}
        await browser.send("POST", "/v1/ingest", b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", pieces)
        assert (await browser.answer()).status == 200
        assert sink.accepted == [b"abcde"]
        piece = b"1f4\r\n" + b"x" * 500 + b"\r\n"
        await browser.send("POST", "/v1/ingest", piece * 3 + b"0\r\n\r\n", pieces)
        assert (await browser.answer()).status == 413
        await browser.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "error", "named"),
    [
        ("POST", "", {"content-type": "text/plain"}, 415, "unsupported_media_type", "text/plain"),
        ("POST", "", {}, 415, "unsupported_media_type", OCTETS),
        ("POST", "", {"content-type": OCTETS, "content-encoding": "gzip"}, 415,
         "unsupported_media_type", "gzip"),
        ("POST", "?partition=x", {"content-type": OCTETS}, 400, "invalid_request", "'x'"),
        ("POST", "?partition=-1", {"content-type": OCTETS}, 400, "invalid_request", "-1"),
        ("POST", "?partition=2147483648", {"content-type": OCTETS}, 400, "invalid_request",
         "2147483647"),
        ("POST", "", {"content-type": OCTETS}, 400, "invalid_request", "empty"),
        ("POST", "", {"content-type": LINES}, 400, "invalid_request", "empty"),
        ("GET", "", {}, 405, "method_not_allowed", "GET /v1/ingest"),
        ("DELETE", "/../../livez", {}, 404, "not_found", "DELETE"),
        ("GET", "/elsewhere", {}, 404, "not_found", "/elsewhere"),
    ],
)  # fmt: skip
async def test_malformed_requests(
    method: str, path: str, headers: dict[str, str], status: int, error: str, named: str
) -> None:
    async with serving(http_listener=LOCAL) as agent:
        answer = await call(agent, method, f"/v1/ingest{path}", headers=headers)
        assert (answer.status, answer.json["error"]) == (status, error)
        assert named in answer.json["message"]
        assert answer.headers.get("allow") == ("post" if status == 405 else None)
        assert (await ingest(agent, b"fine")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "named"),
    [
        ("POST", "/v1/ingest?key=abc", "unknown parameter 'key'; known: topic, part"),
        ("POST", "/v1/ingest?topic=a&topic=b", "'topic': given more than once"),
        ("GET", "/livez?verbose", "'verbose'; this path takes no parameters"),
        ("GET", "/readyz?a=1", "unknown parameter 'a'"),
        ("GET", "/metrics?name=x", "unknown parameter 'name'"),
        ("GET", "/v1/status?a=1", "unknown parameter 'a'"),
    ],
)
async def test_parameters_that_are_not_known(method: str, path: str, named: str) -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        answer = await call(agent, method, path, b"fine", {"content-type": OCTETS})
        assert answer.status == 400
        assert named in answer.json["message"]
        assert sink.accepted == []


async def test_partitions_take_turns() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL) as agent:
        browser = await Browser.open(agent)
        seen = []
        for _ in range(6):
            await browser.send("POST", "/v1/ingest?topic=t", b"x", {"content-type": OCTETS})
            await until(lambda: sink.pending)
            chunks = sink.pending[0][0]
            seen.append(chunks.partition)
            assert chunks.log_sequence == -1
            sink.release()
            assert (await browser.answer()).status == 200
        assert sorted(seen) == [0, 0, 1, 1, 2, 2]
        assert sink.topics == [("t",)]
        await browser.close()


async def test_a_topic_that_the_sink_does_not_have() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        for error, status, name in (
            (UnavailableError("no broker answers"), 503, "sink_unavailable"),
            (UnknownTopic("topic t"), 404, "unknown_topic_or_partition"),
            (InvalidSetting("topic", "t", "unknown"), 422, "sink_refused"),
        ):
            sink.error = error
            answer = await ingest(agent, b"x", query="?topic=t")
            assert (answer.status, answer.json["error"]) == (status, name)
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
        sink.error = RuntimeError("a bug")
        answer = await ingest(agent, b"x", query="?topic=t")
        assert answer.status == 500
        assert "a bug" not in answer.body.decode()
        sink.error = None
        assert (await ingest(agent, b"x", query="?topic=t")).status == 200


async def test_a_sink_that_does_not_answer() -> None:
    """Every one of many requests is answered in time; their credit stays with the sink."""
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL, http_timeout_ms=1_000) as agent:
        answers = await asyncio.gather(*(ingest(agent, b"payload") for _ in range(40)))
        assert {answer.status for answer in answers} == {503}
        for answer in answers:
            assert answer.json["error"] == "sink_unavailable"
            assert "within 1000 ms: no answer from a gate; it may still" in answer.json["message"]
            assert answer.headers["retry-after"] == "1"
        assert agent.http is not None
        window = agent.http._producer.window
        assert window.taken == (40, 40, 40 * len(b"payload"))
        sink.release()
        await until(lambda: window.taken == (0, 0, 0))
        assert sink.accepted == [b"payload"] * 40


async def test_a_sink_that_does_not_say_what_it_knows_of_a_topic() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL, http_timeout_ms=200) as agent:
        sink.introduction = asyncio.Event()
        paths = [f"?topic={name}" for name in "ab" for _ in range(20)]
        answers = await asyncio.gather(*(ingest(agent, b"x", query=path) for path in paths))
        assert {answer.status for answer in answers} == {503}
        assert all("no answer from a gate" in answer.json["message"] for answer in answers)
        assert sorted(sink.topics) == [("a",), ("b",)], "asked once for all"
        assert agent.http is not None
        assert agent.http._producer.window.taken == (0, 0, 0)
        sink.introduction.set()
        await until(lambda: not agent.http or not agent.http._producer._asking)
        assert (await ingest(agent, b"x", query="?topic=a")).status == 200
        assert sink.accepted == [b"x"]


async def test_a_sink_that_does_not_accept_is_not_ready() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:

        async def ready() -> tuple[int, str]:
            answer = await call(agent, "GET", "/readyz")
            return answer.status, answer.json.get("cause", "")

        for error, said in (
            (UnavailableError("the disk is full"), "the disk is full"),
            (RuntimeError("a bug"), "the gate sink could not be checked; the agent's log has"),
        ):
            sink.error = error
            await until(lambda said=said: said in agent.connections.sink_trouble)  # type: ignore[misc]
            status, cause = await ready()
            assert status == 503
            assert said in cause
            assert (await call(agent, "GET", "/livez")).status == 200
            metrics = (await call(agent, "GET", "/metrics")).body.decode()
            assert "penstock_host_sink_accepts 0.0" in metrics
        sink.error, sink.introduction = None, asyncio.Event()
        await until(lambda: "no answer from a gate" in agent.connections.sink_trouble)
        sink.introduction.set()
        await until(lambda: not agent.connections.sink_trouble)
        assert await ready() == (200, "")
        assert (await call(agent, "GET", "/v1/status")).json["sink"]["trouble"] == ""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (b"nope", 1),
        (b'{"a":1}\n\n\r\n{"a":}\n{"b":', 4),
        (b'{"a":1}\n{"a":1}}\n', 2),
        (b'{"a":1}\n{"a":\n1}\n', 2),
        (b"1 2\n3", 1),
        (b"1 2\n[\n]\n", 1),
        (b"1\n1 2\n   \n", 2),
        (b"1\n  \n2", 2),
        (b'1\n"\xff"', 2),
        (b'1\n"a\rb"', 2),
        (b"\xef\xbb\xbf1", 1),
        (b"1\nNaN", 2),
        (b"1\n" + b"[" * 5_000 + b"]" * 5_000, 2),
    ],
)
async def test_lines_that_are_no_json(body: bytes, line: int) -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        answer = await ingest(agent, body, LINES)
        assert (answer.status, answer.json["error"]) == (400, "invalid_json")
        assert answer.json["line"] == line
        assert answer.json["message"].startswith(f"line {line} is no JSON: ")
        assert (await ingest(agent, body)).status == 200, "as bytes it may be anything"
        assert sink.accepted == [body]


@pytest.mark.parametrize("seed", range(300))
def test_checking_all_at_once_is_checking_each(seed: int) -> None:
    dice = random.Random(seed)
    tokens = [b"1", b"[", b"]", b"{}", b'"a"', b",", b" ", b"\t", b"\r", b"\n", b"\n", b"\r\n"]
    body = b"".join(dice.choices(tokens, k=dice.randrange(12)))
    wrong = [
        number
        for number, line in enumerate(body.split(b"\n"), 1)
        if (text := line.removesuffix(b"\r")) and not is_json(text)
    ]
    parts = list(line_parts(memoryview(body), 100))
    if wrong:
        with pytest.raises(NotJson) as caught:
            check_json(memoryview(body), parts)
        assert caught.value.line == wrong[0]
    else:
        check_json(memoryview(body), parts)


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


async def test_a_client_that_leaves_in_the_middle() -> None:
    async with serving(http_listener=LOCAL, credit_bytes=10_000) as agent:
        browser = await Browser.open(agent)
        await browser.send(
            "POST", "/v1/ingest", b"x" * 9_000, {"content-type": OCTETS}, length=9_500
        )
        assert agent.http is not None
        await until(lambda: agent.http is not None and agent.http.metrics.in_flight)
        await until(lambda: agent.http and agent.http._producer.window.available[2] < 1_001)
        await browser.close()
        await until(lambda: agent.http is not None and not agent.http.metrics.in_flight)
        assert (await ingest(agent, b"x" * 9_000)).status == 200


async def test_health_status_and_metrics() -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent, peer(agent, client_name="till") as one:
        await one.send(data(0, b"12345"))
        await one.header()
        await ingest(agent, b"x")
        assert (await call(agent, "GET", "/livez")).status == 200
        assert (await call(agent, "GET", "/readyz")).status == 200
        status = (await call(agent, "GET", "/v1/status")).json
        assert status["state"] == "serving"
        assert status["socket"] == agent.settings.socket_path
        assert status["connections"]["open"] == 1
        assert status["accepted"] == {"chunks": 1, "events": 1, "bytes": 5}
        (producer,) = status["producers"]
        assert producer["name"] == "till"
        assert producer["credit_left"] == producer["credit"]
        text = (await call(agent, "GET", "/metrics")).body.decode()
        assert "penstock_host_connections 1.0" in text
        assert "penstock_host_accepted_bytes_total 5.0" in text
        assert 'penstock_host_http_requests_total{status="200"} 1.0' in text
        assert 'penstock_host_credit_in_use{dimension="chunks"} 0.0' in text


async def test_draining() -> None:
    sink = GateSink(open_=False)
    async with serving(sink, http_listener=LOCAL, drain_timeout_ms=60_000) as agent:
        waiting = await Browser.open(agent)
        await waiting.send("POST", "/v1/ingest", b"x", {"content-type": OCTETS})
        await until(lambda: sink.pending)
        stopping = asyncio.create_task(agent.stop())
        await until(lambda: agent.connections.draining)
        assert (await call(agent, "GET", "/livez")).status == 200
        assert (await call(agent, "GET", "/readyz")).status == 503
        status = (await call(agent, "GET", "/v1/status")).json
        assert status["state"] == "draining"
        assert 0 < status["drain_left_ms"] <= 60_000
        answer = await ingest(agent, b"y")
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        sink.release()
        assert (await waiting.answer()).status == 200
        await waiting.close()
        await stopping
    assert sink.accepted == [b"x"]


async def test_a_port_that_is_taken() -> None:
    sink = GateSink()
    async with serving(http_listener=LOCAL) as agent:
        assert agent.http is not None
        taken = f"127.0.0.1:{agent.http.address[1]}"
        with pytest.raises(OSError, match="in use"):
            async with serving(sink, http_listener=taken):
                pass
    assert sink.stopped_after is not None


async def test_takeover_of_the_port() -> None:
    old_sink, new_sink = GateSink(), GateSink()
    async with serving(old_sink, http_listener=LOCAL, socket_takeover=True) as old:
        assert old.http is not None
        place = f"127.0.0.1:{old.http.address[1]}"
        settings = dataclasses.replace(old.settings, http_listener=place)
        async with serving(new_sink, settings=settings) as new:
            await old.stop()
            for _ in range(20):
                assert (await ingest(new, b"x")).status == 200
    assert new_sink.accepted == [b"x"] * 20
    assert old_sink.accepted == []


@pytest.mark.parametrize("text", ["localhost", ":80", "host:", "host:65536", "host:-1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"host\.http\.listener"):
        parse_address(text, setting="host.http.listener")


def test_addresses() -> None:
    assert parse_address("[::1]:80", setting="host.http.listener") == ("::1", 80)
    assert parse_address("localhost:0", setting="host.http.listener") == ("localhost", 0)


# Cutting, beside the plain way to do it


def plainly(body: bytes) -> list[bytes]:
    lines = body.split(b"\n")
    return [line for line in (text.removesuffix(b"\r") for text in lines) if line]


@pytest.mark.parametrize("seed", range(200))
def test_cutting_is_splitting(seed: int) -> None:
    dice = random.Random(seed)
    body = bytes(dice.choices(b"ab\r\n\n", k=dice.randrange(40)))
    offsets, lengths = cut_lines(memoryview(body))
    lines = [body[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
    assert lines == plainly(body)
    assert offsets.dtype == lengths.dtype == np.uint32
    most = max(map(len, lines), default=1) + dice.randrange(5)
    found = []
    for part in line_parts(memoryview(body), most):
        assert part.offsets is not None
        assert 0 < part.end - part.start <= most
        stretch = body[part.start : part.end]
        found += [
            stretch[at : at + size] for at, size in zip(part.offsets, part.lengths, strict=True)
        ]
    assert found == lines


def test_a_line_too_long() -> None:
    with pytest.raises(TooMuch, match="11 bytes exceeds the limit of 10 bytes per chunk"):
        list(line_parts(memoryview(b"short\n" + b"x" * 11), 10))
