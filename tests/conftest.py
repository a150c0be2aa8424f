"""Fixtures that all rooms' tests share: servers, started when the first test asks for one, and how
property tests run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.parallel import rank

if TYPE_CHECKING:
    from tests.postgres import PostgresServer
    from tests.s3 import S3Server

# How long an example takes on a busy machine says nothing of what it tries. A run tries the same
# examples as the one before; `--hypothesis-profile search`, as of `make test-long`, tries others.
_BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeated", _BUSY, derandomize=True)
settings.register_profile("search", _BUSY)
settings.load_profile("repeated")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Keep some million objects of the collected tests out of each later garbage collection."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, which tests must leave running."""
    from tests.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """The URL of a new, empty schema."""
    return postgres.schema()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server, which tests must leave running; each takes a `fresh_url` of it."""
    from tests.s3 import s3_server

    with s3_server() as server:
        yield server
