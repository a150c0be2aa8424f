"""Compaction of a log: selects records by the hashes of their keys, and copies those that stay.

The batches of a buffer are rows of a table of integers. It begins with the columns of
`kernels.records`, followed by the columns below. The records of opened batches are rows of these
arrays, in the order of the log:

    hashes  128 bits of the key, keyed by a secret
    spans   start and end of the record in the buffer, its offset and its timestamp
    kinds   NO_KEY, TOMBSTONE
    keep    1 if the record stays

The last offsets of keys are in `slots`, a hash table with open addressing, whose size is a power of
two. A slot has the hash and the offset plus one; 0 marks a free slot. The base offset of a batch
never changes, so records are copied unchanged. Only if a batch gets a new base timestamp (the
delete horizon), the timestamp deltas of its records are rewritten.

Source: Kafka's `Cleaner`, `SkimpyOffsetMap` and `MemoryRecords.filterTo`; KIP-534; MurmurHash3
(x64, 128 bits), with a secret instead of the seed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from penstock.kernels.compiling import kernel
from penstock.kernels.memory import copy_bytes, load_word, prefetch
from penstock.kernels.record_writing import put_big_endian, varint_size, write_varint
from penstock.kernels.records import ATTRIBUTES as ATTRIBUTES
from penstock.kernels.records import BASE_OFFSET as BASE_OFFSET
from penstock.kernels.records import BASE_TIMESTAMP as BASE_TIMESTAMP
from penstock.kernels.records import BATCH_FIELDS, CRC, MISFIT, OUTSIDE, big_endian, read_fields
from penstock.kernels.records import BEGIN as BEGIN
from penstock.kernels.records import COUNT as COUNT
from penstock.kernels.records import END as END
from penstock.kernels.records import KEPT as KEPT
from penstock.kernels.records import LAST_DELTA as LAST_DELTA
from penstock.kernels.records import MAX_TIMESTAMP as MAX_TIMESTAMP
from penstock.kernels.types import READ

POSITION: Final = BATCH_FIELDS
SIZE: Final = BATCH_FIELDS + 1
PRODUCER: Final = BATCH_FIELDS + 2
PRODUCER_EPOCH: Final = BATCH_FIELDS + 3
FIRST_ROW: Final = BATCH_FIELDS + 4
"""Row of the batch's first record."""
TOMBSTONES: Final = BATCH_FIELDS + 5
NEWEST: Final = BATCH_FIELDS + 6
"""Number of tombstones, and highest timestamp, of the records that stay."""
HORIZON: Final = BATCH_FIELDS + 7
"""Delete horizon of the written batch in ms; -1 for none."""
MODE: Final = BATCH_FIELDS + 8
OUT_SIZE: Final = BATCH_FIELDS + 9
OUT_TIMESTAMP: Final = BATCH_FIELDS + 10
"""Size in bytes and highest timestamp of the written batch; size 0 if it is dropped."""
FIELDS: Final = BATCH_FIELDS + 11

# Modes of a batch.
DROP: Final = 0
WHOLE: Final = 1
REBUILD: Final = 2
"""Write the batch with the records that stay, which may be none."""

NO_KEY: Final = 1
TOMBSTONE: Final = 2

START: Final = 0
AFTER: Final = 1
OFFSET: Final = 2
TIMESTAMP: Final = 3

SLOT_FIELDS: Final = 3

# State of `index_batches`, which the caller passes from call to call.
WRITTEN: Final = 0
SINCE_ENTRY: Final = 1
HIGHEST: Final = 2
HIGHEST_OFFSET: Final = 3
INDEXED_TIME: Final = 4
INDEX_STATE_FIELDS: Final = 5

_HEADER_BYTES: Final = 61
_LENGTH_OVERHEAD_BYTES: Final = 12
_CODEC: Final = 0x07
_APPEND_TIME: Final = 0x08
_HORIZON: Final = 0x40
_OFFSET_MAX: Final = 2**63 - 2
_UINT32_MAX: Final = 2**32 - 1
_AHEAD: Final = 12
"""Number of rows ahead for which slots are prefetched; most are not in a processor cache."""
_SLOT_BYTES: Final = 8 * SLOT_FIELDS

_TABLE: Final = "int64[:, ::1]"
_RECORDS: Final = "uint64[:, ::1], int64[:, ::1], uint8[::1]"
_SLOTS: Final = "uint64[:, ::1]"


@kernel(f"int64({READ}, int64, {_TABLE}, int64[::1])")
def list_batches(data: Any, at: Any, table: Any, state: Any) -> Any:
    """Fill `table` with the complete batches from position `at` on; return their number.

    `state[0]` is set to the end of the last one. `state[1]` is set to the size of the next batch in
    bytes if it is incomplete, to -1 if its header is invalid, and otherwise to 0.
    """
    found = 0
    state[1] = 0
    while found < table.shape[0] and data.size - at >= _HEADER_BYTES:
        size = big_endian(data, at + 8, 4) + _LENGTH_OVERHEAD_BYTES
        base_offset = big_endian(data, at, 8)
        last_delta = big_endian(data, at + 23, 4)
        count = big_endian(data, at + 57, 4)
        if (
            data[at + 16] != 2
            or (size - _HEADER_BYTES) | base_offset | last_delta | count < 0
            or base_offset > _OFFSET_MAX - last_delta
        ):
            state[1] = -1
            break
        if size > data.size - at:
            state[1] = size
            break
        row = table[found]
        row[BEGIN], row[END] = at + _HEADER_BYTES, at + size
        row[COUNT], row[BASE_OFFSET], row[LAST_DELTA] = count, base_offset, last_delta
        row[BASE_TIMESTAMP] = big_endian(data, at + 27, 8)
        row[MAX_TIMESTAMP] = big_endian(data, at + 35, 8)
        row[ATTRIBUTES] = big_endian(data, at + 21, 2)
        row[CRC] = big_endian(data, at + 17, 4) & _UINT32_MAX
        row[POSITION], row[SIZE] = at, size
        row[PRODUCER] = big_endian(data, at + 43, 8)
        row[PRODUCER_EPOCH] = big_endian(data, at + 51, 2)
        row[KEPT] = row[FIRST_ROW] = row[TOMBSTONES] = row[MODE] = row[OUT_SIZE] = 0
        row[NEWEST] = row[HORIZON] = row[OUT_TIMESTAMP] = -1
        found += 1
        at += size
    state[0] = at
    return found


@kernel("uint64(uint64, uint64)", inlined=True)
def _rotated(value: Any, bits: Any) -> Any:
    return value << bits | value >> (np.uint64(64) - bits)


@kernel("uint64(uint64)", inlined=True)
def _mixed(value: Any) -> Any:
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ value >> np.uint64(33)


@kernel(f"uint64({READ}, int64, int64)", inlined=True)
def _tail_word(data: Any, at: Any, size: Any) -> Any:
    word = load_word(data, at)
    if size < 8:
        word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    return word


@kernel(f"UniTuple(uint64, 2)({READ}, int64, int64, uint64, uint64)", inlined=True)
def _hashed(data: Any, at: Any, size: Any, first: Any, second: Any) -> Any:
    one, other = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
    left = size
    while left > 0:
        low = _tail_word(data, at, min(left, 8))
        high = np.uint64(0)
        if left > 8:
            high = _tail_word(data, at + 8, min(left - 8, 8))
        first ^= _rotated(low * one, np.uint64(31)) * other
        first = (_rotated(first, np.uint64(27)) + second) * np.uint64(5) + np.uint64(0x52DCE729)
        second ^= _rotated(high * other, np.uint64(33)) * one
        second = (_rotated(second, np.uint64(31)) + first) * np.uint64(5) + np.uint64(0x38495AB5)
        at += 16
        left -= 16
    first ^= np.uint64(size)
    second ^= np.uint64(size)
    first += second
    second += first
    first, second = _mixed(first), _mixed(second)
    first += second
    return first, second + first


@kernel(f"int64({READ}, {_TABLE}, int64, int64, int64, uint64, uint64, {_RECORDS}, int64[::1])")
def read_keys(
    data: Any, table: Any, low: Any, high: Any, row: Any, first: Any, second: Any, hashes: Any,
    spans: Any, kinds: Any, state: Any,
) -> Any:  # fmt: skip
    """Read the records of the batches `low` to `high` of `data` into rows from `row` on.

    Return the row after the last one, or the negative number of a problem (`kernels.records`). With
    a problem, `state` has the batch, the record in it and the position. `first` and `second` are
    the secret of the hash.
    """
    for batch in range(low, high):
        at, end = table[batch, BEGIN], table[batch, END]
        base_offset, last_delta = table[batch, BASE_OFFSET], table[batch, LAST_DELTA]
        append_time = table[batch, ATTRIBUTES] & _APPEND_TIME
        table[batch, FIRST_ROW] = row
        for record in range(table[batch, COUNT]):
            problem, timestamp, delta, key_at, key_length, _, value_length, _, _, record_end = (
                read_fields(data, at, end)
            )
            if problem == 0 and (delta < 0 or delta > last_delta):
                problem = OUTSIDE
            if problem:
                state[0], state[1], state[2] = batch, record, at
                return -problem
            kind = 0
            if key_length < 0:
                kind = NO_KEY
            else:
                hashes[row, 0], hashes[row, 1] = _hashed(data, key_at, key_length, first, second)
            if value_length < 0:
                kind |= TOMBSTONE
            kinds[row] = kind
            spans[row, START], spans[row, AFTER] = at, record_end
            spans[row, OFFSET] = base_offset + delta
            spans[row, TIMESTAMP] = table[batch, BASE_TIMESTAMP] + timestamp
            if append_time:
                spans[row, TIMESTAMP] = table[batch, MAX_TIMESTAMP]
            row += 1
            at = record_end
        if at != end:
            state[0], state[1], state[2] = batch, max(table[batch, COUNT] - 1, 0), at
            return -MISFIT
    return row


@kernel(f"int64({_SLOTS}, uint64, uint64)", inlined=True)
def _slot(slots: Any, first: Any, second: Any) -> Any:
    """Return the slot of a hash, or the free slot where it belongs."""
    last = slots.shape[0] - 1
    place = np.int64(first & np.uint64(last))
    while slots[place, 2] != np.uint64(0):
        if slots[place, 0] == first and slots[place, 1] == second:
            break
        place = (place + 1) & last
    return place


@kernel(f"void(uint64[:, ::1], int64, int64, {_SLOTS})", inlined=True)
def _ask_for_slot(hashes: Any, row: Any, high: Any, slots: Any) -> None:
    if row + _AHEAD < high:
        place = np.int64(hashes[row + _AHEAD, 0] & np.uint64(slots.shape[0] - 1))
        prefetch(slots, place * _SLOT_BYTES)
        prefetch(slots, place * _SLOT_BYTES + _SLOT_BYTES - 1)


@kernel(f"int64({_RECORDS}, int64, int64, {_SLOTS}, int64)")
def note_keys(
    hashes: Any, spans: Any, kinds: Any, low: Any, high: Any, slots: Any, known: Any
) -> Any:
    """Store the last offsets of the keys in the rows `low` to `high`; return the number of keys.

    The number includes `known` keys, which earlier calls stored. `slots` must have more free slots
    than there are rows.
    """
    for row in range(low, high):
        _ask_for_slot(hashes, row, high, slots)
        if kinds[row] & NO_KEY:
            continue
        place = _slot(slots, hashes[row, 0], hashes[row, 1])
        if slots[place, 2] == np.uint64(0):
            slots[place, 0], slots[place, 1] = hashes[row, 0], hashes[row, 1]
            known += 1
        offset = np.uint64(spans[row, OFFSET] + 1)
        if offset > slots[place, 2]:
            slots[place, 2] = offset
    return known


@kernel(f"void({_TABLE}, {_RECORDS}, {_SLOTS}, int64, uint8[::1])")
def choose(
    table: Any, hashes: Any, spans: Any, kinds: Any, slots: Any, now_ms: Any, keep: Any
) -> None:
    """Set `keep` for the records of all batches of `table`, and count those that stay, per batch.

    A record stays if no later record has its key. A tombstone stays only until the delete horizon
    of its batch. A record without a key is dropped. In the mode WHOLE all records of a batch stay.
    """
    for batch in range(table.shape[0]):
        first = table[batch, FIRST_ROW]
        after = first + table[batch, COUNT]
        horizon = table[batch, ATTRIBUTES] & _HORIZON
        over = horizon != 0 and table[batch, BASE_TIMESTAMP] <= now_ms
        kept, tombstones, newest = 0, 0, np.int64(-1)
        for row in range(first, after):
            _ask_for_slot(hashes, row, hashes.shape[0], slots)
            stays = True
            if table[batch, MODE] != WHOLE:
                kind = kinds[row]
                stays = kind & NO_KEY == 0 and not (over and kind & TOMBSTONE != 0)
                if stays:
                    place = _slot(slots, hashes[row, 0], hashes[row, 1])
                    stays = slots[place, 2] <= np.uint64(spans[row, OFFSET] + 1)
            keep[row] = stays
            if stays:
                kept += 1
                tombstones += (kinds[row] & TOMBSTONE) >> 1
                newest = max(newest, spans[row, TIMESTAMP])
        table[batch, KEPT], table[batch, TOMBSTONES] = kept, tombstones
        table[batch, NEWEST] = newest


@kernel(f"int64({READ}, int64[:, ::1], uint8[::1], int64, int64, int64, uint8[::1], int64)")
def copy_kept(
    data: Any, spans: Any, keep: Any, low: Any, high: Any, base_timestamp: Any, target: Any, at: Any
) -> Any:
    """Copy the records in the rows `low` to `high` that stay; return the position after them.

    If `base_timestamp` is not negative, their timestamp deltas are rewritten for it.
    """
    row = low
    while row < high:
        if not keep[row]:
            row += 1
            continue
        start = spans[row, START]
        if base_timestamp < 0:
            while row + 1 < high and keep[row + 1]:
                row += 1
            size = spans[row, AFTER] - start
            copy_bytes(target, at, data, start, size)
            at += size
        else:
            body = start
            while data[body] & 0x80:
                body += 1
            rest = body + 2
            while data[rest] & 0x80:
                rest += 1
            rest += 1
            delta = spans[row, TIMESTAMP] - base_timestamp
            left = spans[row, AFTER] - rest
            at = write_varint(target, at, 1 + varint_size(delta) + left)
            target[at] = data[body + 1]
            at = write_varint(target, at + 1, delta)
            copy_bytes(target, at, data, rest, left)
            at += left
        row += 1
    return at


@kernel(f"void({READ}, {_TABLE}, int64, uint8[::1], int64, int64)")
def put_header(data: Any, table: Any, batch: Any, target: Any, at: Any, size: Any) -> None:
    """Write the header of a rebuilt batch of `size` bytes, without its checksum."""
    attributes, horizon = table[batch, ATTRIBUTES], table[batch, HORIZON]
    base_timestamp, newest = table[batch, BASE_TIMESTAMP], table[batch, MAX_TIMESTAMP]
    if table[batch, KEPT] == 0:
        attributes &= ~(_CODEC | _HORIZON)
        base_timestamp = newest = -1
    else:
        if not attributes & _APPEND_TIME:
            newest = table[batch, NEWEST]
        if horizon >= 0:
            attributes |= _HORIZON
            base_timestamp = horizon
    copy_bytes(target, at, data, table[batch, POSITION], _HEADER_BYTES)
    put_big_endian(target, at + 8, 4, size - _LENGTH_OVERHEAD_BYTES)
    put_big_endian(target, at + 21, 2, attributes)
    put_big_endian(target, at + 27, 8, base_timestamp)
    put_big_endian(target, at + 35, 8, newest)
    put_big_endian(target, at + 57, 4, table[batch, KEPT])
    table[batch, OUT_SIZE], table[batch, OUT_TIMESTAMP] = size, newest


@kernel(f"int64({READ}, {_TABLE}, int64, int64, int64[:, ::1], uint8[::1], uint8[::1], int64)")
def rewrite(
    data: Any, table: Any, low: Any, high: Any, spans: Any, keep: Any, target: Any, at: Any
) -> Any:
    """Write the batches `low` to `high` (copied whole, rebuilt or dropped); return the end.

    `data` has the records of rebuilt batches uncompressed. The caller computes checksums.
    """
    for batch in range(low, high):
        mode = table[batch, MODE]
        if mode == WHOLE:
            size = table[batch, SIZE]
            copy_bytes(target, at, data, table[batch, POSITION], size)
            table[batch, OUT_SIZE] = size
            table[batch, OUT_TIMESTAMP] = table[batch, MAX_TIMESTAMP]
            at += size
        elif mode == REBUILD:
            end = at + _HEADER_BYTES
            if table[batch, KEPT]:
                first = table[batch, FIRST_ROW]
                end = copy_kept(
                    data, spans, keep, first, first + table[batch, COUNT], table[batch, HORIZON],
                    target, end,
                )  # fmt: skip
            put_header(data, table, batch, target, at, end - at)
            at = end
    return at


@kernel(f"UniTuple(int64, 2)({_TABLE}, int64, int64, int64[::1], int64[:, ::1], int64[:, ::1])")
def index_batches(
    table: Any, base_offset: Any, interval_bytes: Any, state: Any, offsets: Any, times: Any
) -> tuple[Any, Any]:
    """Write the sparse index entries of the written batches; return the numbers of both kinds.

    `offsets` gets the offset index and `times` the time index. The entries equal those of
    `Segment.add`.
    """
    found = found_times = 0
    for batch in range(table.shape[0]):
        size = table[batch, OUT_SIZE]
        if size == 0:
            continue
        last_offset = table[batch, BASE_OFFSET] + table[batch, LAST_DELTA]
        if table[batch, OUT_TIMESTAMP] > state[HIGHEST]:
            state[HIGHEST], state[HIGHEST_OFFSET] = table[batch, OUT_TIMESTAMP], last_offset
        if state[SINCE_ENTRY] > interval_bytes:
            offsets[found, 0], offsets[found, 1] = last_offset - base_offset, state[WRITTEN]
            found += 1
            if state[HIGHEST] > state[INDEXED_TIME]:
                times[found_times, 0] = state[HIGHEST]
                times[found_times, 1] = state[HIGHEST_OFFSET] - base_offset
                state[INDEXED_TIME] = state[HIGHEST]
                found_times += 1
            state[SINCE_ENTRY] = 0
        state[SINCE_ENTRY] += size
        state[WRITTEN] += size
    return found, found_times
