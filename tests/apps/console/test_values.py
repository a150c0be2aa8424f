"""Texts, tables, tokens and quantiles of the console's pages."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import NamedTuple

import pytest
from starlette.requests import Request

from penstock.apps.console import formats
from penstock.apps.console.forms import Form, InvalidField, Tokens
from penstock.apps.console.live import quantile
from penstock.apps.console.pages.resetting import read_reset
from penstock.apps.console.tables import PAGE_ROWS, Column, Filter, Table
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.security import Principal

ALICE = Principal("User", "alice")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1024, "1.0 KiB"), (100 << 20, "100 MiB"), (None, "–")],
)
def test_sizes(value: int | None, text: str) -> None:
    assert formats.size(value) == text


@pytest.mark.parametrize(
    ("value_ms", "text"),
    [(0, "0 ms"), (0.21, "0.21 ms"), (15, "15 ms"), (90_000, "1.5 min"), (604_800_000, "7 d")],
)
def test_durations(value_ms: float, text: str) -> None:
    assert formats.duration(value_ms) == text


def test_times_outside_of_the_calendar_are_numbers() -> None:
    assert formats.moment(0) == "1970-01-01 00:00:00"
    assert formats.moment(2**62) == str(2**62)
    assert formats.moment(-1) == formats.UNKNOWN


def test_values_of_settings_with_their_units() -> None:
    assert formats.readable("retention.ms", "604800000") == "7 d"
    assert formats.readable("segment.bytes", str(1 << 30)) == "1.0 GiB"
    assert formats.readable("retention.ms", "-1") == ""
    assert formats.readable("flush.messages", str(2**63 - 1)) == ""


def test_paths_quote_names() -> None:
    assert formats.path("groups", "a/b?c#d e") == "/console/groups/a%2Fb%3Fc%23d%20e"


class Row(NamedTuple):
    name: str
    size: int | None


TABLE: Table[Row] = Table(
    Column(name="name", title="Name", key=lambda row: row.name),
    Column(name="size", title="Size", key=lambda row: row.size, number=True),
    sort="name",
    text=lambda row: row.name,
    filters=(
        Filter(
            name="known",
            title="Known",
            choices={"": "All", "yes": "Known"},
            test=lambda row, _: row.size is not None,
        ),
    ),
)
ROWS = [Row(f"row-{number:03}", None if number % 10 == 0 else number) for number in range(120)]


def asked(query: str) -> Request:
    scope = {"type": "http", "path": "/console/rows", "query_string": query.encode(), "headers": []}
    return Request(scope)


def test_tables_search_filter_sort_and_page() -> None:
    first = TABLE.view(asked(""), ROWS)
    assert [row.name for row in first.rows] == [f"row-{number:03}" for number in range(PAGE_ROWS)]
    assert (first.first, first.last, first.pages) == (1, 50, 3)
    assert first.url(page=2) == "/console/rows?page=2"
    last = TABLE.view(asked("page=99&sort=-size&known=yes"), ROWS)
    assert (last.page, last.total, last.rows[-1]) == (3, 108, Row("row-001", 1))
    assert last.url(page=1) == "/console/rows?sort=-size&known=yes&page=1"
    found = TABLE.view(asked("q=ROW-11&sort=size"), ROWS)
    assert [row.size for row in found.rows] == [None, *range(111, 120)]
    assert [heading.order for heading in found.headings] == ["none", "ascending"]
    assert found.headings[1].url == "/console/rows?q=ROW-11&sort=-size"


@pytest.mark.parametrize(
    "query", ["sort=colour", "sort=-", "page=0", "page=-1", "page=x", "known=x"]
)
def test_tables_ignore_values_that_do_not_exist(query: str) -> None:
    view = TABLE.view(asked(query), ROWS)
    assert (view.page, view.total) == (1, 120)


def test_tokens_differ_each_time_and_belong_to_one_user_and_key() -> None:
    tokens = Tokens(b"key", SYSTEM_RANDOMNESS)
    issued = {tokens.issue(ALICE) for _ in range(5)}
    assert len(issued) == 5
    assert all(tokens.is_valid(token, ALICE) for token in issued)
    token = issued.pop()
    assert not tokens.is_valid(token, Principal("User", "bob"))
    assert not Tokens(b"other", SYSTEM_RANDOMNESS).is_valid(token, ALICE)
    for wrong in ("", "é", "AAAA", token[:-4], urlsafe_b64encode(bytes(64)).decode()):
        assert not tokens.is_valid(wrong, ALICE)


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    bounds = (0.001, 0.01, 0.1)
    assert quantile(bounds, [0, 0, 0, 0], 0.5) is None
    assert quantile(bounds, [100, 0, 0, 0], 0.5) == pytest.approx(0.5)
    assert quantile(bounds, [50, 50, 0, 0], 0.99) == pytest.approx(9.82)
    assert quantile(bounds, [0, 0, 0, 7], 0.99) == pytest.approx(100)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"to": "nowhere"}, "must be one of earliest, latest, offset, time"),
        ({"to": "offset", "offset": "-1"}, "Offset '-1' must be a whole number"),
        ({"to": "time", "time": "noon"}, "Time 'noon' must be a date and a time"),
    ],
)
def test_invalid_resets_are_refused(fields: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidField, match=message):
        read_reset(Form({name: [value] for name, value in fields.items()}))


def test_times_of_resets_are_in_utc() -> None:
    form = Form({"to": ["time"], "time": ["1970-01-02T00:00"]})
    assert read_reset(form).time_ms == 86_400_000
