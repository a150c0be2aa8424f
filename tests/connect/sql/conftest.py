"""Databases of the tests of SQL connectors: an empty one in PostgreSQL, and files of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import Database, database
from tests.connect.sql.bed import Sqlite


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Database]:
    """An empty schema of PostgreSQL."""
    with database(postgres_url.replace("search_path=", "options=-csearch_path%3D")) as opened:
        yield opened


@pytest.fixture(params=["postgresql", "sqlite"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database | Sqlite]:
    """An empty database of PostgreSQL, and one of SQLite."""
    if request.param == "postgresql":
        yield request.getfixturevalue("shop")
        return
    opened = Sqlite(tmp_path / "shop.db")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker in a process of its own."""
    with Broker(directory=tmp_path_factory.mktemp("log"), process=True) as broker:
        yield broker
