"""Masks of each kind; tests/spark/pipeline compares Spark's form with them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.security.data import Mask, mask_column
from penstock.security.data.columns import UnfitColumn
from penstock.security.data.masks import InvalidMask

CASES: list[tuple[Mask, dict[str, str]]] = [
    (Mask(), {"anything": "***", "": "***"}),
    (Mask(text="$1 'x' \\"), {"anything": "$1 'x' \\"}),
    (
        Mask(kind="keep", first=2, last=3),
        {
            "abcdefgh": "ab***fgh", "abcdef": "ab*def", "abcde": "*****", "ab": "**", "": "",
            "äöüßéx€": "äö**éx€",
        },
    ),
    (Mask(kind="keep", last=4), {"DE02 1234 5678": "**********5678", "5678": "****"}),
    (Mask(kind="keep", first=1), {"Ann": "A**", "A": "*"}),
    (
        Mask(kind="email"),
        {
            "someone@example.org": "s***@example.org", "ab@x": "a***@x", "a@x": "***",
            "nobody": "***", "a b@example.org": "***", "two@at@x": "***", "x@": "***",
            "äb@example.org": "ä***@example.org", "a\n@x.org": "***", "ab@x.org\n": "***",
        },
    ),
    (
        Mask(kind="card"),
        {
            "4111 1111 1111 1234": "****1234", "4111-1111-1111-12-34": "****1234",
            "411111111234": "****1234", "41111111123": "***", "4111111111111111111": "****1111",
            "41111111111111111111": "***", "card 4111111111111234": "***",
            "4111111111111234\n": "***",
        },
    ),
    (
        Mask(kind="phone"),
        {
            "+49 (89) 123-4567": "****67", "0891234567": "****67", "112": "***", "call me": "***",
            "1234567890123456": "***", "555/12.34 5 6": "****56", "555/12.34 5-6": "****56",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("mask", "cases"), CASES, ids=lambda one: getattr(one, "kind", ""))
def test_what_is_shown(mask: Mask, cases: dict[str, str]) -> None:
    given = [*cases, None, *cases]
    expected = [*cases.values(), None, *cases.values()]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert mask_column(pa.array(given, kind), mask).to_pylist() == expected
    assert mask_column(pa.array(given).dictionary_encode(), mask).to_pylist() == expected
    assert mask_column(pa.array([], pa.string()), mask).to_pylist() == []


def test_what_cannot_be_masked() -> None:
    with pytest.raises(UnfitColumn, match=r"int64 cannot be masked\. Cast it to text"):
        mask_column(pa.array([1]), Mask())
    with pytest.raises(InvalidMask, match="'mail' must be one of all, keep"):
        Mask(kind="mail")
    with pytest.raises(InvalidMask, match="last = -1 of a mask must be from 0 to 1000"):
        Mask(kind="keep", last=-1)
