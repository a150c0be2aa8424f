"""Offset pairs of mirrored partitions, in MirrorMaker 2's topic and format.

A pair (`upstream`, `downstream`) states that the records of the source below `upstream` are in the
target below `downstream`, and the others are not. A transaction of the mirror writes a pair for
each of its batches, and for the end of each partition. In the topic, a pair is stored as the last
record of both sides, so with offsets that are lower by one, as MirrorMaker's `OffsetSync`:

    key    topic string (i16 size, bytes), partition i32
    value  upstream offset i64, downstream offset i64             big endian

Source: MirrorMaker's `OffsetSync`, `OffsetSyncStore`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.client import Client
from penstock.client.protocol import TopicAndPartition
from penstock.records.extents import READ_COMMITTED

CONFIGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(30 * 86_400_000),
    "retention.bytes": str(1 << 30),
}
LOADED_MAX: Final = 2_000_000
"""Most pairs that are read from the topic; older ones are ignored."""
PAIRS_MAX: Final = 200_000
"""Most pairs of a partition in memory; the older half is dropped above it."""
_SIZE: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">i")
_VALUE: Final = struct.Struct(">qq")


class Pair(NamedTuple):
    """Offsets of one position in the source and in the target."""

    upstream: int
    downstream: int


Located = tuple[TopicAndPartition, Pair]


def batch_pairs(batches: Iterable[tuple[int, int]], downstream: int) -> Iterator[Pair]:
    """Yield the pair of each batch in a range of the target that has no other records.

    Args:
        batches: source offset of the first record, and number of records.
        downstream: first offset of the range.
    """
    for upstream, count in batches:
        yield Pair(upstream, downstream)
        downstream += count


def text_bytes(text: str) -> bytes:
    """Return a string as Kafka's type STRING."""
    encoded = text.encode()
    return _SIZE.pack(len(encoded)) + encoded


def partition_bytes(topic: str, partition: int) -> bytes:
    """Return the key of a partition's pairs."""
    return text_bytes(topic) + _PARTITION.pack(partition)


def _partition_of(key: bytes) -> TopicAndPartition:
    (size,) = _SIZE.unpack_from(key)
    end = _SIZE.size + size
    return key[_SIZE.size : end].decode(), _PARTITION.unpack_from(key, end)[0]


def rows_of(pairs: Iterable[Located]) -> Any:
    """Return pairs as rows of their topic."""
    keys, values = [], []
    for (topic, partition), pair in pairs:
        keys.append(partition_bytes(topic, partition))
        values.append(_VALUE.pack(pair.upstream - 1, pair.downstream - 1))
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


class Syncs:
    """Pairs of all partitions, in the order of their offsets."""

    def __init__(self) -> None:
        self.pairs: dict[TopicAndPartition, tuple[list[int], list[int]]] = {}
        """Source offsets and target offsets of the pairs, by partition."""
        self._next: dict[str, int] = {}
        """Offset after the last pair that was loaded, by topic."""

    def add(self, place: TopicAndPartition, pair: Pair) -> None:
        ups, downs = self.pairs.setdefault(place, ([], []))
        if ups and pair.upstream <= ups[-1]:
            return
        if downs and pair.downstream < downs[-1]:  # the target's topic was created again
            ups.clear()
            downs.clear()
        ups.append(pair.upstream)
        downs.append(pair.downstream)
        if len(ups) > PAIRS_MAX:
            del ups[: PAIRS_MAX // 2], downs[: PAIRS_MAX // 2]

    def knows(self, place: TopicAndPartition) -> bool:
        return place in self.pairs

    def downstream(self, place: TopicAndPartition, upstream: int) -> int | None:
        """Return the target's offset for an offset of the source, at most one batch lower.

        None if the offset is below all pairs.
        """
        ups, downs = self.pairs.get(place, ([], []))
        at = bisect_right(ups, upstream)
        return downs[at - 1] if at else None

    def upstream(self, place: TopicAndPartition, downstream: int) -> int:
        """Return the highest offset of the source whose pair is at or below the target's offset.

        0 if there is no such pair.
        """
        ups, downs = self.pairs.get(place, ([], []))
        at = bisect_right(downs, downstream)
        return ups[at - 1] if at else 0

    def load(self, client: Client, topic: str) -> None:
        """Add the pairs that were committed to a topic since the last call."""
        (end,) = client.list_offsets(topic, isolation=READ_COMMITTED).values()
        (first,) = client.list_offsets(topic, "earliest").values()
        start = max(first, end - LOADED_MAX, self._next.get(topic, 0))
        if start >= end:
            return
        rows = client.read_arrow(
            topic, columns=("key", "value"), start={0: start}, end={0: end},
            isolation="read_committed",
        )  # fmt: skip
        self._next[topic] = end
        if not rows.num_rows:
            return
        keys = rows["key"].combine_chunks().dictionary_encode()
        numbers = keys.indices.to_numpy()
        values = np.frombuffer(b"".join(rows["value"].to_pylist()), ">i8").reshape(-1, 2) + 1
        for number, key in enumerate(keys.dictionary.to_pylist()):
            place = _partition_of(key)
            for pair in values[numbers == number].tolist():
                self.add(place, Pair(*pair))
