"""Every form of the object store, under one contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.objects import DirectoryStore, MemoryStore, ObjectStore


@pytest.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    else:
        opened = DirectoryStore(tmp_path / "objects")
    yield opened
    await opened.close()
