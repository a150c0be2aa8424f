"""Servers of the tests of PostgreSQL's changes: a database with logical replication, a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.connect.postgresql.bed import LOGICAL, Database, database
from tests.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session", params=["machine", pytest.param("17", marks=pytest.mark.long)])
def logical(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server with logical replication, which tests must leave running: the machine's, and 17."""
    with postgres_server(settings=LOGICAL, version_17=request.param == "17") as server:
        yield server


@pytest.fixture
def shop(logical: PostgresServer) -> Iterator[Database]:
    """An empty database, dropped with its slots in the end."""
    with logical.database() as name, database(logical.url(name)) as opened:
        yield opened


@pytest.fixture(scope="session")
def log(logical: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker in a process of its own, for one server: connectors keep their positions in it."""
    with Broker(directory=tmp_path_factory.mktemp("log"), process=True) as broker:
        yield broker


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
