"""Moments as the first millisecond that a record of them or later has."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from penstock.records.extents import first_millisecond

ZONES = st.integers(-1_439, 1_439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=ZONES))
def test_no_millisecond_before_it_reaches_the_moment(moment: datetime) -> None:
    """The oracle are Python's fractions."""
    past = moment - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds
    assert first_millisecond(moment) == math.ceil(Fraction(microseconds, 1_000))
