"""A compacted log as a consumer sees it that keeps the last value of each key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from tests.storage.batches import read_all

from penstock.base.ids import TopicPartition
from penstock.records.columnar import decode_batches, encode_batches
from penstock.storage import LogStore
from sim.storage.logs import Violation, require


def keyed_batch(keys: Sequence[int], value: bytes | None, *, now_ms: int) -> memoryview:
    """A record for each key; without a value they are tombstones."""
    columns = {
        "key": pa.array([b"key %d" % key for key in keys], pa.binary()),
        "value": pa.array([value] * len(keys), pa.binary()),
    }
    (encoded,) = encode_batches(pa.table(columns), now_ms=now_ms)
    return memoryview(bytearray(encoded.data))


def view_of(batches: bytes) -> dict[bytes, bytes]:
    """The last value of each key; keys whose last record is a tombstone have none."""
    view: dict[bytes, bytes] = {}
    table = decode_batches(batches, columns=("key", "value"))
    for key, value in zip(*(column.to_pylist() for column in table.columns), strict=True):
        view.pop(key, None)
        if value is not None:
            view[key] = value
    return view


def look_at_keys(store: LogStore, where: TopicPartition) -> None:
    """Below the offset up to which a log is clean, no key may have two records.

    Raises:
        Violation: one has.
    """
    data = read_all(store.partitions[where], max_bytes=1 << 20)
    end = store._clean_offsets.of(where)
    keys = decode_batches(data, columns=("key",), end_offset=end).column(0).to_pylist()
    require(len(keys) == len(set(keys)), f"{where} has {keys} below {end}, where it is clean")


def compact(store: LogStore, where: TopicPartition, now_ms: int) -> None:
    """Compact all that may be, which must change nothing for who reads all of a log.

    Raises:
        Violation: it does.
    """
    log = store.partitions[where]
    before = view_of(read_all(log, max_bytes=1 << 20))
    log.state.roll()
    store._parts.changes.of(log.state)
    store.checkpoint()
    store.housekeeping(now_ms)
    if store.uncleanable:
        raise Violation(f"{where} is not compacted: {store.uncleanable}")
    after = view_of(read_all(log, max_bytes=1 << 20))
    require(after == before, f"{where} was {before}, and is {after} once it is compacted")
