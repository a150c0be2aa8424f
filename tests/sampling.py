"""Parameters of a test of which each run takes some, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sample(cases: Sequence[Any], every: int) -> list[Any]:
    """Return the cases; all but the first, and each `every`-th after it, are marked `long`."""
    return [
        pytest.param(case, marks=pytest.mark.long) if number % every else case
        for number, case in enumerate(cases)
    ]
