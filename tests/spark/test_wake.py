"""The file that wakes a stream: written by two at once, read as a whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.spark.reads import stream

WRITES = 2_000


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5"])
def test_what_is_no_time_asks_for_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wake"
    assert stream.read(str(path)) is None
    path.write_text(text)
    assert stream.read(str(path)) is None


def test_a_wish_is_read_as_it_was_written_and_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    stream.write(path, 1_790_000_000_000, by="test")
    assert stream.read(str(path)) == 1_790_000_000_000
    stream.write(path, None, by="test")
    assert stream.read(str(path)) is None


def test_two_writers_do_not_hinder_each_other(tmp_path: Path) -> None:
    path = tmp_path / "wake"
    times = {"runner": 1_111, "batch": 22}

    def write(by: str) -> set[int | None]:
        seen = set()
        for _ in range(WRITES):
            stream.write(path, times[by], by=by)
            seen.add(stream.read(str(path)))
        return seen

    with ThreadPoolExecutor(len(times)) as pool:
        for seen in pool.map(write, times):
            assert seen <= set(times.values())
    assert [entry.name for entry in tmp_path.iterdir()] == ["wake"]
