"""Batches of a log read, and selection of those that contain acquired records.

Only batch headers are decoded. The response contains whole batches and the acquired offset ranges;
batches without acquired records are omitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.share.values import Acquired, Batch
from penstock.records.header import HEADER_BYTES, BatchHeader, decode_header

if TYPE_CHECKING:
    from penstock.records.transactions import AbortedTransaction
    from penstock.storage.values import Buffer


class Found(NamedTuple):
    header: BatchHeader
    begin: int
    end: int


class _Bytes:
    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers]
        self._index = self._before = 0

    def __len__(self) -> int:
        return sum(map(len, self._views))

    def pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes in [begin, end); the ranges of successive calls must ascend."""
        while begin < end:
            view = self._views[self._index]
            after = self._before + len(view)
            if begin >= after:
                self._before = after
                self._index += 1
                continue
            yield view[begin - self._before : end - self._before]
            begin = min(end, after)


def walk(buffers: Sequence[Buffer]) -> Iterator[Found]:
    """Yield the batches of consecutive buffers; a batch may extend over several buffers.

    Raises:
        CorruptBatch: a header is not valid.
    """
    whole = _Bytes(buffers)
    at, end = 0, len(whole)
    while at < end:
        pieces = list(whole.pieces(at, min(at + HEADER_BYTES, end)))
        header = decode_header(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        yield Found(header, at, at + header.size_bytes)
        at += header.size_bytes


def offered(found: Found, aborted: Sequence[AbortedTransaction] = ()) -> Batch:
    """Return the offsets of a batch. Control batches and aborted batches have no records."""
    header = found.header
    records = not header.is_control
    if records and aborted and header.is_transactional:
        records = not any(
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in aborted
        )
    return Batch(header.base_offset, header.last_offset, records)


def holding(
    found: Sequence[Found], buffers: Sequence[Buffer], acquired: Sequence[Acquired]
) -> tuple[list[Buffer], int]:
    """Return the bytes of the batches that hold acquired records, and their size."""
    spans: list[list[int]] = []
    number = 0
    for header, begin, end in found:
        while number < len(acquired) and acquired[number].last < header.base_offset:
            number += 1
        if number == len(acquired):
            break
        if acquired[number].first <= header.last_offset:
            if spans and spans[-1][1] == begin:
                spans[-1][1] = end
            else:
                spans.append([begin, end])
    whole = _Bytes(buffers)
    size = sum(end - begin for begin, end in spans)
    return [piece for begin, end in spans for piece in whole.pieces(begin, end)], size


def cut(acquired: Sequence[Acquired], records: int) -> list[Acquired]:
    """Split ranges of acquired records into ranges of at most `records`; 0 splits none."""
    if records <= 0:
        return list(acquired)
    return [
        Acquired(first, min(first + records - 1, run.last), run.deliveries)
        for run in acquired
        for first in range(run.first, run.last + 1, records)
    ]
