"""The pointer index: windows cover every path once, whatever the bound."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.errors import InvalidError
from penstock.outbox.gc.pointer_index import HOUR_DIGITS, PointerIndex, Window, keys_of
from penstock.outbox.layout import data_path

HOUR_MS = 3_600_000
BASE_MS = 1_779_580_800_000


def pointers(paths: list[str], *, first_offset: int = 0, size: int = 10, crc: int = 7) -> Any:
    count = len(paths)
    return pa.table(
        {
            "file_path": pa.array(paths, pa.string()),
            "size_bytes": pa.array([size] * count, pa.int64()),
            "crc32c": pa.array([crc] * count, pa.uint32()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
        }
    )


def flags(*values: bool) -> Any:
    return pa.array(values, pa.bool_())


def some_paths(count: int, hours: int, seed: int = 1) -> list[str]:
    dice = random.Random(seed)
    return [
        data_path(f"p{dice.randrange(4)}", f"b{number}", BASE_MS + dice.randrange(hours) * HOUR_MS)
        for number in range(count)
    ]


@pytest.mark.parametrize("entries_max", [1, 2, 7, 100, 999, 1_000, 5_000])
@pytest.mark.parametrize("hours", [1, 24])
def test_windows_cover_every_path_once(entries_max: int, hours: int) -> None:
    paths = some_paths(1_000 if entries_max > 50 else 60, hours)
    table = pointers(paths)
    found: list[str] = []
    start = ""
    while True:
        index = PointerIndex(start=start, entries_max=entries_max)
        for low in range(0, len(paths), 13):
            part = table.slice(low, 13)
            index.add(part, consumed=pa.array(np.ones(part.num_rows, np.bool_)))
            assert index.rows <= 2 * entries_max + 13
        window = index.finish()
        for hour in index.hours():
            assert window.touches_hour(hour)
            found += index.hour(hour).column("file_path").to_pylist()
        if window.until is None:
            break
        start = window.until
    assert sorted(found) == sorted(paths)
    keys = keys_of(pa.array(found)).to_pylist()
    assert keys == sorted(keys)


def test_one_pointer_that_waits_keeps_the_payload() -> None:
    (path,) = some_paths(1, 1)
    index = PointerIndex(entries_max=10)
    index.add(pointers([path, path]), consumed=flags(True, False))
    hour = keys_of(pa.array([path]))[0].as_py()[:HOUR_DIGITS]
    looked = index.look(hour, pa.array([path, path + "x"]))
    assert looked.referenced.tolist() == [True, False]
    assert looked.consumed.tolist() == [False, False]


def test_pointers_of_one_path_are_one_entry() -> None:
    (path,) = some_paths(1, 1)
    index = PointerIndex(entries_max=1)
    for number in range(50):
        index.add(pointers([path], first_offset=number, size=number, crc=99 - number),
                  consumed=flags(True))  # fmt: skip
    assert index.finish() == Window()
    (row,) = index.hour(index.hours()[0]).to_pylist()
    assert (row["size_least"], row["size_most"]) == (0, 49)
    assert (row["crc_least"], row["crc_most"]) == (50, 99)
    assert row["offset"] == 49


def test_paths_outside_the_layout_are_left_out() -> None:
    index = PointerIndex(entries_max=5)
    index.add(pointers(["../x", "p/data.bin", ""]), consumed=flags(True, True, True))
    assert index.finish() == Window()
    assert index.hours() == []


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidError, match="at least 1"):
        PointerIndex(entries_max=0)
