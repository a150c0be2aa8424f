"""Dead letters as columns: copied, skipped and too large records."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.broker.share.dead_letter_records import (
    PREFIX,
    DeadLetters,
    Read,
    Source,
    Writing,
    dead_letters,
)
from penstock.broker.share.values import Cause, Undeliverable
from penstock.records import columnar
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.records.transactions import AbortedTransaction

SOURCE = Source(group="g/1", topic="orders", partition=3)
WRITING = Writing(now_ms=99, batch_bytes_max=1 << 20, producer_id=7, base_sequence=40)


def log(rows: list[dict[str, Any]], *, base: int = 10, **options: Any) -> bytes:
    """Make a log of these records from offset `base` on, two to a batch."""
    table = pa.Table.from_pylist(
        rows,
        schema=pa.schema([
            ("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64()),
            ("headers", HEADERS_TYPE),
        ]),
    )  # fmt: skip
    batches = columnar.encode_batches(
        table, now_ms=5, base_offset=base, records_per_batch=2, **options
    )
    return b"".join(batch.data for batch in batches)


def row(number: int, headers: int = 0) -> dict[str, Any]:
    pairs = [{"key": f"h{at}", "value": None if at else b"x"} for at in range(headers)]
    return {
        "key": None if number % 3 == 0 else b"k%d" % number,
        "value": None if number % 4 == 0 else b"v%d" % number,
        "timestamp": 1000 + number,
        "headers": pairs,
    }


def read_back(letters: DeadLetters) -> list[dict[str, Any]]:
    data = b"".join(batch.data for batch in letters.batches)
    return columnar.decode_batches(data).to_pylist() if data else []


def own(number: int, offset: int, deliveries: int, text: str) -> list[tuple[str, bytes]]:
    return [
        (PREFIX + "topic", b"orders"), (PREFIX + "partition", b"3"),
        (PREFIX + "offset", b"%d" % offset), (PREFIX + "timestamp", b"%d" % (1000 + number)),
        (PREFIX + "group", b"g/1"), (PREFIX + "delivery.count", b"%d" % deliveries),
        (PREFIX + "message", text.encode()),
    ]  # fmt: skip


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4),
    st.booleans(),
)
def test_dead_letters_are_records_with_position_and_cause(
    headers: list[int], cuts: list[tuple[int, int]], copies: bool
) -> None:
    rows = [row(number, count) for number, count in enumerate(headers)]
    runs, at = [], 10
    for index, (gap, count) in enumerate(cuts):
        cause = Cause.REJECTED if index % 2 else Cause.DELIVERIES
        runs.append(Undeliverable(at + gap, at + gap + count - 1, index + 1, cause))
        at += gap + count
    end = 10 + len(rows)
    read = Read(data=log(rows), begin=runs[0].first, end=max(end, runs[0].first + 1))
    letters = dead_letters(read, runs, replace(SOURCE, copies=copies), WRITING)
    wanted = []
    for run in runs:
        for offset in range(run.first, min(run.last, end - 1) + 1):
            one = rows[offset - 10]
            text = {
                Cause.REJECTED: "Offset rejected by client.",
                Cause.DELIVERIES: "Offset delivery count exceeded the threshold.",
            }[run.cause]
            theirs = [(pair["key"], pair["value"]) for pair in one["headers"]]
            mine = own(offset - 10, offset, run.deliveries, text)
            wanted.append(
                (one["key"], one["value"], theirs + mine) if copies else (None, None, mine)
            )
    found = [
        (
            letter["key"],
            letter["value"],
            [(pair["key"], pair["value"]) for pair in letter["headers"]],
        )
        for letter in read_back(letters)
    ]
    assert found == wanted
    assert sum(letters.written.values()) == len(wanted)
    done = [at for resolved in letters.done for at in range(resolved.first, resolved.last + 1)]
    asked = [at for run in runs for at in range(run.first, run.last + 1) if at < read.end]
    assert done == asked
    assert letters.deleted == len(asked) - len(wanted)
    for batch in letters.batches:
        assert batch.header.producer_id == 7
        assert batch.header.base_timestamp == 99


def test_what_is_deleted_or_aborted_is_counted_and_gets_none() -> None:
    rows = [row(number) for number in range(1, 3)]
    data = log(rows, base=10) + log(rows, base=14, producer_id=5, producer_epoch=0,
                                    base_sequence=0, transactional=True)  # fmt: skip
    runs = [Undeliverable(11, 15, 2, Cause.REJECTED)]
    aborted = [AbortedTransaction(5, 14, 16, 17)]
    letters = dead_letters(
        Read(data=data, begin=11, end=16, aborted=aborted), runs, SOURCE, WRITING
    )
    assert [letter["value"] for letter in read_back(letters)] == [b"v2"]
    assert (letters.deleted, letters.aborted, letters.written[Cause.REJECTED]) == (2, 2, 1)
    assert list(letters.done) == runs
    letters = dead_letters(Read(data=data, begin=11, end=16), runs, SOURCE, WRITING)
    assert (letters.deleted, letters.aborted, letters.written[Cause.REJECTED]) == (2, 0, 3)


def test_too_large_dead_letters_wait_without_delaying_others() -> None:
    rows = [row(1), row(2), row(3)]
    runs = [Undeliverable(10, 12, 1, Cause.REJECTED)]
    small = replace(WRITING, batch_bytes_max=200)
    letters = dead_letters(Read(data=log(rows), begin=10, end=13), runs, SOURCE, small)
    assert not read_back(letters)
    assert letters.too_large == 3
    assert 200 < letters.largest < 700
    assert not letters.done


def test_a_dead_letter_that_its_topic_does_not_take_is_compressed_or_cut() -> None:
    noise = random.Random(1).randbytes(3000)
    rows = [row(1), {**row(2), "value": b"v" * 3000}, {**row(3), "value": noise}, row(5)]
    runs = [Undeliverable(10, 13, 1, Cause.REJECTED)]
    small = replace(WRITING, batch_bytes_max=2000)
    letters = dead_letters(Read(data=log(rows), begin=10, end=14), runs, SOURCE, small)
    found = read_back(letters)
    assert [item["value"] for item in found[:2]] == [b"v1", b"v" * 3000]
    assert found[3]["value"] == b"v5"
    cut = found[2]
    assert noise.startswith(cut["value"])
    assert 1200 < len(cut["value"]) < 2000
    headers = {item["key"]: item["value"] for item in cut["headers"]}
    assert headers["__dlq.errors.truncated"] == b"value=3000"
    assert headers["__dlq.errors.offset"] == b"12"
    assert (letters.too_large, list(letters.done)) == (0, runs)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_compressed_batches_are_opened(codec: int) -> None:
    rows = [row(number) for number in range(6)]
    runs = [Undeliverable(12, 12, 1, Cause.REJECTED), Undeliverable(15, 15, 4, Cause.DELIVERIES)]
    read = Read(data=log(rows, codec=codec), begin=12, end=16)
    letters = dead_letters(read, runs, SOURCE, WRITING)
    assert [letter["value"] for letter in read_back(letters)] == [b"v2", b"v5"]
    assert letters.written == {Cause.REJECTED: 1, Cause.DELIVERIES: 1}
    assert [batch.header.base_sequence for batch in letters.batches] == [40]
