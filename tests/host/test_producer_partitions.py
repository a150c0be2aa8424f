"""Producer partitions: numbers, their bounds, gaps and what follows them."""

from __future__ import annotations

import pytest

from penstock.host.delivery import (
    LANE_BATCHES_IN_FLIGHT_MAX,
    PARTITIONS_PER_PRODUCER_MAX,
    ProducerPartition,
    ProducerPartitions,
)
from penstock.host.errors import LOG_SEQUENCES, InvalidChunks
from penstock.host.port import ChunkFormat
from penstock.host.publication import Publication, batch, single


class Sender:
    """Sends the heads of a producer partition, as `Delivery` does, with sequences of its own."""

    def __init__(self) -> None:
        self.producer_partition = ProducerPartition(numbered=True)
        self._sequence = 0

    def known(self) -> Sender:
        """A first frame was accepted, so that more than one may be under way."""
        (first,) = self.send(single(b"first"))
        self.producer_partition.answered()
        self.producer_partition.accepted(first)
        return self

    def send(self, *publications: Publication) -> list[Publication]:
        """Queue these, and send whatever may be sent."""
        self.producer_partition.waiting.extend(publications)
        sent = []
        while (
            head := self.producer_partition.head()
        ) is not None and not self.producer_partition.blocked(head):
            numbered = self.producer_partition.number(head)
            if head.first_sequence < 0:
                head.first_sequence = self._sequence
                self._sequence += head.count
            self.producer_partition.sent(head, numbered_now=numbered)
            sent.append(head)
        return sent

    def back(self, *publications: Publication) -> None:
        for publication in publications:
            self.producer_partition.answered()
            self.producer_partition.returned(publication)


def frames(count: int) -> list[Publication]:
    return [single(bytes([number])) for number in range(count)]


def numbers(publications: list[Publication]) -> list[int]:
    return [publication.log_sequence for publication in publications]


def test_numbers_wrap_as_the_logs_do() -> None:
    sender = Sender().known()
    sender.producer_partition._next = LOG_SEQUENCES - 2
    sent = sender.send(batch([b"x"] * 3), single(b"y"))
    assert numbers(sent) == [LOG_SEQUENCES - 2, 1]


def test_the_first_frame_goes_alone() -> None:
    sender = Sender()
    (first,) = sender.send(*frames(3))
    sender.back(first)
    assert sender.send() == [first]
    sender.producer_partition.answered()
    sender.producer_partition.accepted(first)
    assert len(sender.send()) == 2


def test_batches_of_record_batches_are_counted() -> None:
    sender = Sender().known()
    three, two, one = (
        batch([b"x"] * count, format=ChunkFormat.RECORD_BATCH) for count in (3, 2, 1)
    )
    assert sender.send(three, two, one) == [three, two]
    assert sender.producer_partition.batches == LANE_BATCHES_IN_FLIGHT_MAX
    sender.producer_partition.answered()
    sender.producer_partition.accepted(three)
    assert sender.send() == [one]
    assert numbers([three, two, one]) == [1, 4, 6]


def test_what_came_back_goes_first_and_in_order() -> None:
    sender = Sender().known()
    sent = sender.send(*frames(5))
    later = single(b"later")
    sender.back(sent[3], sent[0], sent[4], sent[1], sent[2])
    assert sender.send(later) == sent
    assert sender.producer_partition.batches == 5
    assert numbers(sent) == [1, 2, 3, 4, 5]


def test_a_gap_stops_the_lane_until_it_is_restarted() -> None:
    sender = Sender().known()
    first, second = sender.send(*frames(2))
    sender.back(first, second)
    first.end(None)
    sender.producer_partition.given_up(first)
    assert sender.producer_partition.broken
    assert sender.send(single(b"new")) == [second]  # it keeps its number
    assert second.log_sequence == 2
    assert not sender.producer_partition.stuck
    second.end(None)
    sender.producer_partition.answered()
    sender.producer_partition.given_up(second)
    assert sender.producer_partition.stuck
    sender.producer_partition.restart(known=True)
    assert numbers(sender.send()) == [0]


def test_an_acceptance_behind_a_gap_shows_that_there_was_none() -> None:
    sender = Sender().known()
    first, second = sender.send(*frames(2))
    sender.back(first)
    first.end(None)
    sender.producer_partition.given_up(first)
    sender.producer_partition.answered()
    sender.producer_partition.accepted(second)
    assert not sender.producer_partition.broken
    assert numbers(sender.send(single(b"new"))) == [3]


def test_frames_behind_a_refused_frame_are_renumbered() -> None:
    sender = Sender().known()
    first, second, third = sender.send(*frames(3))
    sender.back(third)
    sender.producer_partition.answered()
    first.end(None)
    sender.producer_partition.given_up(first, refused=True)
    sender.back(second)
    assert numbers([second, third]) == [-1, -1]
    assert sender.producer_partition.stuck
    sender.producer_partition.restart(known=True)
    assert sender.send() == [second, third]
    assert numbers([second, third]) == [0, 1]


def test_what_follows_a_frame_that_may_be_there_is_not() -> None:
    sender = Sender().known()
    first, second = sender.send(*frames(2))
    sender.back(first, second)
    assert sender.send() == [first, second]
    sender.producer_partition.answered()
    first.end(None)
    sender.producer_partition.given_up(first, refused=True)  # refused, but it was sent once before
    sender.back(second)
    assert second.log_sequence == 2
    assert sender.send() == [second]


def test_a_new_producer_id_is_known_to_no_log() -> None:
    sender = Sender().known()
    sender.producer_partition.restart(known=False)
    assert len(sender.send(*frames(3))) == 1
    assert not Sender().known().producer_partition.blocked(single(b"x"))


def test_ended_publications_are_skipped() -> None:
    sender = Sender().known()
    first, second, third = frames(3)
    first.end(None)
    second.end(None)
    assert sender.send(first, second, third) == [third]


@pytest.mark.parametrize("idempotent", [True, False])
def test_targets_that_share_a_producer_partition(idempotent: bool) -> None:
    producer_partitions = ProducerPartitions(idempotent=idempotent)
    targets = [("t", 0), ("t", 1), ("u", 0), ("", -1), ("t", -1), ("t", 0)]
    found = [
        producer_partitions.of(single(b"", topic=topic, partition=at)) for topic, at in targets
    ]
    if idempotent:
        assert [found.index(producer_partition) for producer_partition in found] == [
            0,
            1,
            2,
            3,
            3,
            0,
        ]
        assert [producer_partition.numbered for producer_partition in found] == [
            True,
            True,
            True,
            False,
            False,
            True,
        ]
    else:
        assert len(set(map(id, found))) == 1
    assert len(producer_partitions.all()) == (4 if idempotent else 1)


def test_the_number_of_a_last_frame_that_never_was_is_used_again() -> None:
    sender = Sender().known()
    first, last = sender.send(single(b"a"), batch([b"b"] * 3))
    assert numbers([first, last]) == [1, 2]
    sender.producer_partition.answered()
    last.end(None)
    sender.producer_partition.given_up(last, refused=True)
    assert not sender.producer_partition.broken
    assert numbers(sender.send(single(b"c"))) == [2]


def test_the_number_of_a_frame_of_which_a_part_may_be_there_is_not() -> None:
    sender = Sender().known()
    parts = batch([b"a", b"b"], format=ChunkFormat.RECORD_BATCH)
    sender.send(parts)
    sender.producer_partition.answered()
    parts.end(None)
    sender.producer_partition.given_up(parts, refused=True)
    assert sender.producer_partition.broken


def test_partitions_are_bounded() -> None:
    producer_partitions = ProducerPartitions(idempotent=True)
    for partition in range(PARTITIONS_PER_PRODUCER_MAX):
        producer_partitions.of(single(b"", topic="t", partition=partition))
    with pytest.raises(InvalidChunks, match="65536 partitions"):
        producer_partitions.of(single(b"", topic="u", partition=0))
    producer_partitions.of(single(b"", topic="t", partition=0))
    producer_partitions.of(single(b""))
