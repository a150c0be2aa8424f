"""Price files: the default, users' files, and rejected ones."""

from __future__ import annotations

import tomllib
from datetime import date
from typing import Any

import pytest

from penstock.apps.plan.cost import our_price_text
from penstock.planner.cost import read_prices
from penstock.planner.quantities import InvalidPlanFile
from tests.planner.cost.bills import PRICES

GIVEN = {"usd": 1, "date": date(2026, 1, 1), "source": "our contract"}


def test_ours_have_units_dates_and_sources_and_no_addresses() -> None:
    assert len(PRICES) > 30
    for price in PRICES.values():
        assert price.usd > 0
        assert price.unit.startswith("USD per ")
        assert date(2025, 1, 1) <= price.date <= date(2026, 11, 30)
        assert len(price.source) > 10
    assert "://" not in our_price_text()


def test_some_are_put_in_place() -> None:
    found = read_prices({"zone": {"gb": {**GIVEN, "usd": 0}}}, "mine.toml", PRICES)
    assert (found["zone.gb"].usd, found["zone.gb"].source) == (0, "our contract")
    assert found["zone.gb"].unit == "USD per GB"
    assert found["disk.gb-month"] == PRICES["disk.gb-month"]


def test_only_what_differs_is_named() -> None:
    today = date(2026, 11, 22)
    found = read_prices({"zone": {"gb": {"usd": 0.02}}}, "mine.toml", PRICES, today)
    assert (found["zone.gb"].usd, found["zone.gb"].unit) == (0.02, "USD per GB")
    assert (found["zone.gb"].source, found["zone.gb"].date) == ("mine.toml", today)
    found = read_prices({"zone": {"gb": {"source": "looked up"}}}, "mine.toml", PRICES, today)
    assert (found["zone.gb"].usd, found["zone.gb"].source) == (PRICES["zone.gb"].usd, "looked up")
    assert found["zone.gb"].date == PRICES["zone.gb"].date
    assert dict(read_prices({}, "mine.toml", PRICES, today)) == dict(PRICES)


def test_a_copy_says_the_same() -> None:
    assert dict(read_prices(tomllib.loads(our_price_text()), "copy", PRICES)) == dict(PRICES)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "mine.toml must hold tables"),
        ({"zone": 1}, "mine.toml: zone must be a table of prices"),
        ({"zone": {"gb": 1}}, "mine.toml: zone.gb must be a table with usd"),
        ({"zone": {"tb": GIVEN}}, "zone.tb: unknown price; did you mean zone.gb?"),
        ({"zone": {"everything": GIVEN}}, "zone.everything: unknown price; known prices are zo"),
        ({"object": {"put-thousands": GIVEN}}, "did you mean object.put-thousand?"),
        ({"zone": {"gb": {"ust": 1}}}, "date and source; did you mean usd?"),
        ({"moon": {"tb": GIVEN}}, "mine.toml: moon.tb: unknown price; known prices are compute"),
        ({"zone": {"gb": {**GIVEN, "eur": 1}}}, "mine.toml: zone.gb.eur is unknown"),
        ({"zone": {"gb": {**GIVEN, "usd": -0.01}}}, "zone.gb.usd = -0.01: must not be negative"),
        ({"zone": {"gb": {**GIVEN, "usd": "1"}}}, "zone.gb.usd = '1': must be a number"),
        ({"zone": {"gb": {**GIVEN, "usd": True}}}, "zone.gb.usd = True: must be a number"),
        ({"zone": {"gb": {**GIVEN, "usd": float("nan")}}}, "zone.gb.usd = nan: must be a number"),
        ({"zone": {"gb": {"usd": 1, "source": "x"}}}, "zone.gb.date = None: must be a date"),
        ({"zone": {"gb": {**GIVEN, "date": "2026"}}}, "zone.gb.date = '2026': must be a date"),
        ({"zone": {"gb": {**GIVEN, "source": " "}}}, "zone.gb.source is missing"),
        ({"zone": {"gb": {**GIVEN, "source": "x" * 301}}}, "source has 301 characters; at most"),
        ({"zone": {"gb": {**GIVEN, "unit": "USD per TB"}}}, "must be 'USD per GB'. Convert"),
    ],
)  # fmt: skip
def test_refused_with_the_place(document: Any, said: str) -> None:
    with pytest.raises(InvalidPlanFile) as refused:
        read_prices(document, "mine.toml", PRICES)
    assert said in str(refused.value)


def test_age() -> None:
    newest = max(price.date for price in PRICES.values())
    assert PRICES.older_than_a_year(newest) == []
    assert len(PRICES.older_than_a_year(date(2028, 1, 1))) == len(PRICES)
    edge = read_prices({"zone": {"gb": {**GIVEN, "date": date(2025, 1, 1)}}}, "mine", PRICES)
    assert edge.older_than_a_year(date(2026, 1, 1)) == []
    assert [price.key for price in edge.older_than_a_year(date(2026, 1, 2))] == ["zone.gb"]
