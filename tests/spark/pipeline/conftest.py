"""A pipeline on the shared session and broker, written as its user would write it."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import QueryState

if TYPE_CHECKING:
    from penstock.testing import Broker

NUMBERS = itertools.count()
PATIENCE_SECONDS = 90


class Pipeline:
    """A folder with a pipeline file, topics of its own, and ways to run and look."""

    def __init__(self, folder: Path, broker: Broker, spark: SparkSession) -> None:
        self.folder = folder
        self.broker = broker
        self.spark = spark
        self.client = broker.client()
        self.number = next(NUMBERS)

    def topic(self, name: str, partitions: int = 1) -> str:
        """A topic that no other test has; `{name}` in the file stands for it."""
        made = f"{name}-{self.number}"
        self.client.create_topic(made, partitions=partitions, configs={"retention.ms": "-1"})
        return made

    def send(self, topic: str, values: Sequence[Any], key: str | None = "k", **more: Any) -> None:
        """Values as JSON (bytes as they are), with one key, or with their own as pairs."""
        pairs = [value if isinstance(value, tuple) else (key, value) for value in values]
        data = [one if isinstance(one, bytes) else json.dumps(one).encode() for _, one in pairs]
        keys = pa.array([None if name is None else name.encode() for name, _ in pairs], pa.binary())
        self.client.write_arrow(topic, pa.table({"key": keys, "value": data}), **more)

    def write(self, text: str) -> PipelineSpec:
        """Put the pipeline file into its place and read it."""
        path = self.folder / "pipeline.toml"
        path.write_text(text)
        return load(path, bootstrap=self.broker.bootstrap, admin=self.broker.admin_url)

    def run(self, text: str) -> dict[str, QueryState]:
        """Run a pipeline with `trigger = "once"` to its end."""
        runner = PipelineRunner(self.write(text), self.spark)
        runner.start()
        try:
            runner.wait(threading.Event())
        finally:
            runner.stop()
        return {state.query: state for state in runner.states()}

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of a table below the folder, in no order."""
        found: list[dict[str, Any]] = (
            DeltaTable(str(self.folder / table)).to_pyarrow_table().to_pylist()
        )
        return found

    def records(self, topic: str) -> list[dict[str, Any]]:
        """The records of a topic, by partition and offset."""
        found: list[dict[str, Any]] = self.client.read_arrow(topic).to_pylist()
        return found


@pytest.fixture
def pipeline(tmp_path: Path, broker: Broker, spark: SparkSession) -> Iterator[Pipeline]:
    made = Pipeline(tmp_path, broker, spark)
    yield made
    made.client.close()
