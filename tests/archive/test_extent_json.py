"""Extents survive the way over JSON; anything else is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.archive.planning import NoExtent, extent_from_json, extent_to_json
from penstock.records.extents import Extent

WHOLE = Extent(1, "k", "wal", 1, 1, 1, 1, 1, 1, b"layout")
LONGS = st.integers(-1, 2**63 - 1)
EXTENTS = st.builds(
    Extent, LONGS, st.text(), st.sampled_from(["wal", "segment"]), LONGS, LONGS, LONGS,
    LONGS, LONGS, LONGS, st.binary(max_size=64),
)  # fmt: skip


@given(EXTENTS)
def test_there_and_back(extent: Extent) -> None:
    assert extent_from_json(json.loads(json.dumps(extent_to_json(extent)))) == extent


@pytest.mark.parametrize("name", extent_to_json(WHOLE))
def test_every_field_is_needed(name: str) -> None:
    item = extent_to_json(WHOLE)
    del item[name]
    with pytest.raises(NoExtent, match=name):
        extent_from_json(item)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "tape"}, {"layout": "!"}, {"layout": "AA"}, {"layout": "A A=="}, {"layout": None},
        {"size_bytes": "x"}, {"size_bytes": "1"}, {"size_bytes": 1.5}, {"size_bytes": True},
        {"size_bytes": 2**63}, {"position": None}, {"key": 5}, {"key": None},
    ],
)  # fmt: skip
def test_other_kinds_are_refused(change: dict[str, Any]) -> None:
    item = extent_to_json(WHOLE)
    with pytest.raises(NoExtent, match="invalid extent in JSON"):
        extent_from_json(item | change)
