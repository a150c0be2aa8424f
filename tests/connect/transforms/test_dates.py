"""Dates by patterns: both ways of writing and reading them give the same results.

`compat/test_transforms.py` compares results with Java's; here, Python's `strftime` is the oracle of
texts, and the general way is the oracle of the one for texts of fixed width.
"""

from __future__ import annotations

import datetime
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connect.errors import RowsRejected
from penstock.connect.transforms.dates import DateFormat, parse_format

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MOMENTS = st.lists(
    st.none() | st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(9999, 12, 31)),
    min_size=1, max_size=20,
)  # fmt: skip
PATTERNS = {
    "yyyy-MM-dd'T'HH:mm:ss.SSS": "%Y-%m-%dT%H:%M:%S.",
    "yyyyMMdd": "%Y%m%d",
    "dd/MM/yy HH:mm": "%d/%m/%y %H:%M",
    "EEE, d MMM yyyy": "%a, {day} %b %Y",
    "EEEE, MMMM dd hh 'o''clock' a": "%A, %B %d %I o'clock %p",
    "DDD u": "%j %u",
}


def counts(found: list[datetime.datetime | None]) -> list[int | None]:
    millisecond = datetime.timedelta(milliseconds=1)
    return [
        None if moment is None else (moment.replace(tzinfo=datetime.UTC) - EPOCH) // millisecond
        for moment in found
    ]


def column(numbers: list[int | None]) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.timestamp("ms"))


def python_text(pattern: str, moment: datetime.datetime) -> str:
    text = moment.strftime(PATTERNS[pattern].replace("{day}", str(moment.day)))
    return text + (f"{moment.microsecond // 1000:03}" if "SSS" in pattern else "")


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=30)
@given(found=MOMENTS)
def test_texts(pattern: str, found: list[datetime.datetime | None]) -> None:
    expected = [None if moment is None else python_text(pattern, moment) for moment in found]
    assert parse_format(pattern).format(column(counts(found))).to_pylist() == expected


@pytest.mark.parametrize(
    "pattern", ["yyyy-MM-dd HH:mm:ss.SSS", "EEE, d MMM yyyy HH:mm:ss.SSS Z", "yyyyDDDHHmmssSSS"]
)
@settings(max_examples=30)
@given(found=MOMENTS)
def test_texts_are_read_back(pattern: str, found: list[datetime.datetime | None]) -> None:
    moments = column(counts(found))
    dates = parse_format(pattern)
    assert dates.parse(dates.format(moments)).equals(moments)


class General(DateFormat):
    """Format that writes and reads no texts of fixed width by kernels."""

    _form = None


@pytest.mark.parametrize(
    "pattern", ["yyyy-MM-dd HH:mm:ss", "yyMMdd", "'x'SSS", "HHmm", "yyyyDDD hhKKkku", "yy yyyy"]
)
@settings(max_examples=30)
@given(
    numbers=st.lists(st.integers(-(10**13), 10**14), min_size=1, max_size=20),
    texts=st.lists(st.from_regex(r"\A[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\Z")),
)
def test_both_ways_agree(pattern: str, numbers: list[int], texts: list[str]) -> None:
    dates = parse_format(pattern)
    general = General(dates.pattern, dates.tokens, dates.first_year)
    written = dates.format(column([*numbers]))
    assert written.equals(general.format(column([*numbers])))
    assert dates.parse(written).equals(general.parse(written))
    if pattern == "yyyy-MM-dd HH:mm:ss":
        given_texts = pa.array(texts, pa.string())
        assert dates.parse(given_texts).equals(general.parse(given_texts))


def test_years_of_two_digits_are_in_a_window() -> None:
    dates = replace(parse_format("yy"), first_year=1950)
    found = dates.parse(pa.array(["50", "99", "00", "49", "7", "123"])).to_numpy()
    years = found.astype("M8[Y]").astype(np.int64) + 1970
    assert years.tolist() == [1950, 1999, 2000, 2049, 7, 123]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("HH:mm X", "10:00 +01:30", "08:30"), ("HH:mm Z", "10:00 -0800", "18:00"),
        ("HH:mm z", "10:00 UTC", "10:00"), ("hh:mm a", "12:05 am", "00:05"),
        ("KK:mm a", "00:05 PM", "12:05"), ("kk:mm", "24:10", "00:10"),
        ("HH:mm", "25:61", "02:01"), ("HH:mm", "  7:5 and more", "07:05"),
    ],
)  # fmt: skip
def test_lenient_texts(pattern: str, text: str, expected: str) -> None:
    [found] = parse_format(pattern).parse(pa.array([text]))
    assert found.as_py().strftime("%H:%M") == expected


def test_rejected_texts_have_their_rows() -> None:
    texts = pa.array(["2024-01-01", None, "yesterday", "2024-1-2", "01.02.2024"])
    with pytest.raises(RowsRejected) as raised:
        parse_format("yyyy-MM-dd").parse(texts)
    assert raised.value.rows == (2, 4)
    assert raised.value.reasons[0] == "'yesterday' does not match the date format 'yyyy-MM-dd'"
