"""Values that Hypothesis draws, gathered so that one job of Spark tries all of them."""

from __future__ import annotations

import os
from typing import Final, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

T = TypeVar("T")

EXAMPLES: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "100"))
"""How many are drawn; 2,000 and more are for runs by hand."""


def drawn(strategy: st.SearchStrategy[T], count: int = EXAMPLES) -> list[T]:
    """Draw values; those of one run are those of the next, unless the profile says otherwise."""
    found: list[T] = []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    collect()
    return found
