"""Fixtures of this folder: a Spark session and a broker for all tests; topics of their own per
test.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from penstock.testing import Broker

NUMBERS = itertools.count()
PATIENCE_SECONDS = 120.0
TIMEOUT_SECONDS = 300
"""Of a test that names none: Spark starts processes, and waits for them on a busy machine."""
KEEP = {"retention.ms": "-1"}
SETTINGS = {
    # Compiling Java for each query takes longer than a few rows do without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    # Short runs end before Java's thorough compiler pays off, and threads that collect beside it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # The default one starts `readlink` as a process for every file that it renames: 50 in a trigger
    # that has state, and a third of the processor's time that it takes.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # PySpark warns of newer pandas at every conversion, which does not concern these tests.
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


def until(said: str, condition: Callable[[], bool]) -> None:
    """Wait for what others do in their own time."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited {PATIENCE_SECONDS} s until {said}"
        threading.Event().wait(0.05)


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    from penstock.spark import session

    made = session(application="tests", cores=2, settings=SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="package")
def broker() -> Iterator[Broker]:
    from penstock.testing import Broker

    with Broker() as running:
        yield running


class Topic:
    """A topic with its own name, and the ways that the tests fill and read it."""

    def __init__(
        self, broker: Broker, spark: SparkSession, partitions: int, **configs: str
    ) -> None:
        self.name = f"topic-{next(NUMBERS)}"
        self.broker = broker
        self.spark = spark
        self.client = broker.client()
        # The records are of 1970; retention by time would take them away.
        self.client.create_topic(self.name, partitions=partitions, configs=KEEP | configs)

    def write(self, count: int, *, first: int = 0, **more: Any) -> pa.Table:
        """Records whose value says their number and whose key goes round ten words."""
        numbers = range(first, first + count)
        table = pa.table(
            {
                "key": pa.array([f"k{number % 10}".encode() for number in numbers]),
                "value": pa.array([f"value {number}".encode() for number in numbers]),
                "timestamp": pa.array([1_000_000 + number for number in numbers]),
            }
        )
        self.client.write_arrow(self.name, table, **more)
        return table

    def options(self, **more: object) -> dict[str, str]:
        given = {
            "bootstrap": self.broker.bootstrap,
            "penstock.admin.url": self.broker.admin_url,
            "subscribe": self.name,
        }
        return given | {name: str(value) for name, value in more.items()}

    def batch(self, **more: object) -> DataFrame:
        return self.spark.read.format("penstock").options(**self.options(**more)).load()

    def stream(self, **more: object) -> DataFrame:
        given = self.options(**({"startingOffsets": "earliest"} | more))
        return self.spark.readStream.format("penstock").options(**given).load()


@pytest.fixture
def topic(broker: Broker, spark: SparkSession) -> Iterator[Topic]:
    made = Topic(broker, spark, partitions=3)
    yield made
    made.client.close()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"
