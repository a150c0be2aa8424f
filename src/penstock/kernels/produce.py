"""Joiner of the batches of Produce requests to one partition, so that one append stores them.

Only ordinary batches are joined: uncompressed, not transactional, with offsets from 0 on and with
the timestamps of their producers. The caller verifies the checksums.

Source: `ProduceRequest.json`; the layout of a batch is in `records/header.py`.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import copy_bytes
from penstock.kernels.records import big_endian, is_chain
from penstock.kernels.types import READ, int64

_HEADER_BYTES: Final = 61
_LENGTH_OVERHEAD_BYTES: Final = 12
_RECORD_BYTES_MIN: Final = 7
_TAGS_BYTES: Final = 3
"""Tagged fields of partition, topic and request, all empty, after compact records."""
_LENGTH_BITS_MAX: Final = 28


@kernel(f"UniTuple(int64, 2)({READ}, int64, int64, boolean)", inlined=True)
def _records_length(data: Any, at: Any, end: Any, compact: Any) -> Any:
    """Return the length of records, and their position; -1 as the length if it cannot be read."""
    if not compact:
        return big_endian(data, at, 4), at + 4
    length, shift = 0, 0
    while at < end and shift < _LENGTH_BITS_MAX:
        byte = int64(data[at])
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length - 1, at
        shift += 7
    return -1, at


@kernel(f"boolean({READ}, int64, int64, int64, int64, boolean)", inlined=True)
def _is_plain(data: Any, at: Any, size: Any, oldest: Any, newest: Any, checked: Any) -> Any:
    """Return whether the bytes are one ordinary batch, as `storage.log.validation` defines it."""
    count, delta = big_endian(data, at + 57, 4), big_endian(data, at + 23, 4)
    first, last = big_endian(data, at + 27, 8), big_endian(data, at + 35, 8)
    producer, sequence = big_endian(data, at + 43, 8), big_endian(data, at + 53, 4)
    epoch = big_endian(data, at + 51, 2)
    return (
        big_endian(data, at, 8) == 0
        and big_endian(data, at + 8, 4) + _LENGTH_OVERHEAD_BYTES == size
        and data[at + 16] == 2
        and data[at + 21] == 0
        and data[at + 22] == 0
        and 0 < count == delta + 1
        and count * _RECORD_BYTES_MIN <= size - _HEADER_BYTES
        and max(oldest, 0) <= first <= last <= newest
        and (producer == -1 or (producer >= 0 and epoch >= 0 and sequence >= 0))
        and (not checked or is_chain(data, at + _HEADER_BYTES, at + size, count))
    )


@kernel("void(uint8[::1], int64, int64, int64)", inlined=True)
def _put(target: Any, at: Any, value: Any, size: Any) -> None:
    for index in range(size):
        target[at + size - 1 - index] = value & 0xFF
        value >>= 8


@kernel(
    f"UniTuple(int64, 2)({READ}, int64, int64, boolean, int64, int64, int64, boolean)", inlined=True
)
def _batch_in(
    data: Any, at: Any, end: Any, compact: Any, bytes_max: Any, oldest: Any, newest: Any,
    checked: Any,
) -> Any:  # fmt: skip
    """Return position and size of a request's batch; the size is 0 if it is not ordinary."""
    end -= _TAGS_BYTES if compact else 0
    if at + 4 + _HEADER_BYTES > end:
        return at, 0
    size, at = _records_length(data, at, end, compact)
    if at + size != end or not _HEADER_BYTES <= size <= bytes_max:
        return at, 0
    if compact and data[end] | data[end + 1] | data[end + 2]:
        return at, 0
    return at, size if _is_plain(data, at, size, oldest, newest, checked) else 0


@kernel(f"UniTuple(int64, 2)({READ}, int64, boolean, int64, int64, int64, boolean)")
def find_batch(
    request: Any, length_at: Any, compact: Any, bytes_max: Any, oldest: Any, newest: Any,
    checked: Any,
) -> Any:  # fmt: skip
    """Return position and size of a request's only batch; the size is 0 if it is not ordinary.

    Args:
        request: the request without its length.
        length_at: position of the length of its records.
        compact, bytes_max, oldest, newest, checked: as for `join_batches`.
    """
    return _batch_in(request, length_at, request.size, compact, bytes_max, oldest, newest, checked)


@kernel(
    f"UniTuple(int64, 2)({READ}, int64[::1], int64[::1], boolean, int64, int64, int64, boolean,"
    " int64, int64, uint8[::1], uint8[::1])"
)
def join_batches(
    data: Any, starts: Any, lengths_at: Any, compact: Any, bytes_max: Any, oldest: Any,
    newest: Any, checked: Any, base_offset: Any, epoch: Any, batches: Any, headers: Any,
) -> Any:  # fmt: skip
    """Copy the batches of requests, with offsets and leader epoch, up to the first other request.

    Return the number of copied batches, and their bytes.

    Args:
        data: requests without their lengths, one after another.
        starts: position of each request, and the end of the last.
        lengths_at: position of the length of each request's records.
        compact: whether this length is a varint, and tagged fields follow the records.
        bytes_max: limit of the bytes of a batch.
        oldest, newest: limits of timestamps.
        checked: whether the records of a batch are checked (`is_chain`).
        base_offset: offset of the first record.
        epoch: leader epoch.
        batches: room for all batches.
        headers: room for the 61 bytes of each batch's header.
    """
    written = 0
    for index in range(lengths_at.size):
        at, size = _batch_in(
            data, lengths_at[index], starts[index + 1], compact, bytes_max, oldest, newest, checked
        )
        if not size:
            return index, written
        copy_bytes(batches, written, data, at, size)
        _put(batches, written, base_offset, 8)
        _put(batches, written + 12, epoch, 4)
        copy_bytes(headers, index * _HEADER_BYTES, batches, written, _HEADER_BYTES)
        base_offset += big_endian(data, at + 57, 4)
        written += size
    return lengths_at.size, written
