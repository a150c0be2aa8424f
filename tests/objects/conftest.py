"""Every form of the object store, under one contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.objects import DirectoryStore, MemoryStore, ObjectStore, open_store
from tests.s3 import S3Server


@pytest.fixture(params=["memory", "directory", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "directory":
        opened = DirectoryStore(tmp_path / "objects")
    else:
        server: S3Server = request.getfixturevalue("s3")
        opened = open_store(server.fresh_url(), options=server.options())
    yield opened
    await opened.close()
