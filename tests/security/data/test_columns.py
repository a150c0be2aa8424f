"""Columns encrypted and decrypted, by subjects beside them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.security.data import decrypt_column, encrypt_column
from penstock.security.data.columns import UnfitColumn
from penstock.security.data.file_ring import FileKeyRing
from penstock.security.data.sealing import seal_value
from tests.formats.drawn import EXAMPLES


def test_rows_are_encrypted_for_the_subjects_beside_them(ring: FileKeyRing) -> None:
    subjects = pa.array(["a", "b", "a", None, "b"])
    values = ["one", "two", None, "nobody's", "ünï"]
    for column in (
        pa.array(values),
        pa.array(values, pa.large_string()),
        pa.array(values, pa.string_view()),
        pa.array([None if value is None else value.encode() for value in values]),
        pa.array(values).dictionary_encode(),
    ):
        sealed = encrypt_column(column, subjects, ring)
        assert sealed.type == pa.binary()
        assert [sealed[at].is_valid for at in range(5)] == [True, True, False, False, True]
        opened, reasons = decrypt_column(sealed, subjects, ring)
        assert opened.to_pylist() == [b"one", b"two", None, None, "ünï".encode()]
        assert reasons == {}
    assert ring.counts().living == 2


def test_subjects_may_be_numbers_bytes_or_dictionaries(ring: FileKeyRing) -> None:
    sealed = encrypt_column(pa.array(["x", "y"]), pa.array(["17", "18"]), ring)
    for subjects in (
        pa.array([17, 18]),
        pa.array([b"17", b"18"], pa.large_binary()),
        pa.array(["17", "18"]).dictionary_encode(),
    ):
        assert decrypt_column(sealed, subjects, ring)[0].to_pylist() == [b"x", b"y"]
    with pytest.raises(UnfitColumn, match="bytes that are not UTF-8"):
        encrypt_column(pa.array(["x"]), pa.array([b"\xff"]), ring)
    with pytest.raises(UnfitColumn, match="double cannot be protected"):
        encrypt_column(pa.array(["x"]), pa.array([1.5]), ring)


KINDS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.none() | st.text(max_size=9), st.sampled_from(["a", "ü", None])), max_size=8
    ),
    st.sampled_from(KINDS), st.sampled_from(["plain", "dictionary", "runs"]),
    st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_columns_of_any_form_open_to_what_they_hold(
    ring: FileKeyRing, rows: list[Any], kind: Any, form: str, start: int, chunked: bool
) -> None:
    def made(values: list[Any]) -> Any:
        column = pa.array(values, pa.string()).cast(kind)
        if kind != pa.string_view() and form == "dictionary":
            column = column.dictionary_encode()
        elif kind != pa.string_view() and form == "runs":
            column = pc.run_end_encode(column)
        column = column.slice(min(start, len(column)))
        return pa.chunked_array([column, column], column.type) if chunked else column

    values, subjects = (made([row[at] for row in rows]) for at in (0, 1))
    opened, reasons = decrypt_column(encrypt_column(values, subjects, ring), subjects, ring)
    assert reasons == {}
    pairs = zip(values.to_pylist(), subjects.to_pylist(), strict=True)
    expected = [None if subject is None else value for value, subject in pairs]
    assert opened.to_pylist() == [
        value.encode() if isinstance(value, str) else value for value in expected
    ]


def test_a_shredded_subjects_rows_are_null_and_the_others_stay(ring: FileKeyRing) -> None:
    subjects = pa.array(["a", "b"] * 100)
    sealed = encrypt_column(pa.array(["x", "y"] * 100), subjects, ring)
    ring.shred("a")
    assert decrypt_column(sealed, subjects, ring) == (pa.array([None, b"y"] * 100), {})
    assert encrypt_column(pa.array(["x", "y"]), subjects[:2], ring)[0].as_py() is None


def test_values_that_do_not_decrypt_are_reported_by_row_and_reason(ring: FileKeyRing) -> None:
    good = seal_value(ring, "a", b"good") or b""
    theirs = seal_value(ring, "b", b"theirs") or b""
    column = pa.array([good, theirs, good[:-1] + b"\0\0", b"clear text", None, b"\x07" * 40])
    opened, reasons = decrypt_column(column, pa.array(["a"] * 6), ring)
    assert opened.to_pylist() == [b"good", None, None, None, None, None]
    assert reasons == {
        1: "it was encrypted for another subject",
        2: "it is damaged: its tag does not match",
        3: "it has 10 bytes, but an encrypted value has at least 37",
        5: "it has version 7, but only 1 is supported",
    }


def test_columns_that_cannot_be(ring: FileKeyRing) -> None:
    with pytest.raises(UnfitColumn, match=r"int64 cannot be encrypted\. Cast it to text"):
        encrypt_column(pa.array([1]), pa.array(["a"]), ring)
    with pytest.raises(UnfitColumn, match="string cannot be decrypted: encrypted values are bytes"):
        decrypt_column(pa.array(["x"]), pa.array(["a"]), ring)


def test_many_rows_and_none(ring: FileKeyRing) -> None:
    subjects = pa.array([str(at % 1_000) for at in range(150_000)])
    sealed = encrypt_column(subjects, subjects, ring)
    assert decrypt_column(sealed, subjects, ring)[0].cast(pa.string()) == subjects
    nothing = pa.array([], pa.string())
    assert encrypt_column(nothing, nothing, ring).to_pylist() == []
    assert decrypt_column(nothing.cast(pa.binary()), nothing, ring)[0].to_pylist() == []
