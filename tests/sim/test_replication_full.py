"""The cores of replication in every order of events, within larger bounds.

A file of its own, so that one process can explore while another one runs what else is long.
"""

from __future__ import annotations

import pytest
from sim.replication.bounds import FULL, Bounds

from tests.sim.test_replication import holds

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_600)]


@pytest.mark.parametrize("bounds", FULL, ids=str)
def test_everything_holds_within_larger_bounds(bounds: Bounds) -> None:
    assert holds(bounds).states > 1_000
