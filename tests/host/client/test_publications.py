"""From lists and Arrow arrays to frames."""

from __future__ import annotations

import array

import numpy as np
import pyarrow as pa
import pytest

from penstock.host.client.publications import many, one
from penstock.host.errors import InvalidChunks
from penstock.host.publication import Publication, adjacent
from penstock.testing import Agent


def made(payloads: object, event_counts: list[int] | None = None) -> Publication:
    return many(payloads, event_counts, "t", 3)


def chunks(publication: Publication) -> list[bytes]:
    """Return the chunks that the agent would cut out of the frame."""
    whole = b"".join(publication.payload)
    assert len(whole) == publication.payload_bytes
    ends = np.frombuffer(publication.lengths, "<u4").cumsum()
    starts = [0, *ends[:-1].tolist()]
    return [whole[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


@pytest.mark.parametrize(
    "payloads",
    [
        [b"a", b"", b"ccc"],
        (b"a", bytearray(b""), memoryview(b"ccc")),
        pa.array([b"a", b"", b"ccc"]),
        pa.array(["a", "", "ccc"], pa.large_string()),
        pa.array([b"no", b"a", b"", b"ccc", b"no"], pa.large_binary()).slice(1, 3),
    ],
)
def test_chunks_are_what_was_handed_in(payloads: object) -> None:
    publication = made(payloads, [1, 0, 2])
    assert chunks(publication) == [b"a", b"", b"ccc"]
    assert (publication.count, publication.event_count) == (3, 3)
    assert (publication.topic, publication.partition) == ("t", 3)


def test_values_of_an_arrow_array_are_not_copied() -> None:
    values = pa.array([bytes(1_000), bytes(500)])
    (payload,) = made(values).payload
    assert np.frombuffer(payload, np.uint8).ctypes.data == values.buffers()[2].address


@pytest.mark.parametrize("ring_bytes", [0, 1 << 20])
def test_an_agent_takes_arrow_arrays_from_socket_and_ring(ring_bytes: int) -> None:
    with Agent() as agent, agent.client(ring_bytes=ring_bytes) as client:
        for kind in (pa.binary(), pa.large_string()):
            values = pa.array(["x" * 1_000] * 100, kind)
            client.publish_batch(values).result(20)


def test_payloads_are_kept_without_a_copy() -> None:
    payloads = [bytes(10), bytes(100_000)]
    kept = made(payloads).payload
    assert [id(piece) for piece in kept] == [id(payload) for payload in payloads]


def test_a_payload_of_wide_items_is_its_bytes() -> None:
    wide = array.array("i", [1, 2])
    assert chunks(made([wide, b"x"])) == [wide.tobytes(), b"x"]
    assert one(wide, 1, "", -1).payload_bytes == wide.itemsize * 2


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        ([], "0 chunks in one frame"),
        (pa.array([], pa.binary()), "0 chunks in one frame"),
        ([b"x"] * 4097, "4097 chunks in one frame"),
        (["text"], "type str"),
        ([b"x", None], "type NoneType"),
        (pa.array([1, 2]), "type int64"),
        (pa.array([b"x", None]), "1 chunks are null"),
    ],
)
def test_what_cannot_be_sent_is_named(payloads: object, message: str) -> None:
    with pytest.raises(InvalidChunks, match=message):
        made(payloads)


def test_lengths_have_to_fit_their_buffer() -> None:
    with pytest.raises(InvalidChunks, match="3 bytes in total, but their buffer has 4"):
        adjacent(b"abcd", np.array([1, 2]))
