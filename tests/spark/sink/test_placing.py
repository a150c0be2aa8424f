"""Rows to topics and partitions: Kafka's default partitioner, named partitions, turns."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.columnar import decode_batches, encode_batches, read_input
from penstock.spark.errors import InvalidRows
from penstock.spark.sink.blobs import RUN_ROWS_MIN, Target, Turns, by_partition, by_topic
from tests.client.test_partitioning import plain_murmur2

COUNT = 5
TARGET = Target(name="orders", topic_id="id", partitions=COUNT)


def chunk_of(**columns: Any) -> pa.RecordBatch:
    size = len(columns["value"])
    types = {"key": pa.binary(), "value": pa.binary(), "partition": pa.int32()}
    arrays = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    assert all(len(array) == size for array in arrays.values())
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def placed(chunk: pa.RecordBatch, turns: Turns | None = None) -> dict[int, list[bytes]]:
    """Values by partition, as a reader of the encoded records sees them."""
    found = {}
    for partition, rows in by_partition(chunk, read_input(chunk, 1), TARGET, turns or Turns(0)):
        batches = encode_batches(rows, now_ms=1)
        data = b"".join(bytes(batch.data) for batch in batches)
        found[partition] = decode_batches(data).column("value").to_pylist()
    return found


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=9), st.none() | st.integers(0, COUNT - 1)))
)
def test_a_partition_named_wins_then_the_key(rows: list[tuple[bytes | None, int | None]]) -> None:
    if not rows:
        return
    values = [str(number).encode() for number in range(len(rows))]
    chunk = chunk_of(key=[key for key, _ in rows], value=values, partition=[p for _, p in rows])
    found = placed(chunk)
    assert sorted(value for part in found.values() for value in part) == sorted(values)
    for number, (key, named) in enumerate(rows):
        if named is None and key is not None:
            named = (plain_murmur2(key) & 0x7FFFFFFF) % COUNT
        if named is not None:
            assert values[number] in found[named]
    for part in found.values():
        assert part == sorted(part, key=int)  # the order of the rows


def test_rows_without_a_key_go_round_in_full_runs() -> None:
    rows = 10 * RUN_ROWS_MIN
    chunk = chunk_of(value=[b"%d" % number for number in range(rows)])
    turns = Turns(3)
    sizes = Counter({partition: len(part) for partition, part in placed(chunk, turns).items()})
    assert sizes == dict.fromkeys(range(COUNT), rows // COUNT)
    few = chunk_of(value=[b"a", b"b", b"c"])
    where = [next(iter(placed(few, turns))) for _ in range(COUNT)]
    assert sorted(where) == list(range(COUNT))  # each small chunk is one run, of the next


@pytest.mark.parametrize("wrong", [-1, COUNT, 2**31 - 1])
def test_names_a_partition_that_is_not_there(wrong: int) -> None:
    with pytest.raises(InvalidRows, match=f"value {wrong}, but topic orders has partitions 0 to 4"):
        placed(chunk_of(value=[b"a", b"b"], partition=[0, wrong]))
    with pytest.raises(InvalidRows, match=f"value {wrong}, but"):
        placed(chunk_of(value=[b"a", b"b"], key=[b"k", b"k"], partition=[None, wrong]))


def test_splits_by_topic_in_the_order_of_rows() -> None:
    names = np.array(["a", "b", "a", "c", "b", "a"])
    chunk = chunk_of(value=[b"%d" % number for number in range(6)], topic=names.tolist())
    found = {name: part.column("value").to_pylist() for name, part in by_topic(chunk, None)}
    assert found == {"a": [b"0", b"2", b"5"], "b": [b"1", b"4"], "c": [b"3"]}
    assert [(name, part.num_rows) for name, part in by_topic(chunk, "all")] == [("all", 6)]


def test_wants_a_topic_for_every_row() -> None:
    chunk = chunk_of(value=[b"a", b"b"], topic=["a", None])
    with pytest.raises(InvalidRows, match="column topic is null in 1 rows"):
        list(by_topic(chunk, None))
