"""The watermarks of a diskless partition only rise, in whatever order they arrive."""

from __future__ import annotations

from itertools import permutations
from typing import Any, cast
from uuid import UUID

from penstock.base.ids import TopicPartition
from penstock.control.drivers.notices import UNKNOWN_SIZE
from penstock.control.values.diskless import Watermarks
from penstock.diskless.topics.partition import DisklessPartition


def partition() -> DisklessPartition:
    return DisklessPartition(cast("Any", None), TopicPartition("t", 3), UUID(int=7))


def test_it_is_unknown_until_the_control_plane_has_spoken() -> None:
    one = partition()
    assert (one.known, one.high_watermark, one.key) == (False, -1, (UUID(int=7), 3))
    assert one.learn(Watermarks(0, 0, 0))
    assert (one.known, one.high_watermark) == (True, 0)


def test_marks_in_any_order_end_the_same() -> None:
    learned = [
        Watermarks(0, 5, 500),
        Watermarks(0, 9, 900),
        Watermarks(4, 9, 500),
        Watermarks(4, 12, 800),
    ]
    for order in permutations(learned):
        one = partition()
        ends: list[int] = []
        for watermarks in order:
            risen = one.learn(watermarks)
            assert risen == (watermarks.high_watermark > max(ends, default=-1))
            ends.append(watermarks.high_watermark)
            assert one.high_watermark == max(ends)
        assert (one.log_start_offset, one.high_watermark, one.size_bytes) == (4, 12, 800)


def test_a_late_answer_still_moves_the_start() -> None:
    one = partition()
    one.learn(Watermarks(0, 12, 1200))
    assert not one.learn(Watermarks(4, 9, 500))
    assert (one.log_start_offset, one.high_watermark) == (4, 12)


def test_a_notice_has_no_size() -> None:
    one = partition()
    one.learn(Watermarks(0, 5, 500))
    notice = Watermarks(2, 8, UNKNOWN_SIZE)
    assert one.learn(notice)
    assert (one.log_start_offset, one.high_watermark, one.size_bytes) == (2, 8, 500)
    assert not one.learn(notice)


def test_epoch_0_is_the_only_one() -> None:
    one = partition()
    one.learn(Watermarks(0, 5, 500))
    assert [one.end_offset_for_epoch(epoch) for epoch in (-1, 0, 7)] == [(-1, -1), (0, 5), (0, 5)]
