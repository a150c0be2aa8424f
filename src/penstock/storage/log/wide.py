"""Wide append: one small, ordinary batch to each of many logs; headers are checked as columns.

All batches are joined into one buffer, which becomes one part of the journal entry (`Wide`). NumPy
decodes and checks the headers, stamps offsets and epochs, and encodes the journal's rows. Python
only updates the state of each log. A batch that needs more checks than a plain one, which
`log.validation` defines, is left to `PartitionLog.append`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.base.extras import MissingExtra
from penstock.base.settings import LONG_MAX
from penstock.records import HEADER_BYTES, BatchHeader, Codec
from penstock.records.appends import AppendResult
from penstock.records.columnar.validation import check_chain
from penstock.records.header import (
    CHECKED_FROM,
    HEADER,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
)
from penstock.storage.files.appended import Wide
from penstock.storage.files.errors import COPIED_APPEND_BYTES_MAX, INLINE_COMMIT_BYTES_MAX
from penstock.storage.files.index import OFFSET_ENTRY_BYTES
from penstock.storage.files.journal import ROW
from penstock.storage.files.producers import Undo
from penstock.storage.files.segment import Segment
from penstock.storage.files.settings import LogConfig
from penstock.storage.files.walk import RELATIVE_OFFSET_MAX

if TYPE_CHECKING:
    from penstock.storage.log.state import LogState

WIDE_BYTES_MAX: Final = 16 * INLINE_COMMIT_BYTES_MAX
"""Maximum bytes of the batches of one wide append; its journal entry is written whole."""


def _dtype(layout: Struct, names: Sequence[str]) -> np.dtype[np.void]:
    """Return the NumPy type of a big-endian layout."""
    codes = layout.format.removeprefix(">")
    return np.dtype([(name, f">{code}") for name, code in zip(names, codes, strict=True)])


_HEADER: Final = _dtype(HEADER, BatchHeader._fields)
_ROW_FIELDS: Final = "segment", "position", "base", "next", "size"
_ROW: Final = _dtype(ROW, _ROW_FIELDS)


class _Joined(NamedTuple):
    """Batches behind each other in `data`; `starts` to `checksums` have an element for each.

    `view` has the header that would begin at each byte; `heads` are copies of the real ones.
    """

    data: bytearray
    view: Any
    starts: Any
    sizes: Any
    heads: Any
    checksums: Any


class _Ends(NamedTuple):
    """State of each log before the append; each field has an element for each log."""

    segments: list[Segment]
    offsets: list[int]
    positions: list[int]
    epoch: Any
    base: Any
    segment_base: Any
    position: Any
    first_timestamp: Any


def append_each(
    states: Sequence[LogState], batches: Sequence[memoryview], config: LogConfig, now_ms: int
) -> list[AppendResult | None]:
    """Append a batch to each of some logs with one configuration; see `LogStore.append_each`."""
    results: list[AppendResult | None] = [None] * len(states)
    queue = states[0].queue if states else None
    several = len({*states}) < len(states)  # batches for one log depend on each other
    if queue is None or queue.failed is not None or several or not _is_ordinary(config):
        return results
    places = [
        place
        for place, (state, batch) in enumerate(zip(states, batches, strict=True))
        if HEADER_BYTES <= len(batch) <= COPIED_APPEND_BYTES_MAX
        and state.loaded
        and state.closed is None
        and state.fence is None
        and state.damage is None
        and not state.roll_due
    ]
    while places:  # at most twice, the second time without the batches that are not plain
        whole = len(places) == len(states)
        logs = states if whole else [states[place] for place in places]
        joined = _join(batches if whole else [batches[place] for place in places])
        waiting = queue.pending_bytes + queue.unwritten_bytes + len(joined.data)
        if len(joined.data) > WIDE_BYTES_MAX or waiting > queue.limit_bytes:
            break
        ends = _ends_of(logs)
        plain = _are_plain(joined, config, now_ms) & _fit(joined, ends, config)
        _check_records(joined, plain, config)
        _check_producers(joined, logs, plain)
        if plain.all():
            accepted = _accept(logs, joined, ends, config, now_ms)
            if whole:
                return [*accepted]
            for place, result in zip(places, accepted, strict=True):
                results[place] = result
            break
        places = [place for place, good in zip(places, plain.tolist(), strict=True) if good]
    return results


def _is_ordinary(config: LogConfig) -> bool:
    """Return whether plain batches need neither other checks nor a look at the segment's index."""
    entries = config.segment_bytes // (config.index_interval_bytes + 1) + 2
    return (
        config.compression_type == "producer"
        and config.record_validation != "full"
        and config.message_timestamp_type == "CreateTime"
        and "compact" not in config.cleanup_policy
        and not (config.schema_validation_value or config.schema_validation_key)
        and config.segment_jitter_ms == 0
        and entries * OFFSET_ENTRY_BYTES <= config.segment_index_bytes
    )


_checked_part: Final = itemgetter(slice(CHECKED_FROM, None))


def _join(batches: Sequence[memoryview]) -> _Joined:
    data = bytearray().join(batches)
    sizes = _column(list(map(len, batches)))
    starts = sizes.cumsum() - sizes
    view = np.ndarray(len(data) - HEADER_BYTES + 1, _HEADER, data, strides=(1,))
    checksums = np.array(list(map(crc32c, map(_checked_part, batches))), np.uint32)
    return _Joined(data, view, starts, sizes, view[starts], checksums)


def _column(values: list[int]) -> Any:
    return np.frombuffer(array("q", values), np.int64)


def _ends_of(logs: Sequence[LogState]) -> _Ends:
    segments = [log.segments[-1] for log in logs]
    offsets = [log.log_end_offset for log in logs]
    positions = [segment.end_position for segment in segments]
    return _Ends(
        segments,
        offsets,
        positions,
        _column([log.leader_epoch for log in logs]),
        _column(offsets),
        _column([segment.base_offset for segment in segments]),
        _column(positions),
        _column([segment.first_timestamp for segment in segments]),
    )


def _are_plain(joined: _Joined, config: LogConfig, now_ms: int) -> Any:
    """Return a flag for each batch: whether `log.validation` would find it plain, too."""
    heads, sizes = joined.heads, joined.sizes
    attributes, count = heads["attributes"], heads["record_count"]
    oldest, newest = heads["base_timestamp"], heads["max_timestamp"]
    producer, sequence = heads["producer_id"], heads["base_sequence"]
    with_producer = (heads["producer_epoch"] >= 0) & (sequence >= 0) & (producer >= 0)
    return (
        (heads["batch_length"] + LENGTH_OVERHEAD_BYTES == sizes)
        & (sizes <= config.max_message_bytes)
        & (heads["magic"] == MAGIC)
        & (heads["base_offset"] == 0)
        & (count > 0)
        & (count == heads["last_offset_delta"] + 1)
        & (attributes >= 0)
        & (attributes <= Codec.ZSTD)
        & ((attributes > 0) | (count.astype(np.int64) * RECORD_BYTES_MIN <= sizes - HEADER_BYTES))
        & ((producer == -1) | with_producer)
        & (oldest >= max(0, now_ms - config.message_timestamp_before_max_ms))
        & (oldest <= newest)
        & (newest <= min(now_ms + config.message_timestamp_after_max_ms, LONG_MAX))
        & (joined.checksums == heads["crc"])
    )


def _fit(joined: _Joined, ends: _Ends, config: LogConfig) -> Any:
    """Return a flag for each batch: whether it fits into the active segment of its log."""
    position, first = ends.position, ends.first_timestamp
    fresh = position == 0
    age_ms = joined.heads["max_timestamp"] - first
    young = (first >= -1) & ((first < 0) | (age_ms <= config.segment_ms))
    last_offset = ends.base + joined.heads["last_offset_delta"]
    return (
        (last_offset - ends.segment_base < RELATIVE_OFFSET_MAX)
        & (joined.sizes <= config.segment_bytes)
        & (fresh | (position + joined.sizes <= config.segment_bytes) & young)
    )


def _check_records(joined: _Joined, plain: Any, config: LogConfig) -> None:
    """Clear the flags of batches whose records `check_chain` would reject."""
    if config.record_validation != "chain" or not plain.any():
        return
    try:
        from penstock.kernels.records import find_broken_chain
    except MissingExtra:  # without kernels, Python checks small batches one by one
        plain[:] = False
        return
    packed = joined.heads["attributes"] != 0
    for place in np.flatnonzero(plain & packed).tolist():
        start, size = int(joined.starts[place]), int(joined.sizes[place])
        batch = memoryview(joined.data)[start : start + size]
        try:
            check_chain(batch, BatchHeader._make(joined.heads[place].tolist()))
        except PenstockError:
            plain[place] = False
    data, places = np.frombuffer(joined.data, np.uint8), np.flatnonzero(plain & ~packed)
    while len(places):
        starts, counts = joined.starts[places], joined.heads["record_count"][places]
        ends = starts + joined.sizes[places]
        counts = counts.astype(np.int64)
        bad = find_broken_chain(data, starts + HEADER_BYTES, ends, counts)
        if bad < 0:
            return
        plain[places[bad]] = False
        places = places[bad + 1 :]


def _check_producers(joined: _Joined, logs: Sequence[LogState], plain: Any) -> None:
    """Clear the flags of duplicates, and of batches that contradict their producer's state."""
    for place in np.flatnonzero(plain & (joined.heads["producer_id"] >= 0)).tolist():
        header = BatchHeader._make(joined.heads[place].tolist())
        try:
            original = logs[place].producer_states.check_all([header], None)
        except PenstockError:
            plain[place] = False
        else:
            plain[place] = original is None


def _accept(
    logs: Sequence[LogState], joined: _Joined, ends: _Ends, config: LogConfig, now_ms: int
) -> list[AppendResult]:
    """Stamp the batches, queue them, and update the logs; nothing fails from here on."""
    heads, sizes, starts = joined.heads, joined.sizes, joined.starts
    following = ends.base + heads["record_count"]
    joined.view["base_offset"][starts] = ends.base
    joined.view["partition_leader_epoch"][starts] = ends.epoch
    undos: dict[int, list[Undo]] = {}
    for place in np.flatnonzero(heads["producer_id"] >= 0).tolist():
        header = BatchHeader._make(heads[place].tolist())
        undo = logs[place].producer_states.append(header, ends.offsets[place], now_ms)
        undos[place] = [undo]
    for place in np.flatnonzero(ends.first_timestamp < 0).tolist():
        ends.segments[place].first_timestamp = int(heads["max_timestamp"][place])
    columns = ends.segment_base, ends.position, ends.base, following, sizes
    followings = following.tolist()
    wide = Wide(
        logs, ends.segments, ends.positions, ends.offsets, followings, sizes.tolist(),
        undos, _table(columns, logs), bytes(joined.data), len(logs),
    )  # fmt: skip
    for log, segment, base, end, position in zip(
        logs, ends.segments, ends.offsets, followings, (ends.position + sizes).tolist(), strict=True
    ):
        segment.end_position = position
        log.log_end_offset = end
        log.appended_config = config
        tail = log.tail
        tail.items.append(wide)
        tail.bases.append(base)
    logs[0].parts.tails.add_wide(wide)
    logs[0].queue.add(wide)
    begun = [log.log_start_offset for log in logs]
    fields = zip(ends.offsets, repeat(-1), begun, repeat(False), repeat(None), repeat(None))
    return list(map(tuple.__new__, repeat(AppendResult), fields))


def _table(columns: Sequence[Any], logs: Sequence[LogState]) -> bytes:
    """Return the rows of the journal's table, as `files.journal.ROW`, each with its log's key."""
    length = len(logs[0].key)
    rows = np.empty(len(logs), _row_dtype(length))
    for name, column in zip(_ROW_FIELDS, columns, strict=True):
        rows["row"][name] = column
    rows["key"] = np.frombuffer(b"".join([log.key for log in logs]), f"V{length}")
    return rows.tobytes()


@lru_cache
def _row_dtype(key_bytes: int) -> np.dtype[np.void]:
    """Return the type of a row with its log's key; all keys of a topic have the same length."""
    return np.dtype([("row", _ROW), ("key", f"V{key_bytes}")])
