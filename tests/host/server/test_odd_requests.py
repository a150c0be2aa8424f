"""Odd queries, headers and bodies: the front takes what they say, or answers 4xx with a reason.

The oracles are Python's `urllib.parse` for queries and `json` for lines.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.host.port import Chunks, Completion, Verdict
from penstock.host.server.http import LINES, OCTETS
from tests.formats.drawn import EXAMPLES
from tests.host.server.peers import GateSink, serving
from tests.host.server.test_http import LOCAL, Answer, Browser, call

NUMBERS = st.one_of(
    st.integers(-2, 2**33).map(str),
    st.sampled_from(
        ["1_0", "+1", " 1", "1e3", "1.0", "0x1", "٣", "²", "01", "9" * 5_000, "\0", ""]
    ),
)
TOPICS = st.text("aé/\0%+&; ", max_size=5)
WORDS = st.one_of(
    st.tuples(st.just("partition"), NUMBERS),
    st.tuples(st.just("topic"), TOPICS),
    st.tuples(st.sampled_from(["Partition", "key", ""]), st.just("1")),
).map(lambda pair: f"{quote(pair[0])}={quote(pair[1], safe='')}")
QUERIES = st.lists(
    WORDS | st.sampled_from(["%zz=1", "partition=%FF", "topic=%FF", "topic=%ED%A0%80", "&"]),
    max_size=3,
)
TOKENS = st.sampled_from([
    b"{", b"}", b"[", b"]", b":", b",", b'"a"', b'"\\u00e9"', b'"\\x"', b'"\xff"', b"0", b"-0",
    b"01", b"1.", b"1e5", b"1e400", b"NaN", b"-Infinity", b"true", b"nul", b" ", b"\t", b"\r",
    b"\n", b'{"a":1,"a":2}', b"[[1]]", b"9" * 400, b"\xef\xbb\xbf", b"\0", b"\x0b",
])  # fmt: skip


class PlacesSink(GateSink):
    """Keeps the partition and the topic of what it accepts."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[str, int]] = []

    def accept(self, chunks: Chunks, complete: Completion) -> Verdict:
        self.places.append((chunks.topic, chunks.partition))
        return super().accept(chunks, complete)


def in_turn(examples: st.SearchStrategy[Any], sink: GateSink, check: Any) -> None:
    """Send each example to one agent and check what came of it."""
    loop = asyncio.new_event_loop()

    async def run(example: Any) -> None:
        await check(agent, example)

    serve = serving(sink, http_listener=LOCAL)
    agent = loop.run_until_complete(serve.__aenter__())
    try:
        settings(max_examples=EXAMPLES)(
            given(examples)(lambda example: loop.run_until_complete(run(example)))
        )()
    finally:
        loop.run_until_complete(serve.__aexit__(None, None, None))
        loop.close()


def refused(answer: Answer) -> bool:
    assert answer.status == 200 or 400 <= answer.status < 500, answer
    assert answer.status == 200 or answer.json["message"]
    return answer.status != 200


def test_queries_mean_what_urllib_reads() -> None:
    sink = PlacesSink()

    async def check(agent: Any, words: list[str]) -> None:
        query = "&".join(words)
        given = parse_qsl(query, keep_blank_values=True)
        names = [name for name, _ in given]
        found = dict(given)
        text = found.get("partition", "")
        digits = all(char in "0123456789" for char in text) and len(text) <= 300
        fine = set(names) <= {"topic", "partition"} and len(set(names)) == len(names)
        fine = fine and digits and (not text or int(text) < 2**31)
        fine = fine and not any(odd in query for odd in ("%FF", "%ED%A0"))
        sink.places.clear()
        answer = await call(agent, "POST", f"/v1/ingest?{query}", b"x", {"content-type": OCTETS})
        assert refused(answer) == (not fine), (query, answer)
        if fine:
            [(topic, partition)] = sink.places
            assert topic == found.get("topic", "")
            assert not text or partition == int(text)

    in_turn(QUERIES, sink, check)


def test_lines_are_json_to_python_too() -> None:
    sink = GateSink()

    def no_number(word: str) -> NoReturn:
        raise ValueError(word)

    def is_json(line: bytes) -> bool:
        try:
            json.loads(line.decode(), parse_constant=no_number, parse_int=str, parse_float=str)
        except ValueError:
            return False
        return True

    async def check(agent: Any, tokens: list[bytes]) -> None:
        body = b"".join(tokens)
        lines = [line.removesuffix(b"\r") for line in body.split(b"\n")]
        lines = [line for line in lines if line]
        sink.accepted.clear()
        answer = await call(agent, "POST", "/v1/ingest", body, {"content-type": LINES})
        assert refused(answer) == (not lines or not all(map(is_json, lines))), (body, answer)
        assert sink.accepted == ([] if answer.status != 200 else lines)

    in_turn(st.lists(TOKENS, max_size=8), sink, check)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": OCTETS, "content-encoding": "gzip"}, 415),
        ({"content-type": OCTETS, "content-encoding": "identity\r\ncontent-encoding: gzip"}, 415),
        ({"content-type": f"{OCTETS}\r\ncontent-type: {LINES}"}, 415),
        ({"content-type": f"{OCTETS}; charset=\xff"}, 200),
    ],
)
async def test_a_header_that_comes_twice_is_not_half_read(
    headers: Mapping[str, str], status: int
) -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        assert (await call(agent, "POST", "/v1/ingest", b"x", headers)).status == status
        assert sink.accepted == [b"x"] * (status == 200)


@pytest.mark.parametrize(
    "length", ["+1", "-1", "1_0", "0x1", "9" * 30, "\xd9\xa3", "1\r\ntransfer-encoding: chunked"]
)
async def test_lengths_that_are_none(length: str) -> None:
    sink = GateSink()
    async with serving(sink, http_listener=LOCAL) as agent:
        browser = await Browser.open(agent)
        head = ["POST /v1/ingest HTTP/1.1", "host: a", f"content-type: {OCTETS}"]
        head += [f"content-length: {length}", "", "x"]
        browser.writer.write("\r\n".join(head).encode("latin-1"))
        assert (await browser.reader.readline()).startswith(b"HTTP/1.1 400 ")
        await browser.close()
        assert sink.accepted == []
