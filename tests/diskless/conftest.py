"""Servers for the tests of diskless topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for the session."""
    with s3_server() as server:
        yield server
