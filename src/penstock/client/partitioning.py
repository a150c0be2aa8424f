"""Kafka's partitioner for whole columns of keys.

The partition of a key is `(murmur2(key) & 0x7fffffff) % partitions`, the default of all Kafka
clients. So records with equal keys get the same partition from any producer.

The hash consumes a key in words of four bytes. Here each round of NumPy processes the w-th word of
*all* keys. Keys of equal length are read as a view whose stride is the length. For other keys, the
words are gathered from the key bytes as unaligned 32-bit words. These keys are first sorted by
descending length, so the keys that still have a w-th word form a prefix. The number of rounds is
the number of words of the longest key.

Source: Kafka's `Utils.murmur2` and `BuiltInPartitioner.partitionForKey`; MurmurHash 2 by Austin
Appleby.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.client.errors import InvalidArgument

Hashes = npt.NDArray[np.uint32]
Partitions = npt.NDArray[np.int32]

_SEED: Final = np.uint32(0x9747B28C)
_MULTIPLIER: Final = np.uint32(0x5BD1E995)
_UINT8_MAX: Final = 2**8 - 1
_UINT16_MAX: Final = 2**16 - 1
_POSITIVE: Final = np.uint32(0x7FFFFFFF)


def partitions_of_keys(keys: Any, count: int, *, unkeyed: int) -> Partitions:
    """Return the partition of each key of an Arrow array; null keys get partition `unkeyed`."""
    if pa.types.is_dictionary(keys.type):
        of_words = partitions_of_keys(keys.dictionary, count, unkeyed=unkeyed)
        indices = keys.indices.fill_null(0).to_numpy(zero_copy_only=False)
        result = of_words[indices] if len(of_words) else np.zeros(len(keys), np.int32)
    else:
        result = ((murmur2(keys) & _POSITIVE) % np.uint32(count)).astype(np.int32)
    if keys.null_count:
        result[keys.is_null().to_numpy(zero_copy_only=False)] = unkeyed
    return result


def murmur2(keys: Any) -> Hashes:
    """Return Kafka's hash of each element of a binary or string array; nulls hash as empty keys."""
    size = len(keys)
    if size == 0:
        return np.empty(0, np.uint32)
    starts, lengths, data = _layout(keys)
    longest = int(lengths.max())
    order: npt.NDArray[np.int64] | None = None
    if int(lengths.min()) != longest:
        missing = longest - lengths
        narrow = np.uint8 if longest <= _UINT8_MAX else np.uint16  # sorted by radix
        order = np.argsort(
            missing.astype(narrow) if longest <= _UINT16_MAX else missing, kind="stable"
        )
        starts, lengths = starts[order], lengths[order]
    hashes: Hashes = _SEED ^ lengths.astype(np.uint32)
    _mix_words(hashes, starts, lengths, data)
    _mix_tails(hashes, starts, lengths, data)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _MULTIPLIER
    hashes ^= hashes >> np.uint32(15)
    if order is None:
        return hashes
    result = np.empty_like(hashes)
    result[order] = hashes
    return result


def _layout(
    keys: Any,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    _, offsets_buffer, data_buffer = keys.buffers()
    kind = np.dtype(np.int64 if large else np.int32)
    offsets = np.frombuffer(
        offsets_buffer, kind, count=len(keys) + 1, offset=keys.offset * kind.itemsize
    ).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else _NOTHING
    return offsets[:-1], np.diff(offsets), data


_NOTHING: Final = np.empty(0, np.uint8)


def _mix_words(
    hashes: Hashes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> None:
    if data.size < 4:
        return
    # Element i of this view is the word that begins at byte i.
    words = np.ndarray(shape=(data.size - 3,), dtype="<u4", buffer=data, strides=(1,))
    counts = lengths >> 2
    rounds = int(counts[0])
    of_one_length = int(lengths[0]) == int(lengths[-1])  # so they are contiguous
    for index in range(rounds):
        # Lengths descend, so the keys with a word at this index are a prefix.
        ahead = int(np.searchsorted(-counts, -index, side="left"))
        if of_one_length:
            part = _strided(data, int(starts[0]) + 4 * index, int(lengths[0]), ahead) * _MULTIPLIER
        else:
            part = words[starts[:ahead] + 4 * index]
            part *= _MULTIPLIER
        part ^= part >> np.uint32(24)
        part *= _MULTIPLIER
        hashes[:ahead] *= _MULTIPLIER
        hashes[:ahead] ^= part


def _strided(data: npt.NDArray[np.uint8], begin: int, stride: int, count: int) -> Hashes:
    return np.ndarray((count,), "<u4", buffer=data, offset=begin, strides=(stride,))


def _mix_tails(
    hashes: Hashes,
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    data: npt.NDArray[np.uint8],
) -> None:
    rest = lengths & 3
    tails = starts + (lengths - rest)
    for index, shift in ((2, 16), (1, 8), (0, 0)):
        chosen = np.flatnonzero(rest > index)
        if chosen.size:
            hashes[chosen] ^= data[tails[chosen] + index].astype(np.uint32) << np.uint32(shift)
    chosen = np.flatnonzero(rest > 0)
    hashes[chosen] *= _MULTIPLIER


def groups(partitions: Partitions, count: int) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return a stable order of the rows by partition, and the start of each partition in it.

    The second list has `count + 1` entries; the last one is the number of rows.
    """
    if count <= 1 << 15:
        order = np.argsort(partitions.astype(np.int16), kind="stable")  # radix sort
    else:
        order = np.argsort(partitions, kind="stable")
    sizes = np.bincount(partitions, minlength=count)
    return order, [0, *np.cumsum(sizes).tolist()]


def spread(
    chunk: Any, rows: Any, *, topic: str, count: int, unkeyed: int
) -> Iterator[tuple[int, Any]]:
    """Yield each partition with its rows, in the order of the input.

    `chunk` is a result of `columns.normalise`, with a column `partition` or `key`, and `rows` is
    the result of `read_input` for it. Rows without a key get partition `unkeyed`.

    Raises:
        InvalidArgument: a row has a partition that the topic, of `count` partitions, does not have.
    """
    if "partition" in chunk.schema.names:
        partitions: Partitions = chunk.column("partition").to_numpy()
        check_partitions(topic, count, int(partitions.min()), int(partitions.max()))
    else:
        partitions = partitions_of_keys(chunk.column("key"), count, unkeyed=unkeyed)
    if count == 1 or bool((partitions == partitions[0]).all()):
        yield int(partitions[0]), rows
        return
    order, bounds = groups(partitions, count)
    ordered = rows.select(order)  # copies addresses only
    for partition in np.flatnonzero(np.diff(bounds)).tolist():
        yield partition, ordered.select(slice(bounds[partition], bounds[partition + 1]))


def check_partitions(topic: str, count: int, lowest: int, highest: int) -> None:
    """Raise `InvalidArgument` if a topic of `count` partitions lacks one of these partitions."""
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise InvalidArgument(
            f"partition {wrong} does not exist: topic {topic!r} has partitions 0 to {count - 1}"
        )
