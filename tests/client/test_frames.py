"""Memory of responses is reused only when no view of it remains."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.client.frames import FRAME_KEPT_BYTES_MIN, FRAMES_KEPT, Frames

SIZE = FRAME_KEPT_BYTES_MIN


def address(frame: Any) -> int:
    return int(np.frombuffer(frame, np.uint8).ctypes.data)


def test_memory_comes_back_with_the_last_view() -> None:
    frames = Frames()
    first = frames.take(SIZE)
    place = address(first)
    part = pa.py_buffer(first[100:200])
    del first
    assert address(frames.take(SIZE)) != place
    del part
    assert address(frames.take(SIZE)) == place


def test_memory_is_not_kept_for_what_is_much_smaller_or_larger() -> None:
    frames = Frames()
    place = address(frames.take(8 * SIZE))
    small = frames.take(SIZE)
    assert not place <= address(small) < place + 9 * SIZE
    assert address(frames.take(7 * SIZE)) == place
    assert len(frames.take(100 * SIZE)) == 100 * SIZE
    assert len(frames._free) <= FRAMES_KEPT


def test_a_bounded_amount_is_kept() -> None:
    frames = Frames()
    held = [frames.take(SIZE) for _ in range(3 * FRAMES_KEPT)]
    held.clear()
    assert len(frames._free) == FRAMES_KEPT


def test_nothing_is_overwritten_under_a_view() -> None:
    """With many frames in flight and views dropped in any order, each view stays unchanged."""
    chance = random.Random(14)
    frames = Frames()
    held: list[tuple[int, list[Any]]] = []
    for number in range(200):
        size = chance.choice((100, SIZE, SIZE + 5, 2 * SIZE, 3 * SIZE))
        frame = frames.take(size)
        frame[:] = bytes([number % 251]) * size
        ends = sorted(chance.sample(range(1, size), 3))
        views = [frame[ends[0] : ends[1]], pa.py_buffer(frame[ends[1] : ends[2]])]
        held.append((number % 251, chance.sample(views, chance.randint(1, 2))))
        del frame, views
        while len(held) > 12:
            held.pop(chance.randrange(len(held)))
        for filled, left in held:
            for view in left:
                assert (np.frombuffer(view, np.uint8) == filled).all()
