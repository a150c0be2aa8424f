"""The hand-made encoder of ShareFetch's answers against the generated one."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.fetch import SharePartitionAnswer, encode_response

i16, i32, i64 = (st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (16, 32, 64))
texts = st.none() | st.text(max_size=200)
partitions = st.builds(
    SharePartitionAnswer,
    index=i32, error=st.sampled_from([0, 3, 6, 100]), message=texts, acknowledge_error=i16,
    acknowledge_message=texts, leader=st.tuples(i32, i32),
    buffers=st.lists(st.binary(min_size=1, max_size=200), max_size=3),
    acquired=st.lists(st.tuples(i64, i64, i16), max_size=130),
)  # fmt: skip
endpoints = st.tuples(i32, st.text(max_size=9), i32, texts)


@pytest.mark.parametrize("version", [1, 2])
@given(
    topics=st.dictionaries(st.uuids(), st.lists(partitions, max_size=3), max_size=3),
    addresses=st.lists(endpoints, max_size=2),
    lock=st.integers(0, 2**31 - 1),
)
def test_it_is_what_the_schema_says(
    version: int, topics: dict[UUID, list[SharePartitionAnswer]], addresses: Any, lock: int
) -> None:
    for partition in (partition for found in topics.values() for partition in found):
        partition.size_bytes = sum(map(len, partition.buffers))
    answered = [(topic_id.bytes, found) for topic_id, found in topics.items()]
    pieces = encode_response(answered, lock_timeout_ms=lock, endpoints=addresses)
    expected = {
        "acquisition_lock_timeout": lock,
        "responses": [
            {"topic_id": topic_id, "partitions": [plain(partition) for partition in found]}
            for topic_id, found in topics.items()
        ],
        "node_endpoints": [
            dict(zip(("node_id", "host", "port", "rack"), address, strict=True))
            for address in addresses
        ],
    }
    assert b"".join(pieces) == encoder("ShareFetch", version, "response")(expected)


def plain(one: SharePartitionAnswer) -> dict[str, Any]:
    return {
        "partition_index": one.index,
        "error_code": one.error,
        "error_message": one.message,
        "acknowledge_error_code": one.acknowledge_error,
        "acknowledge_error_message": one.acknowledge_message,
        "current_leader": {"leader_id": one.leader[0], "leader_epoch": one.leader[1]},
        "records": b"".join(one.buffers),
        "acquired_records": [
            {"first_offset": first, "last_offset": last, "delivery_count": count}
            for first, last, count in one.acquired
        ],
    }


def test_records_are_not_copied() -> None:
    records = b"x" * 100
    one = SharePartitionAnswer(0, buffers=[records], size_bytes=100)
    assert any(
        piece is records for piece in encode_response([(bytes(16), [one])], lock_timeout_ms=1)
    )
