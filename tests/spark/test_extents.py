"""The admin address as a source of extents, over a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from penstock.base.ids import TopicPartition
from penstock.spark.errors import ExtentsUnavailable, InvalidOption
from penstock.spark.reads.extents import HttpExtents

AT = TopicPartition("flights.dead-letters", 3)
ANSWER = {
    "topic": AT.topic,
    "topic_id": "7f",
    "partition": 3,
    "log_start_offset": 4,
    "extents": [
        {"url": "file:///data/a%20b/0.log", "position": 61, "size_bytes": 900, "base_offset": 10,
         "next_offset": 30, "leader_epoch": 2, "max_timestamp": 1},
        {"url": "s3://bucket/0.log", "position": 0, "size_bytes": 100, "base_offset": 30,
         "next_offset": 31, "leader_epoch": 2, "max_timestamp": 1},
    ],
}  # fmt: skip


class Server:
    def __init__(self) -> None:
        self.status = 200
        self.statuses: list[int] = []
        """Of the next answers; `status` is that of the others."""
        self.body: bytes = json.dumps(ANSWER).encode()
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.paths.append(self.path)
                status = outer.statuses.pop(0) if outer.statuses else outer.status
                self.send_response(status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever)
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


def test_an_answer_is_read(server: Server) -> None:
    source = HttpExtents(server.url)
    found = source.extents(AT, 10, 31)
    source.close()
    assert (found.topic_id, found.log_start_offset, found.size_bytes) == ("7f", 4, 1_000)
    assert [extent.key for extent in found.extents] == ["/data/a b/0.log", ""]
    assert found.aborted == ()
    path = "/v1/topics/flights.dead-letters/partitions/3/extents?start=10&end=31&isolation="
    assert server.paths == [f"{path}read_uncommitted"]


def test_aborted_transactions_are_asked_for(server: Server) -> None:
    server.body = json.dumps({**ANSWER, "aborted": [[7, 2, 15], [9, 20, 22]]}).encode()
    source = HttpExtents(server.url, "read_committed")
    assert source.extents(AT, 10, 31).aborted == ((7, 2, 15), (9, 20, 22))
    source.close()
    assert server.paths[0].endswith("&isolation=read_committed")


def test_a_rejection_has_the_response_of_the_broker(server: Server) -> None:
    server.status = 403
    server.body = json.dumps({"error": "topic_authorization_failed", "message": "no"}).encode()
    source = HttpExtents(server.url)
    with pytest.raises(ExtentsUnavailable, match="403 topic_authorization_failed: no"):
        source.extents(AT, 0, 31)
    source.close()


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"<html>",
        b'{"topic_id": 1, "log_start_offset": "x"}',
        json.dumps({**ANSWER, "aborted": [[7]]}).encode(),
    ],
)
def test_another_form_is_no_answer(server: Server, body: bytes) -> None:
    server.body = body
    source = HttpExtents(server.url)
    with pytest.raises(ExtentsUnavailable, match="the response has invalid extents"):
        source.extents(AT, 0, 31)
    source.close()


@pytest.mark.parametrize("status", [421, 503, 500])
def test_brokers_are_asked_until_one_leads(server: Server, status: int) -> None:
    server.statuses = [status, status]
    source = HttpExtents(f"http://127.0.0.1:9,{server.url}")
    assert source.extents(AT, 10, 31).size_bytes == 1_000
    source.close()
    assert len(server.paths) == 3


@pytest.mark.parametrize("status", [421, 503, 416])
def test_without_a_leader_there_are_no_extents(server: Server, status: int) -> None:
    """The range is fetched from its leader then; only the first range waits."""
    server.status = status
    source = HttpExtents(server.url, leader_seconds=0.2)
    assert source.extents(AT, 10, 31).extents == ()
    asked = len(server.paths)
    assert (asked > 1) == (status != 416)
    assert source.extents(AT, 10, 31).extents == ()
    assert len(server.paths) == asked + 1
    server.status = 200
    assert source.extents(AT, 10, 31).size_bytes == 1_000
    source.close()


def test_brokers_that_answered_before_may_be_away(server: Server) -> None:
    source = HttpExtents(server.url, timeout_seconds=0.1)
    assert source.extents(AT, 10, 31).size_bytes == 1_000
    server.http.shutdown()
    server.http.server_close()
    source.close()
    assert source.extents(AT, 10, 31).extents == ()


def test_an_unreachable_address_is_reported() -> None:
    with pytest.raises(ExtentsUnavailable, match="cannot be reached"):
        HttpExtents("http://127.0.0.1:9", timeout_seconds=0.1).extents(AT, 0, 1)


@pytest.mark.parametrize("url", ["localhost:9644", "ftp://h", "http://"])
def test_urls(url: str) -> None:
    with pytest.raises(InvalidOption, match=r"penstock\.admin\.url"):
        HttpExtents(url)
