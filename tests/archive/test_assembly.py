"""Assembly: what a consumer gets is checked, stamped, in order, and ends before what failed."""

from __future__ import annotations

import pytest

from penstock.archive.assembly import Run, assemble
from penstock.archive.errors import CorruptObject
from penstock.archive.planning import Piece, trim
from penstock.objects import ObjectNotFound
from penstock.records import decode_header, split_batches, verify_crc
from tests.diskless.reading.extents import stored

VALUES = [[b"a", b"b"], [b"c"], [b"d", b"e", b"f"]]


def whole(base_offset: int, **changes: int) -> tuple[Piece, memoryview]:
    one, data = stored(base_offset, VALUES, **changes)  # type: ignore[arg-type]
    (piece,) = trim([one], base_offset, max_bytes=1 << 20, at_least_one=True)
    return piece, memoryview(data)


def offsets(data: memoryview) -> list[int]:
    return [header.base_offset for header in split_batches(data)]


def test_batches_get_their_offsets_and_epoch_in_a_copy() -> None:
    piece, data = whole(100)
    before = bytes(data)
    run, failure = assemble([piece], [data])
    assert failure is None
    assert run is not None
    assert (run.base_offset, run.next_offset) == (100, 106)
    assert offsets(run.data) == [100, 102, 103]
    position = 0
    for header in split_batches(run.data):
        assert header.partition_leader_epoch == 0
        verify_crc(run.data, header, position)
        position += header.size_bytes
    assert bytes(data) == before


def test_the_append_time_takes_the_place_of_the_producers() -> None:
    piece, data = whole(0, append_time_ms=1_800_000_000_000)
    run, failure = assemble([piece], [data])
    assert failure is None
    assert run is not None
    position = 0
    for header in split_batches(run.data):
        assert (header.timestamp_type, header.max_timestamp) == (1, 1_800_000_000_000)
        verify_crc(run.data, header, position)
        position += header.size_bytes


@pytest.mark.parametrize("at", range(0, 400, 7))
def test_a_damaged_byte_is_found_wherever_it_is(at: int) -> None:
    piece, data = whole(5)
    damaged = bytearray(data)
    at %= len(damaged)
    damaged[at] ^= 0x41
    run, failure = assemble([piece], [memoryview(damaged)])
    position, field = 0, at
    for size, _ in piece.batches:
        if at < position + size:
            field = at - position
            break
        position += size
    if field < 8 or 12 <= field < 16:  # base offset and epoch: stamped anyway, under no checksum
        assert failure is None
    else:
        assert isinstance(failure, CorruptObject)
        assert run is None
        assert "object o1 at byte 32" in str(failure)


def test_bytes_that_are_missing_are_no_answer() -> None:
    piece, data = whole(5)
    run, failure = assemble([piece], [data[:-1]])
    assert run is None
    assert isinstance(failure, CorruptObject)


def test_batches_that_contradict_the_index_are_rejected() -> None:
    piece, _ = whole(0)
    _, other = stored(0, [[b"abcdefg"], *VALUES[1:]])
    same_size = piece._replace(size_bytes=len(other))
    run, failure = assemble([same_size], [memoryview(other)])
    assert run is None
    assert "should have" in str(failure)


def test_only_pieces_before_a_failure_are_returned() -> None:
    first, first_data = whole(0)
    second, second_data = whole(6)
    third, third_data = whole(12)
    lost = ObjectNotFound("o1")
    run, failure = assemble([first, second, third], [first_data, lost, third_data])
    assert failure is lost
    assert run is not None
    assert (run.base_offset, run.next_offset) == (0, 6)
    damaged = bytearray(second_data)
    damaged[-1] ^= 1
    run, failure = assemble([first, second, third], [first_data, memoryview(damaged), third_data])
    assert isinstance(failure, CorruptObject)
    assert run is not None
    assert offsets(run.data) == [0, 2, 3]
    assert assemble([first], [lost]) == (None, lost)
    assert assemble([], []) == (None, None)


def joined() -> Run:
    first, first_data = whole(0)
    second, second_data = whole(6)
    run, _ = assemble([first, second], [first_data, second_data])
    assert run is not None
    return run


@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("first", [True, False])
def test_reads_of_a_run_are_whole_batches_from_the_one_that_holds_the_offset(
    offset: int, first: bool
) -> None:
    run = joined()
    headers = split_batches(run.data)
    for limit in (0, 1, headers[0].size_bytes, 150, 200, 300, 10_000):
        expected: list[int] = []
        left = limit
        for header in headers:
            if header.next_offset <= offset:
                continue
            if header.size_bytes > left and not (first and not expected):
                break
            expected.append(header.base_offset)
            left -= header.size_bytes
        data, next_offset = run.part(offset, max_bytes=limit, at_least_one=first)
        got = split_batches(data)
        assert [header.base_offset for header in got] == expected
        assert next_offset == (got[-1].next_offset if got else offset)


def test_a_cut_batch_is_served_from_its_beginning() -> None:
    one, data = stored(10, VALUES)
    (piece,) = trim([one], 15, max_bytes=1 << 20, at_least_one=True)
    start = piece.start - one.byte_offset
    run, _ = assemble([piece], [memoryview(data)[start : start + piece.size_bytes]])
    assert run is not None
    assert decode_header(run.data).base_offset == 13
    assert (run.base_offset, run.next_offset) == (13, 16)
