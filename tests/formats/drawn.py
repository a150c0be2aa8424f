"""Many values of a strategy at once, for oracles that read a table faster than single values."""

from __future__ import annotations

import os
from typing import Final, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Value = TypeVar("Value")
EXAMPLES: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "200"))
"""How many values a test draws; `PENSTOCK_EXAMPLES=2000` searches further."""
SPARK_EXAMPLES: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "100"))
"""The same of a test whose values are rows of a job of Spark."""


def drawn(strategy: st.SearchStrategy[Value], count: int = EXAMPLES) -> list[Value]:
    """Return so many examples of a strategy, the same ones in each run of the profile."""
    found: list[Value] = []

    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: Value) -> None:
        found.append(value)

    collect()
    return found
