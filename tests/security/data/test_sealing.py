"""Encrypted values: their bytes, and that nothing opens but what was sealed for a subject."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.security.data.file_ring import FileKeyRing
from penstock.security.data.key_ring import SubjectKey
from penstock.security.data.sealing import (
    OVERHEAD_BYTES,
    Undecipherable,
    open_value,
    seal,
    seal_value,
    unseal,
)

RAW = bytes(range(32))
KEY = SubjectKey(b"8 bytes!", b"a17", AESGCM(RAW))


def test_the_layout_is_what_the_module_draws() -> None:
    [sealed] = seal([b"value"], [KEY], SYSTEM_RANDOMNESS)
    assert sealed is not None
    assert sealed[:9] == b"\x018 bytes!"
    assert len(sealed) == OVERHEAD_BYTES + 5
    # By the library alone, with the layout in hand.
    opened = AESGCM(RAW).decrypt(sealed[9:21], sealed[21:], b"\x018 bytes!" + b"a17")
    assert opened == b"value"


@given(st.lists(st.none() | st.binary(max_size=100)))
def test_what_is_sealed_opens(values: list[bytes | None]) -> None:
    found = seal(values, [KEY] * len(values), SYSTEM_RANDOMNESS)
    assert [None if entry is None else unseal(entry, KEY) for entry in found] == values


def test_equal_values_are_sealed_differently() -> None:
    found = seal([b"same"] * 1_000, [KEY] * 1_000, SYSTEM_RANDOMNESS)
    assert len(set(found)) == 1_000


def test_every_bit_counts_and_every_byte_is_needed(ring: FileKeyRing) -> None:
    sealed = seal_value(ring, "a17", b"value")
    assert sealed is not None
    for at in range(len(sealed)):
        for bit in range(8):
            changed = bytearray(sealed)
            changed[at] ^= 1 << bit
            if 1 <= at < 9:  # names a key that is nobody's: as if it had been shredded
                assert open_value(ring, "a17", bytes(changed)) is None
                continue
            with pytest.raises(Undecipherable):
                open_value(ring, "a17", bytes(changed))
        with pytest.raises(Undecipherable):
            open_value(ring, "a17", sealed[:at])
    with pytest.raises(Undecipherable):
        open_value(ring, "a17", sealed + b"\0")
    assert open_value(ring, "a17", sealed) == b"value"


def test_a_value_does_not_open_in_another_subjects_row(ring: FileKeyRing) -> None:
    sealed = seal_value(ring, "a17", b"value")
    seal_value(ring, "b2", b"other")
    assert sealed is not None
    for subject in ("b2", "nobody"):
        with pytest.raises(Undecipherable, match="another subject"):
            open_value(ring, subject, sealed)


def test_the_subject_is_authenticated_by_the_cipher_itself(ring: FileKeyRing) -> None:
    [sealed] = seal([b"value"], [KEY], SYSTEM_RANDOMNESS)
    assert sealed is not None
    with pytest.raises(Undecipherable):
        unseal(sealed, SubjectKey(KEY.key_id, b"b2", KEY.cipher))


def test_a_key_is_not_shown() -> None:
    assert "a17" not in repr(KEY)
    assert RAW.hex() not in repr(KEY)
    assert str(RAW) not in f"{KEY} {KEY.cipher}"
