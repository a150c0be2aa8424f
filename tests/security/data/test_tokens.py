"""Tokens: the same for the same value and field, and for nothing else."""

from __future__ import annotations

import hashlib
import hmac

import pyarrow as pa
import pytest

from penstock.security.data import TokenForm, token, tokenize_column
from penstock.security.data.columns import UnfitColumn
from penstock.security.data.file_ring import FileKeyRing, KeyPlace
from penstock.security.data.masks import LENGTHS_MAX, InvalidTokenForm
from tests.security.data.conftest import opened


def test_a_token_is_the_hmac_of_the_value(ring: FileKeyRing) -> None:
    key = ring.secret("token:customer")
    whole = hmac.new(key, b"a17", hashlib.sha256)
    assert token(ring, "customer", b"a17") == whole.hexdigest()[:32]
    assert token(ring, "customer", b"a17", TokenForm(length=64)) == whole.hexdigest()


def test_tokens_join_within_a_field_and_not_across(ring: FileKeyRing, place: KeyPlace) -> None:
    other = opened(place)
    assert token(ring, "customer", b"a17") == token(other, "customer", b"a17")
    assert token(ring, "customer", b"a17") != token(ring, "order", b"a17")
    assert token(ring, "customer", b"a17") != token(ring, "customer", b"a18")


def test_tokens_outlive_a_rotation(ring: FileKeyRing) -> None:
    before = token(ring, "customer", b"a17")
    ring.rotate()
    assert token(ring, "customer", b"a17") == before


@pytest.mark.parametrize("form", LENGTHS_MAX)
def test_forms_and_lengths(ring: FileKeyRing, form: str) -> None:
    alphabet = {"hex": "0123456789abcdef", "digits": "0123456789"}.get(form)
    for length in (8, 17, LENGTHS_MAX[form]):
        found = [
            token(ring, "f", b"%d" % n, TokenForm(form=form, length=length)) for n in range(50)
        ]
        assert {len(entry) for entry in found} == {length}
        assert len(set(found)) == 50
        assert alphabet is None or set("".join(found)) <= set(alphabet)


@pytest.mark.parametrize(
    ("form", "length", "said"),
    [
        ("uuid", 32, "'uuid' must be one of hex, base64, digits"),
        ("hex", 7, "from 8 to 64, not 7"),
        ("base64", 44, "from 8 to 43, not 44"),
    ],
)
def test_forms_that_cannot_be(form: str, length: int, said: str) -> None:
    with pytest.raises(InvalidTokenForm, match=said):
        TokenForm(form=form, length=length)


def test_text_bytes_and_numbers_have_one_token(ring: FileKeyRing) -> None:
    columns = [
        pa.array(["17", None, "17", "18"]),
        pa.array([b"17", None, b"17", b"18"], pa.large_binary()),
        pa.array([17, None, 17, 18], pa.int32()),
        pa.array(["17", None, "17", "18"]).dictionary_encode(),
        pa.array(["17", None, "17", "18"], pa.string_view()),
    ]
    found = [tokenize_column(column, ring, "customer").to_pylist() for column in columns]
    one, other = token(ring, "customer", b"17"), token(ring, "customer", b"18")
    assert found == [[one, None, one, other]] * len(columns)
    with pytest.raises(UnfitColumn, match="double cannot be protected"):
        tokenize_column(pa.array([1.5]), ring, "customer")


def test_each_distinct_value_is_computed_once(
    ring: FileKeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = []
    digest = hmac.digest

    def counting(key: bytes, value: bytes, name: str) -> bytes:
        computed.append(value)
        return digest(key, value, name)

    monkeypatch.setattr("penstock.security.data.masks.hmac.digest", counting)
    tokenize_column(pa.array(["same"] * 1_000 + ["other"]), ring, "customer")
    assert computed.count(b"same") == computed.count(b"other") == 1
