"""A path that is short enough for a socket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="ps-") as directory:
        yield f"{directory}/host.sock"
