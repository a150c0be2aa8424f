"""Every form of the control plane, under one contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from penstock.control import ControlPlane, MemoryControlPlane, SqliteControlPlane
from tests.control.diskless import Plane, furnish


@pytest.fixture(params=["memory", "sqlite"])
async def control(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ControlPlane]:
    plane: ControlPlane
    if request.param == "memory":
        plane = MemoryControlPlane()
    else:
        plane = SqliteControlPlane(tmp_path / "metadata.sqlite")
    await plane.start()
    yield plane
    await plane.close()


@pytest.fixture
async def plane(control: ControlPlane) -> Plane:
    """The same form, with a broker and topics, two of which are diskless."""
    both = cast(Plane, control)
    await furnish(both)
    return both
