"""The hand-made Produce codec against kio."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import ELEMENTS_MAX
from penstock.wire.kafka.framing import (
    Endpoint,
    MalformedRequest,
    read_uuid,
    response_prefix,
    uvarint,
)
from penstock.wire.kafka.produce import (
    FLEXIBLE_FROM,
    SINGLE_KEY_BYTES_MAX,
    TOPIC_IDS_FROM,
    PartitionResult,
    decode_request,
    decode_single,
    encode_response,
    encode_single_frame,
)
from penstock.wire.kafka.schema import load_entity, load_module
from tests.wire.kafka.entities import (
    ENDPOINTS,
    LEADERS,
    messages,
    node_endpoints,
    served_versions,
    written_by_kio,
)

VERSIONS = served_versions(BY_NAME["Produce"])


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_requests_read_as_kio_reads_them(version: int, data: Any) -> None:
    entity = data.draw(messages(BY_NAME["Produce"], version, "request"))
    whole = b"head" + written_by_kio(entity)
    request = decode_request(memoryview(whole), 4, version)
    assert request.transactional_id == entity.transactional_id
    assert request.acks == entity.acks
    assert timedelta(milliseconds=request.timeout_ms) == entity.timeout
    got = [
        (key, [(index, None if records is None else bytes(records)) for index, records in rows])
        for key, rows in request.topics
    ]
    by_id = version >= TOPIC_IDS_FROM
    assert got == [
        (
            (topic.topic_id.bytes if topic.topic_id else bytes(16))
            if by_id
            else topic.name.encode(),
            [(item.index, item.records) for item in topic.partition_data],
        )
        for topic in entity.topic_data
    ]
    for size in range(4, len(whole)):
        with pytest.raises(MalformedRequest):
            decode_request(memoryview(whole)[:size], 4, version)
    decode_request(memoryview(whole + b"more"), 4, version)


def test_records_are_views_of_the_frame() -> None:
    module = load_module("Produce", 9, "request")
    entity = module.ProduceRequest(
        acks=-1,
        timeout=timedelta(seconds=1),
        topic_data=(
            module.TopicProduceData(
                name="t", partition_data=(module.PartitionProduceData(index=0, records=b"abc"),)
            ),
        ),
    )
    frame = bytearray(written_by_kio(entity))
    records = decode_request(memoryview(frame), 0, 9).topics[0][1][0][1]
    assert records is not None
    records[0] = ord("x")
    assert b"xbc" in frame


@pytest.mark.parametrize("version", [3, 9, 13])
@settings(max_examples=200, deadline=None)
@given(junk=st.binary(max_size=120))
def test_arbitrary_bytes_never_do_worse_than_an_error(version: int, junk: bytes) -> None:
    try:
        decode_request(memoryview(junk), 0, version)
    except MalformedRequest:
        return


@pytest.mark.parametrize("claims", [2**31 - 1, ELEMENTS_MAX + 1])
def test_claims_of_huge_arrays_are_refused(claims: int) -> None:
    head = b"\0" + bytes(6)
    with pytest.raises(MalformedRequest, match="has length"):
        decode_request(memoryview(head + uvarint(claims + 1) + bytes(64)), 0, 9)
    plain = b"\xff\xff" + bytes(6) + claims.to_bytes(4, "big") + bytes(64)
    with pytest.raises(MalformedRequest, match="has length"):
        decode_request(memoryview(plain), 0, 3)


_TEXT = st.none() | st.text(max_size=150)
_RESULTS = st.builds(
    PartitionResult,
    index=st.integers(0, 2**31 - 1),
    error=st.sampled_from([0, 3, 87]),
    base_offset=st.integers(-1, 2**63 - 1),
    log_append_time_ms=st.integers(-1, 4_000_000_000_000),
    log_start_offset=st.integers(-1, 2**63 - 1),
    message=_TEXT,
    record_errors=st.lists(st.tuples(st.integers(0, 2**31 - 1), _TEXT), max_size=2).map(tuple),
    leader=LEADERS,
)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_responses_equal_those_of_kio(version: int, data: Any) -> None:
    keys = st.binary(min_size=16, max_size=16).filter(any)
    if version < TOPIC_IDS_FROM:
        keys = st.text(max_size=150).map(str.encode)
    topics = data.draw(st.lists(st.tuples(keys, st.lists(_RESULTS, max_size=3)), max_size=3))
    endpoints = data.draw(ENDPOINTS)
    found = encode_response(version, topics, endpoints)
    assert found == written_by_kio(_entity(version, topics, endpoints))


def _entity(version: int, topics: Any, endpoints: list[Endpoint]) -> Any:
    module = load_module("Produce", version, "response")
    responses = []
    for key, results in topics:
        name = {"topic_id": read_uuid(key)} if version >= TOPIC_IDS_FROM else {"name": key.decode()}
        partitions = tuple(_partition(module, version, result) for result in results)
        responses.append(module.TopicProduceResponse(**name, partition_responses=partitions))
    entity = load_entity("Produce", version, "response")
    fields = {"responses": tuple(responses), "throttle_time": timedelta(0)}
    if version >= 10:
        fields["node_endpoints"] = node_endpoints(module, endpoints)
    return entity(**fields)


def _partition(module: Any, version: int, result: PartitionResult) -> Any:
    from kio.schema.errors import ErrorCode

    time = result.log_append_time_ms
    fields: dict[str, Any] = {
        "index": result.index,
        "error_code": ErrorCode(result.error),
        "base_offset": result.base_offset,
        "log_append_time": None if time == -1 else _at(time),
    }
    if version >= 5:
        fields["log_start_offset"] = result.log_start_offset
    if version >= 8:
        fields["error_message"] = result.message
        fields["record_errors"] = tuple(
            module.BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=text)
            for index, text in result.record_errors
        )
    if version >= 10 and result.leader is not None:
        fields["current_leader"] = module.LeaderIdAndEpoch(
            leader_id=result.leader[0], leader_epoch=result.leader[1]
        )
    return module.PartitionProduceResponse(**fields)


def _at(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def test_old_versions_are_written_in_their_own_shape() -> None:
    topics = [(b"t", [PartitionResult(1, 35)])]
    name = b"\0\0\0\x01\0\x01t\0\0\0\x01"
    head = b"\0\0\0\x01\0\x23" + b"\xff" * 8
    assert encode_response(0, topics) == name + head
    assert encode_response(1, topics) == name + head + bytes(4)
    assert encode_response(2, topics) == name + head + b"\xff" * 8 + bytes(4)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(result=_RESULTS, correlation_id=st.integers(0, 2**31 - 1), key=st.text(max_size=140))
def test_the_frame_of_a_single_partition_equals_the_general_one(
    version: int, result: PartitionResult, correlation_id: int, key: str
) -> None:
    name = bytes(range(16)) if version >= TOPIC_IDS_FROM else key.encode()
    if result.error or len(name) > SINGLE_KEY_BYTES_MAX:
        return
    frame = encode_single_frame(
        version, correlation_id, name, result.index, result.base_offset, result.log_append_time_ms,
        result.log_start_offset,
    )  # fmt: skip
    result.message, result.record_errors, result.leader = None, (), None
    body = encode_response(version, [(name, [result])])
    header_version = 1 if version >= FLEXIBLE_FROM else 0
    assert frame == response_prefix(correlation_id, header_version, len(body)) + body


def _single_request(version: int, key: bytes, records: bytes) -> bytes:
    if version < FLEXIBLE_FROM:
        body = b"head\xff\xff" + struct.pack(">hiih", -1, 30_000, 1, len(key)) + key
        return body + struct.pack(">iii", 1, 7, len(records)) + records
    named = key if version >= TOPIC_IDS_FROM else uvarint(len(key) + 1) + key
    body = b"head\0\xff\xff\0\0\x75\x30\x02" + named + b"\x02\0\0\0\x07"
    return body + uvarint(len(records) + 1) + records + bytes(3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 126, 127, 128, 16_382, 16_383, 16_384])
def test_a_request_with_one_batch_reads_as_by_the_general_decoder(version: int, size: int) -> None:
    key = bytes(range(16)) if version >= TOPIC_IDS_FROM else b"name"
    frame = memoryview(_single_request(version, key, b"r" * size))
    single = decode_single(frame, 4, version)
    assert single is not None
    request = decode_request(frame, 4, version)
    assert single[:2] == (request.acks, request.timeout_ms) == (-1, 30_000)
    assert single[2] == request.topics[0][0] == key
    assert [single[3:]] == request.topics[0][1]
    assert (single[3], bytes(single[4])) == (7, b"r" * size)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_other_requests_are_left_to_the_general_decoder(version: int, data: Any) -> None:
    entity = data.draw(messages(BY_NAME["Produce"], version, "request"))
    frame = memoryview(b"head" + written_by_kio(entity))
    request = decode_request(frame, 4, version)
    single = decode_single(frame, 4, version)
    if single is not None:
        assert request.transactional_id is None
        assert [(single[2], [single[3:]])] == request.topics
        assert single[:2] == (request.acks, request.timeout_ms)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_of_a_request_with_one_batch_is_left_to_the_general_decoder(version: int) -> None:
    key = bytes(range(16)) if version >= TOPIC_IDS_FROM else b"name"
    whole = _single_request(version, key, b"r" * 200)
    for size in range(4, len(whole)):
        assert decode_single(memoryview(whole)[:size], 4, version) is None
    assert decode_single(memoryview(whole + b"more"), 4, version) is None


@pytest.mark.parametrize("version", [8, 12])
def test_long_and_missing_names_are_left_to_the_general_decoder(version: int) -> None:
    for size, read in ((0, True), (SINGLE_KEY_BYTES_MAX, True), (SINGLE_KEY_BYTES_MAX + 1, False)):
        frame = memoryview(_single_request(version, b"n" * size, b"r"))
        assert (decode_single(frame, 4, version) is not None) == read
    named = struct.pack(">h", 1) + b"n" if version < FLEXIBLE_FROM else uvarint(2) + b"n"
    missing = b"\xff\xff" if version < FLEXIBLE_FROM else b"\0"
    frame = memoryview(_single_request(version, b"n", b"r").replace(named, missing, 1))
    assert decode_single(frame, 4, version) is None
