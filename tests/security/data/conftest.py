"""Keyrings, whose master key is in a file or in the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.security.data.file_ring import FileKeyRing, KeyPlace, ring_at
from penstock.security.data.master_keys import generated, master_keys

VARIABLE = "TESTED_MASTER_KEY"


@pytest.fixture(params=["file", "environment"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> KeyPlace:
    """Return the location of a new ring, beside its next master key."""
    place = KeyPlace(ring=tmp_path / "ring")
    if request.param == "environment":
        monkeypatch.setenv(VARIABLE, generated().decode())
        monkeypatch.setenv(f"{VARIABLE}_NEXT", generated().decode())
        place = KeyPlace(ring=tmp_path / "ring", master=f"env:{VARIABLE}")
    FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
    return place


@pytest.fixture
def ring(place: KeyPlace) -> FileKeyRing:
    return opened(place)


def opened(place: KeyPlace) -> FileKeyRing:
    """Another process' view of a ring."""
    return FileKeyRing(place.ring, master_keys(place.master_place))


@pytest.fixture(autouse=True)
def _forget_rings() -> None:
    ring_at.cache_clear()
