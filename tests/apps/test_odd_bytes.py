"""Bytes of any kind go through `produce` and `consume` unchanged; librdkafka is the oracle.

Words of a command line that are no UTF-8 come as Python has them: with half surrogates.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.cli import main
from penstock.apps.client.session import BadInput
from penstock.apps.host.send import LINE_BYTES_MAX, cut
from penstock.apps.log.redrive import LETTER_PREFIX, dead_letters_of
from tests.apps.conftest import Run
from tests.formats.drawn import drawn

MakeTopic = Callable[..., str]
BYTES = st.binary(max_size=12) | st.text("aé\n\r\t\0%\\=,\x85\u2028", max_size=6).map(str.encode)
RECORDS = st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=4)
BETWEEN, AFTER = b"\xff<k>", b"\xfe<r>"
WORDS = {name: os.fsdecode(text) for name, text in (("-K", BETWEEN), ("-D", AFTER))}


def run_bytes(monkeypatch: pytest.MonkeyPatch, words: list[str], stdin: bytes = b"") -> bytes:
    out = io.TextIOWrapper(io.BytesIO())
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        patched.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit) as ended:
            main(words)
        out.flush()
    assert not ended.value.code
    return out.detach().getvalue()


def stored(bootstrap: str, topic: str, count: int) -> list[tuple[bytes, bytes, object]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [consumer.poll(20) for _ in range(count)]
    consumer.close()
    assert all(message is not None and not message.error() for message in found)
    return [(message.key(), message.value(), message.headers()) for message in found]


def test_what_is_produced_is_stored_and_printed(
    monkeypatch: pytest.MonkeyPatch, bootstrap: str, topic: MakeTopic
) -> None:
    records = [record for records in drawn(RECORDS) for record in records]
    records = [
        record
        for record in records
        if BETWEEN[:1] not in b"".join(record) and AFTER[:1] not in b"".join(record)
    ]
    name, client = topic(), ["-b", bootstrap]
    text = b"".join(key + BETWEEN + value + AFTER for key, value in records)
    header = os.fsdecode(b"h=\xff")
    words = ["produce", name, "-K", WORDS["-K"], "-D", WORDS["-D"], "-H", header]
    run_bytes(monkeypatch, [*client, *words], text)
    expected = [(key, value, [("h", b"\xff")]) for key, value in records]
    assert stored(bootstrap, name, len(records)) == expected

    layout = "%k" + WORDS["-K"] + "%s" + WORDS["-D"]
    printed = run_bytes(monkeypatch, [*client, "consume", name, "-e", "-q", "-f", layout])
    assert printed == text
    sized = run_bytes(monkeypatch, [*client, "consume", name, "-e", "-q", "-f", "%K %S %k%s\\n"])
    read = io.BytesIO(sized)
    for key, value in records:
        sizes = [int(b"".join(iter(lambda: read.read(1), b" "))) for _ in range(2)]
        assert [read.read(size) for size in sizes] == [key, value]
        assert read.read(1) == b"\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consume", "\udcff"), "topic = '\\udcff': must be a text that UTF-8 can encode"),
        (("produce", "{topic}", "-H", "\udcff=x"), "'\\udcff' is not UTF-8"),
        (("quota", "set", "producer_byte_rate=1", "--user", "\udcff"), "'\\udcff' is not UTF-8"),
        (("consume", "{topic}", "-e", "-o", "²"), "offset '²': must be beginning, end"),
        (("consume", "{topic}", "-e", "-o", "9" * 5_000), "must be beginning, end"),
        (("topic", "trim-prefix", "{topic}", "-o", "1_0"), "--offset 1_0: must be a whole number"),
        (("topic", "list", "-X", "request.timeout.ms=²"), "must be milliseconds, from 1 to"),
        (("produce", "{topic}", "--rate", "nan"), "'nan' is not a finite number"),
        (("config", "describe", "broker", "9" * 5_000), "must be a broker id"),
    ],
)  # fmt: skip
def test_odd_words_are_one_line(
    run: Run, topic: MakeTopic, words: tuple[str, ...], said: str
) -> None:
    name = topic()
    ran = run(*(word.replace("{topic}", name) for word in words), stdin="x\n")
    assert ran.status in (1, 2)
    assert said in ran.err
    assert "Traceback" not in ran.err


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"\r\n", b"\0", b"\xff"]), max_size=9))
def test_lines_that_are_sent_end_once(pieces: list[bytes]) -> None:
    text = b"".join(pieces)
    *lines, last = text.split(b"\n")
    lines += [last] if last else []
    sent = [line for batch in cut(io.BytesIO(text), 2) for line in batch]
    assert sent == [line.removesuffix(b"\r") for line in lines]


def test_a_line_that_no_chunk_can_hold_is_not_cut_in_two() -> None:
    long = b"x" * LINE_BYTES_MAX
    assert list(cut(io.BytesIO(long), 2)) == [[long]]
    with pytest.raises(BadInput, match="a line is longer than 8388608 bytes"):
        list(cut(io.BytesIO(long + b"xx"), 2))


@pytest.mark.parametrize("number", ["9" * 5_000, "٣", "²", "-1", "1_0", ""])
def test_dead_letters_without_an_origin_are_ignored(number: str) -> None:
    place = {"topic": "t", "group": "g", "partition": "0", "offset": number}
    headers = [
        {"key": LETTER_PREFIX + name, "value": text.encode()} for name, text in place.items()
    ]
    row = {"partition": 0, "offset": 0, "timestamp": 0, "key": None, "value": b"x"}
    assert list(dead_letters_of(pa.Table.from_pylist([{**row, "headers": headers}]))) == []
