"""The hand-made Fetch codec against kio."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.fetch import (
    REPEATED_TAIL_BYTES_MAX,
    TOPIC_IDS_FROM,
    PartitionAnswer,
    RepeatedRows,
    ResponseWriter,
    decode_request,
)
from penstock.wire.kafka.framing import MalformedRequest, read_uuid, uvarint
from penstock.wire.kafka.schema import load_entity, load_module
from tests.wire.kafka.entities import (
    ENDPOINTS,
    LEADERS,
    messages,
    node_endpoints,
    served_versions,
    written_by_kio,
)

VERSIONS = served_versions(BY_NAME["Fetch"])


def _key(version: int, topic: Any) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic.topic_id.bytes if topic.topic_id else bytes(16)
    name: str = topic.topic
    return name.encode()


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_requests_read_as_kio_reads_them(version: int, data: Any) -> None:
    entity = data.draw(messages(BY_NAME["Fetch"], version, "request"))
    whole = b"head" + written_by_kio(entity)
    request = decode_request(memoryview(whole), 4, version)
    assert timedelta(milliseconds=request.max_wait_ms) == entity.max_wait
    assert request.min_bytes == entity.min_bytes
    assert request.max_bytes == entity.max_bytes
    assert request.isolation_level == entity.isolation_level
    assert request.session_id == getattr(entity, "session_id", 0)
    assert request.session_epoch == getattr(entity, "session_epoch", -1)
    assert request.rack == getattr(entity, "rack_id", "")
    replica = entity.replica_state.replica_id if version >= 15 else entity.replica_id
    assert request.replica_id == replica
    assert request.topics == [
        (
            _key(version, topic),
            [
                (
                    item.partition,
                    getattr(item, "current_leader_epoch", -1),
                    item.fetch_offset,
                    getattr(item, "last_fetched_epoch", -1),
                    item.partition_max_bytes,
                )
                for item in topic.partitions
            ],
        )
        for topic in entity.topics
    ]
    assert request.forgotten == [
        (_key(version, topic), topic.partitions)
        for topic in getattr(entity, "forgotten_topics_data", ())
    ]
    for size in range(4, len(whole)):
        with pytest.raises(MalformedRequest):
            decode_request(memoryview(whole)[:size], 4, version)
    decode_request(memoryview(whole + b"more"), 4, version)


@pytest.mark.parametrize("version", [4, 7, 11, 12, 17])
@settings(max_examples=100, deadline=None)
@given(junk=st.binary(max_size=120))
def test_arbitrary_bytes_never_do_worse_than_an_error(version: int, junk: bytes) -> None:
    try:
        decode_request(memoryview(junk), 0, version)
    except MalformedRequest:
        return


def test_claims_of_huge_arrays_are_refused() -> None:
    with pytest.raises(MalformedRequest, match="an array has"):
        decode_request(memoryview(bytes(25) + uvarint(2**31 - 1) + bytes(64)), 0, 12)
    with pytest.raises(MalformedRequest, match="an array has"):
        decode_request(memoryview(bytes(17) + b"\x7f\xff\xff\xff" + bytes(64)), 0, 4)
    with pytest.raises(MalformedRequest, match="an array has"):
        decode_request(memoryview(bytes(17) + b"\xff\xff\xff\xff" + bytes(64)), 0, 4)


_ANSWERS = st.builds(
    PartitionAnswer,
    index=st.integers(0, 2**31 - 1),
    error=st.sampled_from([0, 1, 6]),
    high_watermark=st.integers(-1, 2**63 - 1),
    last_stable_offset=st.integers(-1, 2**63 - 1),
    log_start_offset=st.integers(-1, 2**63 - 1),
    buffers=st.lists(st.binary(max_size=200), max_size=3),
    aborted=st.none()
    | st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), max_size=200),
    preferred_replica=st.integers(-1, 9),
    leader=LEADERS,
    parts=st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
).map(lambda answer: _sized(answer))


def _sized(answer: PartitionAnswer) -> PartitionAnswer:
    answer.size_bytes = sum(map(len, answer.buffers))
    return answer


def _of_one_topic(version: int, partitions: list[int], rack: str = "") -> bytes:
    """A request for partitions of one topic, from the offsets of their indexes times 10."""
    topic = {"topic_id": UUID(int=7)} if version >= TOPIC_IDS_FROM else {"topic": "orders"}
    rows = [
        {"partition": index, "fetch_offset": index * 10, "partition_max_bytes": 1 << 20}
        for index in partitions
    ]
    fields = {
        "max_wait": 500,
        "min_bytes": 1,
        "topics": [{**topic, "partitions": rows}],
        "forgotten_topics_data": [],
        "rack_id": rack,
    }
    return encoder("Fetch", version, "request")(fields)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_equals_one_whose_rows_are_rotated(version: int) -> None:
    first = list(range(256, 276))
    frame = memoryview(b"head" + _of_one_topic(version, first))
    rows = RepeatedRows.of(frame, 4, version, len(first))
    assert rows is not None

    def equals(partitions: list[int], **changes: Any) -> bool:
        return rows.equal(memoryview(b"123" + _of_one_topic(version, partitions, **changes)), 3)

    for turn in range(len(first)):
        assert equals(first[turn:] + first[:turn])
    assert not equals(first[::-1])
    assert not equals(first[:-1])
    assert not equals([*first[:-1], 999])
    assert not equals([*first[:-2], first[-1], first[-2]])
    assert not equals([*first, 999])
    if version >= 11:
        assert not equals(first, rack="eu")
    for end in range(4, len(frame)):
        assert not rows.equal(frame[:end], 4)
    assert not rows.equal(memoryview(bytes(frame) + b"\0"), 4)


def test_requests_with_tagged_rows_or_long_ends_are_not_compared() -> None:
    plain = _of_one_topic(12, [1])
    row_tags = len(plain) - 5  # before the topic's tags, forgotten topics, rack and tags
    tagged = plain[:row_tags] + b"\1\x63\0" + plain[row_tags + 1 :]
    for frame in (tagged, _of_one_topic(12, [1], rack="r" * REPEATED_TAIL_BYTES_MAX)):
        assert len(decode_request(memoryview(frame), 0, 12).topics[0][1]) == 1
        assert RepeatedRows.of(memoryview(frame), 0, 12, 1) is None
    assert RepeatedRows.of(memoryview(plain), 0, 12, 1) is not None


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_responses_equal_those_of_kio(version: int, data: Any) -> None:
    keys = st.binary(min_size=16, max_size=16).filter(any)
    if version < TOPIC_IDS_FROM:
        keys = st.text(max_size=150).map(str.encode)
    topics = data.draw(st.lists(st.tuples(keys, st.lists(_ANSWERS, max_size=3)), max_size=3))
    error = data.draw(st.sampled_from([0, 70])) if version >= 7 else 0
    session_id = data.draw(st.integers(0, 2**31 - 1)) if version >= 7 else 0
    writer = ResponseWriter(version)
    endpoints = data.draw(ENDPOINTS)
    pieces = writer.write(topics, error=error, session_id=session_id, endpoints=endpoints)
    entity = _entity(version, topics, error, session_id)
    if version >= 16:
        module = load_module("Fetch", version, "response")
        entity = replace(entity, node_endpoints=node_endpoints(module, endpoints))
    expected = written_by_kio(entity)
    assert b"".join(pieces) == expected
    assert writer.size_bytes == len(expected)


def test_record_buffers_are_handed_on_as_they_are() -> None:
    records = memoryview(bytes(1000))
    answer = PartitionAnswer(0, buffers=[records], size_bytes=1000)
    pieces = ResponseWriter(12).write([(b"t", [answer])])
    assert any(piece is records for piece in pieces)


def _entity(version: int, topics: Any, error: int, session_id: int) -> Any:
    from kio.schema.errors import ErrorCode

    module = load_module("Fetch", version, "response")
    responses = []
    for key, answers in topics:
        name = (
            {"topic_id": read_uuid(key)} if version >= TOPIC_IDS_FROM else {"topic": key.decode()}
        )
        partitions = tuple(_partition(module, version, answer) for answer in answers)
        responses.append(module.FetchableTopicResponse(**name, partitions=partitions))
    fields: dict[str, Any] = {"throttle_time": timedelta(0), "responses": tuple(responses)}
    if version >= 7:
        fields |= {"error_code": ErrorCode(error), "session_id": session_id}
    return load_entity("Fetch", version, "response")(**fields)


def _partition(module: Any, version: int, answer: PartitionAnswer) -> Any:
    from kio.schema.errors import ErrorCode

    fields: dict[str, Any] = {
        "partition_index": answer.index,
        "error_code": ErrorCode(answer.error),
        "high_watermark": answer.high_watermark,
        "last_stable_offset": answer.last_stable_offset,
        "aborted_transactions": None
        if answer.aborted is None
        else tuple(
            module.AbortedTransaction(producer_id=one, first_offset=offset)
            for one, offset in answer.aborted
        ),
        "records": b"".join(answer.buffers),
    }
    if version >= 5:
        fields["log_start_offset"] = answer.log_start_offset
    if version >= 11:
        fields["preferred_read_replica"] = answer.preferred_replica
    if version >= 12 and answer.parts is not None:
        fields["diverging_epoch"] = module.EpochEndOffset(
            epoch=answer.parts[0], end_offset=answer.parts[1]
        )
    elif version >= 16 and answer.leader is not None:
        fields["current_leader"] = module.LeaderIdAndEpoch(
            leader_id=answer.leader[0], leader_epoch=answer.leader[1]
        )
    return module.PartitionData(**fields)
