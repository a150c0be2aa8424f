"""Frames and headers of requests, and those that cannot be trusted."""

from __future__ import annotations

import pytest

from penstock.wire.kafka.apis import BY_NAME
from penstock.wire.kafka.decoder import decoder
from penstock.wire.kafka.encoder import encoder
from penstock.wire.kafka.framing import (
    MalformedRequest,
    UntrustworthyFrame,
    check_length,
    read_request_header,
    request_frame,
    response_prefix,
)

LIMIT = 100 << 20


@pytest.mark.parametrize("version", [8, 9])
def test_a_request_frame_reads_back(version: int) -> None:
    body = encoder("Metadata", version, "request")({"topics": None})
    frame = memoryview(request_frame(3, version, 77, b"me", body))[4:]
    header = read_request_header(frame)
    assert (header.api_key, header.api_version) == (3, version)
    assert (header.correlation_id, header.client_id) == (77, "me")
    request, end = decoder("Metadata", version, "request")(frame, header.body_offset)
    assert request.topics is None
    assert end == len(frame)


def test_a_client_id_may_be_null() -> None:
    frame = bytes([0, 18, 0, 0, 0, 0, 0, 9, 255, 255])
    assert read_request_header(frame).client_id is None


def test_unknown_tagged_fields_of_the_header_are_skipped() -> None:
    whole = request_frame(3, 9, 1, b"", b"")[4:]
    assert whole[-1:] == b"\0"
    header = read_request_header(whole[:-1] + b"\x01\x05\x02ab")
    assert header.body_offset == len(whole) + 4


def test_every_truncation_of_a_header_is_refused() -> None:
    whole = request_frame(3, 9, 1, b"client", b"")[4:-1] + b"\x01\x05\x02ab"
    for size in range(len(whole)):
        with pytest.raises(MalformedRequest):
            read_request_header(whole[:size])


def test_a_client_id_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="UTF-8"):
        read_request_header(request_frame(3, 0, 1, b"\xff", b"")[4:])


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (-1, "less than"),
        (9, "less than"),
        (LIMIT + 1, "socket.request.max.bytes"),
        (0x16030100, "TLS"),
        (352_518_912, "352,518,912"),
    ],
)
def test_lengths_that_cannot_be_meant(length: int, text: str) -> None:
    with pytest.raises(UntrustworthyFrame, match=text):
        check_length(length, LIMIT)


def test_the_prefix_of_a_response() -> None:
    assert response_prefix(5, 0, 10) == bytes([0, 0, 0, 14, 0, 0, 0, 5])
    assert response_prefix(5, 1, 10) == bytes([0, 0, 0, 15, 0, 0, 0, 5, 0])
    assert BY_NAME["ApiVersions"].response_header_version(4) == 0
