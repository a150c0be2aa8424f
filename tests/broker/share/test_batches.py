"""Batches of a read with buffers cut anywhere, and the selection to be sent."""

from __future__ import annotations

import pytest

from penstock.broker.share.fetching import cut, holding, offered, walk
from penstock.broker.share.values import Acquired, Batch
from penstock.records import seal
from penstock.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG, stamp
from penstock.records.transactions import AbortedTransaction
from tests.broker.wire_client import batch


def at(offset: int, *values: bytes, producer_id: int = -1, attributes: int = 0) -> bytes:
    data = bytearray(batch(*values, attributes=attributes))
    stamp(data, 0, offset, len(data) - 12, 0)
    data[43:51] = producer_id.to_bytes(8, "big", signed=True)
    seal(data)
    return bytes(data)


LOG = [at(0, b"a", b"b"), at(5, b"c"), at(6, b"d" * 100, b"e")]
BATCHES = [Batch(0, 1), Batch(5, 5), Batch(6, 7)]


@pytest.mark.parametrize("size", [1, 7, 60, 61, 62, 100, 10_000])
def test_batches_are_found_in_buffers_of_any_size(size: int) -> None:
    whole = b"".join(LOG)
    buffers = [whole[begin : begin + size] for begin in range(0, len(whole), size)]
    found = list(walk(buffers))
    assert [offered(item) for item in found] == BATCHES
    pieces, count = holding(found, buffers, [Acquired(1, 1, 1), Acquired(7, 7, 1)])
    assert b"".join(pieces) == LOG[0] + LOG[2]
    assert count == len(LOG[0]) + len(LOG[2])
    pieces, count = holding(found, buffers, [Acquired(0, 7, 1)])
    assert b"".join(pieces) == whole
    assert holding(found, buffers, [Acquired(2, 3, 1)]) == ([], 0)


def test_neighbours_that_are_sent_stay_one_buffer() -> None:
    whole = b"".join(LOG)
    pieces, _ = holding(list(walk([whole])), [whole], [Acquired(5, 6, 1)])
    assert pieces == [LOG[1] + LOG[2]]


def test_control_batches_and_aborted_ones_have_no_records() -> None:
    marker, mine, other = (
        at(0, b"m", attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG),
        at(1, b"a", producer_id=7, attributes=TRANSACTIONAL_FLAG),
        at(2, b"b", producer_id=8, attributes=TRANSACTIONAL_FLAG),
    )
    aborted = [AbortedTransaction(7, 1, 4, 0)]
    found = list(walk([marker, mine, other, at(9, b"c", producer_id=7, attributes=16)]))
    assert [offered(item, aborted).records for item in found] == [False, False, True, True]
    assert [offered(item).records for item in found] == [False, True, True, True]


def test_ranges_are_cut() -> None:
    acquired = [Acquired(0, 4, 1), Acquired(7, 7, 2)]
    assert cut(acquired, 2) == [
        Acquired(0, 1, 1), Acquired(2, 3, 1), Acquired(4, 4, 1), Acquired(7, 7, 2)
    ]  # fmt: skip
    assert cut(acquired, 0) == acquired
