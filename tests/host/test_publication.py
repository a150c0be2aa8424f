"""Publications: what a frame of theirs says, and that they end once."""

from __future__ import annotations

from struct import pack

import pytest

from penstock.host.credits import Credit
from penstock.host.errors import InvalidChunks, PublishTimedOut
from penstock.host.port import ChunkFormat
from penstock.host.publication import Publication, batch, single
from penstock.wire.frames import DATA, DATA_BATCH


def test_a_single_chunk() -> None:
    publication = single(b"abc", event_count=4, topic="t", partition=0)
    publication.first_sequence = 9
    header = publication.header()
    assert (header.type, header.first_sequence, header.event_count) == (DATA, 9, 4)
    assert (header.topic, header.partition, header.count) == ("t", 0, 0)
    assert not header.HasField("log_sequence")
    publication.log_sequence = 0
    assert publication.header().HasField("log_sequence")
    assert publication.footprint == Credit(1, 4, 3)
    assert (publication.records, publication.batches) == (1, 1)


def test_several_chunks() -> None:
    publication = batch([b"a", memoryview(b"bc"), bytearray()], event_counts=[0, 5, 1])
    publication.first_sequence = 0
    header = publication.header()
    assert (header.type, header.count, header.event_count) == (DATA_BATCH, 3, 6)
    assert header.lengths == pack("<3I", 1, 2, 0)
    assert header.event_counts == pack("<3I", 0, 5, 1)
    assert header.offsets == b""
    assert not header.HasField("partition")
    assert publication.footprint == Credit(3, 6, 3)
    assert (publication.records, publication.batches) == (3, 1)


def test_one_event_each_is_not_spelt_out() -> None:
    publication = batch([b"a", b"b"])
    publication.first_sequence = 0
    assert publication.header().event_counts == b""
    assert publication.event_count == 2


def test_record_batches_count_their_records() -> None:
    publication = batch([b"a", b"b"], event_counts=[10, 20], format=ChunkFormat.RECORD_BATCH)
    assert (publication.records, publication.batches) == (30, 2)
    publication = single(b"a", event_count=7, format=ChunkFormat.RECORD_BATCH)
    assert (publication.records, publication.batches) == (7, 1)


@pytest.mark.parametrize(
    ("chunks", "counts", "message"),
    [
        ([], None, "0 chunks in one frame; 1 to 4096"),
        ([b""] * 4_097, None, "4097 chunks in one frame"),
        ([b"a"], [1, 2], "2 event counts were given for 1 chunks"),
        ([b"a", b"b"], [-1, 2], "event count -1"),
        ([b"a", b"b"], [2**31 - 1, 1], "2147483648 events in one frame"),
    ],
)
def test_chunks_that_make_no_frame(
    chunks: list[bytes], counts: list[int] | None, message: str
) -> None:
    with pytest.raises(InvalidChunks, match=message):
        batch(chunks, event_counts=counts)


@pytest.mark.parametrize("events", [-1, 2**31])
def test_events_that_make_no_chunk(events: int) -> None:
    with pytest.raises(InvalidChunks, match=f"{events} events"):
        single(b"x", event_count=events)


def test_it_ends_once_and_lets_go_of_its_payload() -> None:
    ended: list[Publication] = []
    publication = single(b"x")
    publication.on_end = ended.append
    error = PublishTimedOut("late")
    publication.end(error)
    publication.end(None)
    assert ended == [publication]
    assert publication.error is error
    assert publication.payload == ()
