"""`penstock keys`, on rings in directories."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.security.data import open_value, ring_at, seal_value
from penstock.security.data.file_ring import KeyPlace
from penstock.security.data.master_keys import generated
from tests.apps.conftest import Run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeyPlace:
    ring_at.cache_clear()
    monkeypatch.setenv("PENSTOCK_KEYS", str(tmp_path / "ring"))
    return KeyPlace(ring=tmp_path / "ring")


def test_a_ring_from_its_making_to_a_shredding(bare: Run, place: KeyPlace) -> None:
    made = bare("keys", "init")
    assert made.status == 0
    assert made.out.split() == (
        f"keyring {place.ring} created; its master key is {place.ring}/master.key".split()
    )
    again = bare("keys", "init")
    assert (again.status, again.err) == (1, f"penstock: {place.ring} already contains a keyring\n")
    ring = ring_at(place)
    sealed = seal_value(ring, "a17", b"value")
    seal_value(ring, "b2", b"value")
    assert sealed is not None
    listed = json.loads(bare("keys", "list", "--output", "json").out)
    assert sorted(item["subject"] for item in listed) == ["a17", "b2"]
    rotated = json.loads(bare("keys", "rotate", "--output", "json").out)
    assert rotated == {"keys": 2, "todo": ""}
    assert open_value(ring, "a17", sealed) == b"value"
    # Who does not say yes keeps the key.
    refused = bare("keys", "shred", "a17", stdin="n\n")
    assert refused.status == 130
    assert "delete the key of a17 permanently? [y/N]" in refused.err
    assert open_value(ring, "a17", sealed) == b"value"
    shredded = bare("keys", "shred", "a17", stdin="y\n")
    assert (shredded.status, shredded.out) == (0, "a17 shredded\n")
    assert open_value(ring, "a17", sealed) is None
    assert "1 subjects with keys, 1 shredded" in " ".join(bare("keys", "list").out.split())
    readmitted = bare("keys", "readmit", "a17")
    assert (readmitted.status, readmitted.out) == (0, "a17 readmitted\n")
    assert open_value(ring, "a17", sealed) is None
    assert seal_value(ring, "a17", b"value") is not None


def test_subjects_from_stdin(bare: Run, place: KeyPlace) -> None:
    bare("keys", "init")
    for subject in ("a17", "b2", "c3"):
        seal_value(ring_at(place), subject, b"value")
    asked = bare("keys", "shred", "-", stdin="a17\n")
    assert (asked.status, "require --yes" in asked.err) == (2, True)
    done = bare("keys", "shred", "-", "--yes", stdin="a17\nd4\n\nb2\na17\n")
    assert (done.status, done.out) == (1, "a17 shredded\nb2 shredded\n")
    assert done.err == "d4 has no key\n"
    assert [entry.subject for entry in ring_at(place).entries(9)] == ["c3"]


def test_a_master_key_from_the_environment(
    bare: Run, place: KeyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_KEYS_MASTER", "env:RING_KEY")
    missing = bare("keys", "init")
    assert (missing.status, "environment variable RING_KEY with the master key" in missing.err) == (
        1,
        True,
    )
    monkeypatch.setenv("RING_KEY", generated().decode())
    assert bare("keys", "init").status == 0
    assert [path.name for path in place.ring.iterdir()] == ["keys.sqlite"]
    monkeypatch.setenv("RING_KEY_NEXT", generated().decode())
    rotated = bare("keys", "rotate")
    assert "set RING_KEY to the new key for every process, and unset RING_KEY_NEXT" in " ".join(
        rotated.out.split()
    )


def test_a_ring_that_is_not_there_is_one_line(bare: Run, place: KeyPlace) -> None:
    ran = bare("keys", "list")
    assert (ran.status, ran.out) == (1, "")
    assert ran.err == f"penstock: {place.ring}: No such file or directory\n"
