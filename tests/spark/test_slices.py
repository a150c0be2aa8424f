"""Extents are trimmed to the batches that are wanted, where their batches are known."""

from __future__ import annotations

from struct import pack

from penstock.records.extents import file_extent
from penstock.spark.slices import trimmed
from tests.spark.fakes import object_extent


def test_extents_are_trimmed_to_the_batches_that_are_wanted() -> None:
    whole = object_extent(1, 100, (10, 5), (20, 5), (30, 5))
    assert trimmed(whole, 0, 1_000) == whole
    middle = trimmed(whole, 106, 108)
    assert middle is not None
    assert (middle.byte_offset, middle.size_bytes) == (34, 20)
    assert (middle.base_offset, middle.next_offset) == (105, 110)
    assert middle.layout == pack("<ii", 20, 5)
    assert trimmed(whole, 114, 115) == object_extent(1, 110, (30, 5), byte_offset=54)
    for start, end in ((0, 100), (115, 200), (107, 107)):
        assert trimmed(whole, start, end) is None


def test_extents_of_files_are_left_whole() -> None:
    whole = file_extent("/x", byte_offset=0, size_bytes=60, base_offset=100, next_offset=115)
    assert trimmed(whole, 106, 108) == whole
    for start, end in ((0, 100), (115, 200), (107, 107)):
        assert trimmed(whole, start, end) is None
