"""Copies that were compacted another way are alike; those with other records are not."""

from __future__ import annotations

from penstock.records import empty_batch
from penstock.replication.copies import differ
from tests.storage.batches import stamped

FIRST = stamped(3, 0, 1, fill=1, producer_id=4, epoch=0, sequence=0)
SECOND = stamped(2, 3, 1, fill=2)
THIRD = stamped(1, 5, 2, fill=3)
THINNED = stamped(3, 0, 1, fill=9, producer_id=4, epoch=0, sequence=0, kept=1)


def both(one: bytes, other: bytes) -> bool:
    assert differ(one, other) == differ(other, one)
    return differ(one, other)


def test_what_only_one_of_them_has_says_nothing() -> None:
    whole = bytes(FIRST) + SECOND + THIRD
    for part in (
        b"", bytes(FIRST), bytes(THIRD), bytes(FIRST) + THIRD, bytes(THINNED) + THIRD,
        empty_batch(0, 5, 1) + THIRD, bytes(THINNED) + empty_batch(3, 6, 1), empty_batch(2, 9, 2),
    ):  # fmt: skip
        assert not both(whole, part)


def test_different_batches_at_an_offset_are_reported() -> None:
    whole = bytes(FIRST) + SECOND + THIRD
    for part in (
        bytes(stamped(3, 0, 1, fill=8, producer_id=4, epoch=0, sequence=0)),
        bytes(stamped(3, 0, 2, fill=1, producer_id=4, epoch=0, sequence=0)),
        bytes(stamped(3, 0, 1, fill=9, producer_id=4, epoch=0, sequence=3, kept=1)),
        bytes(stamped(2, 0, 1, fill=1, kept=1)),
        bytes(FIRST) + stamped(3, 3, 1, fill=2),
        bytes(stamped(6, 0, 1, fill=2, kept=2)),
    ):
        assert both(whole, part)
