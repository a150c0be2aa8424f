"""Cluster for this folder, and a driver process with a session on it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark.cluster import jobs
from tests.spark.cluster.standalone import StandaloneCluster
from tests.spark.cluster.topics import Records

if TYPE_CHECKING:
    from penstock.testing import Broker

CALL_SECONDS = 240.0


class Driver:
    """A process whose Spark session is on a cluster."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(max_workers=1, mp_context=context)

    def call(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        return self.begin(function, *arguments, **more).result(CALL_SECONDS)

    def begin(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Future[Any]:
        return self._pool.submit(function, *arguments, **more)

    def close(self) -> None:
        self.begin(jobs.close_session)
        self._pool.shutdown()


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


@pytest.fixture(scope="package")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    made = Driver()
    try:
        made.call(jobs.open_session, cluster.url)
        yield made
    finally:
        made.close()


@pytest.fixture
def records(broker: Broker) -> Iterator[Records]:
    made = Records(broker)
    yield made
    made.client.close()
