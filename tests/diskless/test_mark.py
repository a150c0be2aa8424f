"""Marks: what they say comes back, and what is damaged is refused."""

from __future__ import annotations

import pytest

from penstock.archive.errors import CorruptObject
from penstock.diskless.gc.id_markers import Mark, decode_mark, encode_mark, mark_key, marked_id


def test_a_mark_comes_back_and_its_key_sorts_by_the_id() -> None:
    mark = Mark("a-cluster", 2**63 - 1)
    assert decode_mark(encode_mark(mark)) == mark
    assert marked_id(mark_key(17)) == 17
    assert mark_key(9) < mark_key(10) < mark_key(2**63 - 1)
    for key in ("marks/17", "marks/x", "wal/00000000000000000017", mark_key(17) + "0"):
        assert marked_id(key) is None


def test_a_cut_or_damaged_mark_is_refused() -> None:
    data = encode_mark(Mark("a-cluster", 17))
    for size in range(len(data)):
        with pytest.raises(CorruptObject):
            decode_mark(data[:size])
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject):
            decode_mark(bytes(damaged))
    with pytest.raises(CorruptObject):
        decode_mark(data + b"\n")
