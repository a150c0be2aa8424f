"""Compiled encoders and decoders against kio's own, over every message of the table."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.wire.kafka.apis import BY_NAME, Api
from penstock.wire.kafka.decoder import ELEMENTS_MAX, NUMBERS_MAX, decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import TAGS_MAX, MalformedRequest, uvarint
from penstock.wire.kafka.schema import MessageKind, load_struct
from tests.wire.kafka.entities import (
    KINDS,
    TABLE,
    as_mapping,
    messages,
    served_versions,
    written_by_kio,
)

FEW = settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", TABLE, ids=lambda api: str(api.name))
@FEW
@given(data=st.data())
def test_bytes_equal_those_of_kio_and_read_back(api: Api, kind: MessageKind, data: Any) -> None:
    version = data.draw(st.sampled_from(served_versions(api)))
    entity = data.draw(messages(api, version, kind))
    expected = written_by_kio(entity)
    assert encoder(api.name, version, kind, "entity")(entity) == expected
    mapping = as_mapping(entity, load_struct(api.name, version, kind))
    assert encoder(api.name, version, kind)(mapping) == expected
    decoded, end = decoder(api.name, version, kind)(memoryview(expected), 0)
    assert (decoded, end) == (entity, len(expected))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", TABLE, ids=lambda api: str(api.name))
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_every_truncation_is_refused(api: Api, kind: MessageKind, data: Any) -> None:
    version = data.draw(st.sampled_from(served_versions(api)))
    whole = written_by_kio(data.draw(messages(api, version, kind)))
    decode = decoder(api.name, version, kind)
    for size in range(len(whole)):
        with pytest.raises(MalformedRequest, match=api.name):
            decode(whole[:size], 0)
    assert decode(b"ab" + whole + b"cd", 2)[1] == len(whole) + 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("api", TABLE, ids=lambda api: str(api.name))
@settings(FEW, max_examples=10)
@given(data=st.data())
def test_arbitrary_bytes_never_do_worse_than_an_error(
    api: Api, kind: MessageKind, data: Any
) -> None:
    version = data.draw(st.sampled_from(served_versions(api)))
    junk = data.draw(st.binary(max_size=200))
    try:
        _, end = decoder(api.name, version, kind)(junk, 0)
    except MalformedRequest:
        return
    assert end <= len(junk)


@pytest.mark.parametrize(("version", "claims"), [(1, 2**31 - 1), (1, -5), (9, 2**31 - 1)])
def test_an_array_that_claims_too_much_is_refused_before_anything_is_allocated(
    version: int, claims: int
) -> None:
    length = struct.pack(">i", claims) if version == 1 else uvarint(claims)
    decode = decoder("Metadata", version, "request")
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            decode(length + bytes(40), 0)
        # Of all threads: some may be left of other tests. What is claimed is a thousand times it.
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_the_elements_of_one_message_are_bounded_over_all_its_arrays() -> None:
    inner = NUMBERS_MAX // 2
    topic = uvarint(2) + b"t" + uvarint(inner + 1) + bytes(4 * inner) + b"\0"
    body = uvarint(4) + topic * 3
    with pytest.raises(MalformedRequest, match="elements"):
        decoder("DescribeProducers", 0, "request")(body + b"\0", 0)


def test_the_unknown_tagged_fields_of_a_message_are_bounded() -> None:
    fields = b"\1\1\0" + bytes(4)
    decode = decoder("ApiVersions", 5, "request")

    def body(count: int) -> bytes:
        return fields + uvarint(count) + b"\x63\0" * count

    assert decode(body(TAGS_MAX), 0)[1] == len(body(TAGS_MAX))
    with pytest.raises(MalformedRequest, match="tagged fields"):
        decode(body(TAGS_MAX + 1), 0)


def test_tagged_fields_are_counted_over_nested_sections() -> None:
    half = TAGS_MAX // 2 + 1
    tags = uvarint(half) + b"\x63\0" * half
    body = b"\2" + b"\2t" + b"\1" + tags + tags
    with pytest.raises(MalformedRequest, match="tagged fields"):
        decoder("DescribeProducers", 0, "request")(body, 0)


def test_a_null_is_refused_where_the_schema_has_none() -> None:
    with pytest.raises(MalformedRequest, match="null"):
        decoder("Metadata", 0, "request")(b"\xff\xff\xff\xff", 0)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="UTF-8"):
        decoder("Heartbeat", 4, "request")(b"\x02\xff" + bytes(20), 0)


def test_a_mapping_need_not_know_the_version() -> None:
    answer = {"brokers": [], "topics": [], "cluster_id": "c", "controller_id": 1, "new": 5}
    for version in served_versions(BY_NAME["Metadata"]):
        body = encoder("Metadata", version, "response")(answer)
        assert decoder("Metadata", version, "response")(body, 0)[1] == len(body)


@pytest.mark.parametrize("length", [0, 126, 127, 128, 16_383])
def test_texts_and_arrays_of_any_length_read_back(length: int) -> None:
    topics = [{"name": "t", "partitions": []}] * length + [{"name": "t" * length, "partitions": []}]
    body = encoder("OffsetCommit", 9, "response")({"topics": topics})
    decoded, end = decoder("OffsetCommit", 9, "response")(body, 0)
    assert end == len(body)
    assert [topic.name for topic in decoded.topics] == [*["t"] * length, "t" * length]


def test_times_and_durations_may_be_integers() -> None:
    body = encoder("Produce", 9, "response")(
        {
            "responses": [
                {
                    "name": "t",
                    "partition_responses": [
                        {
                            "index": 0,
                            "base_offset": 5,
                            "log_append_time": 1_000,
                            "record_errors": [],
                        }
                    ],
                }
            ],
            "throttle_time": 7,
        }
    )
    decoded, _ = decoder("Produce", 9, "response")(body, 0)
    assert decoded.throttle_time.total_seconds() == 0.007
    assert decoded.responses[0].partition_responses[0].log_append_time.timestamp() == 1


def test_the_largest_accepted_message_takes_bounded_memory() -> None:
    count = ELEMENTS_MAX
    body = uvarint(count + 1) + (bytes(16) + b"\x02t\0") * count + b"\0\0\0"
    decode = decoder("Metadata", 12, "request")
    tracemalloc.start()
    try:
        decode(body, 0)
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()
