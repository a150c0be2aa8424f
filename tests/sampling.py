"""Parameters of a test of which each run takes some, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sample(cases: Sequence[Any], every: int) -> list[Any]:
    """Return the cases; all but the first, and each `every`-th after it, are marked `long`."""
    return sample_rows([(case,) for case in cases], every)


def sample_rows(cases: Sequence[Sequence[Any]], every: int) -> list[Any]:
    """Return what `sample` does, of cases that are the values of several parameters."""
    return [
        pytest.param(*case, marks=[pytest.mark.long] if number % every else [])
        for number, case in enumerate(cases)
    ]
