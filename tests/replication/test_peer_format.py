"""Messages between brokers survive encoding, and malformed ones are rejected."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.replication.chain import Link
from penstock.replication.messages import (
    Ack,
    Append,
    AskChain,
    Fence,
    FenceAnswer,
    Fenced,
    Join,
    JoinFirst,
    LogEnd,
    LogStart,
    Position,
)
from penstock.replication.peer_format import (
    AskCopy,
    Begun,
    CopyAnswer,
    ElectUncleanly,
    GiveTo,
    Greeting,
    HandOver,
    PartitionKey,
    Read,
    ReadAnswer,
    Refusal,
    Row,
    decode_greeting,
    decode_rows,
    encode_greeting,
    encode_refusal,
    encode_row,
    gather,
)
from penstock.wire.frames import HEADER_BYTES_MAX, MalformedFrame

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
CHAINS = st.lists(st.builds(Link, INT, LONG), min_size=1, max_size=5).map(tuple)
PLAIN: list[st.SearchStrategy[Any]] = [
    st.builds(Fence, INT, INT),
    st.builds(FenceAnswer, INT, LONG, LONG, LONG, INT),
    st.builds(Fenced, INT, INT),
    st.builds(Join, INT, CHAINS),
    st.builds(Position, INT, INT, LONG, LONG, st.booleans()),
    st.builds(JoinFirst, INT, INT, LONG),
    st.builds(Ack, INT, INT, LONG, LONG),
    st.builds(LogEnd, INT, INT, LONG, LONG),
    st.builds(Read, INT, INT, LONG, LONG),
    st.builds(HandOver, INT),
    st.builds(AskCopy, LONG, LONG),
    st.builds(GiveTo, INT, INT),
    st.builds(Begun, INT, INT, LONG, LONG),
    st.builds(ElectUncleanly, INT),
    st.builds(AskChain, INT, INT, LONG, INT),
]
WITH_DATA: list[st.SearchStrategy[Any]] = [
    st.builds(Append, INT, INT, LONG, LONG, LONG),
    st.builds(ReadAnswer, INT, INT, LONG, LONG),
    st.builds(CopyAnswer, LONG, LONG),
    st.builds(LogStart, INT, INT, LONG),
]
KEYS = st.builds(PartitionKey, st.binary(min_size=16, max_size=16), INT)
ROWS = st.lists(
    st.tuples(KEYS, st.one_of(PLAIN), st.just(b""))
    | st.tuples(KEYS, st.one_of(WITH_DATA), st.binary(max_size=20)),
    max_size=6,
)


def encoded(rows: list[tuple[PartitionKey, Any, bytes]]) -> tuple[memoryview, memoryview]:
    header = b"".join([encode_row(key, said, len(data)) for key, said, data in rows])
    return memoryview(header), memoryview(b"".join([data for _, _, data in rows]))


@given(ROWS)
def test_rows_come_as_they_were_sent(rows: list[tuple[PartitionKey, Any, bytes]]) -> None:
    found = list(decode_rows(*encoded(rows)))
    assert [(row.key, row.message, bytes(row.data)) for row in found] == rows
    assert [type(row.message) for row in found] == [type(said) for _, said, _ in rows]


@given(ROWS, st.data())
def test_what_is_cut_or_too_much_is_refused(
    rows: list[tuple[PartitionKey, Any, bytes]], data: st.DataObject
) -> None:
    header, payload = encoded(rows)
    with pytest.raises(MalformedFrame, match="of a payload"):
        list(decode_rows(header, memoryview(bytes(payload) + b"x")))
    if not rows:
        return
    ends = set(itertools.accumulate(len(encode_row(key, said)) for key, said, _ in rows))
    cut = data.draw(st.integers(1, len(header) - 1).filter(lambda at: at not in ends))
    with pytest.raises(MalformedFrame):
        list(decode_rows(header[:cut], payload))


@given(st.binary(max_size=120), st.binary(max_size=40))
def test_nonsense_does_no_worse_than_an_error(header: bytes, payload: bytes) -> None:
    def read() -> Iterator[Row]:
        yield from decode_rows(memoryview(header), memoryview(payload))

    try:
        for row in read():
            assert len(row.data) <= len(payload)
    except MalformedFrame:
        return


@pytest.mark.parametrize("count", [0, 5_000])
def test_a_chain_has_links_and_not_too_many(count: int) -> None:
    row = encode_row(PartitionKey(bytes(16), 0), Join(3, (Link(1, 0),)))
    header = bytearray(row[:-14] + bytes(12 * count))
    header[25:27] = count.to_bytes(2, "big")
    with pytest.raises(MalformedFrame, match=f"a chain of {count} epochs"):
        list(decode_rows(memoryview(header), memoryview(b"")))


VERSIONS = st.integers(0, 9)


@given(INT, st.uuids(), st.text(max_size=60), st.integers(0, 2**32 - 1), VERSIONS, VERSIONS)
def test_greetings(
    broker_id: int, incarnation: UUID, cluster_id: str, frame_bytes: int, oldest: int, newest: int
) -> None:
    nonce = bytes(range(32)) if newest > 1 else b""
    greeting = Greeting(broker_id, incarnation, cluster_id, frame_bytes, oldest, newest, nonce)
    header = encode_greeting(greeting)
    assert decode_greeting(memoryview(header)) == greeting
    assert decode_greeting(memoryview(header + b"of a later version")) == greeting
    first = memoryview(header)[: len(header) - 2 - len(nonce)]  # as the first version has it
    if oldest < 2:
        assert decode_greeting(first) == greeting._replace(newest=oldest, nonce=b"")
    cut_off = [*range(len(first)), *range(len(first) + 2, len(header))]
    for size in cut_off:
        with pytest.raises(MalformedFrame):
            decode_greeting(memoryview(header)[:size])


def test_a_refusal_says_why() -> None:
    assert decode_greeting(memoryview(encode_refusal("no, ü"))) == Refusal("no, ü")
    assert len(encode_refusal("x" * 100_000)) == HEADER_BYTES_MAX


@given(
    st.lists(st.tuples(st.integers(1, 30_000).map(bytes), st.integers(0, 100_000)), max_size=20),
    st.integers(140_000, 300_000),
)
def test_frames_are_filled_in_order(rows: list[tuple[bytes, int]], limit: int) -> None:
    frames = list(gather(rows, frame_bytes_max=limit))
    assert [place for frame in frames for place in frame] == list(range(len(rows)))
    for frame in frames:
        header = sum(len(rows[place][0]) for place in frame)
        assert header <= HEADER_BYTES_MAX
        assert header + sum(rows[place][1] for place in frame) <= limit
    for before, after in itertools.pairwise(frames):
        together = [*before, after[0]]
        header = sum(len(rows[place][0]) for place in together)
        assert header > HEADER_BYTES_MAX or (
            header + sum(rows[place][1] for place in together) > limit
        )
