"""kill -9 of the Spark driver between every two steps of a batch: the table has each row once."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import Topic
from tests.spark.driver_deaths import assert_each_once, outlive

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROWS: Final = 900
STEPS: Final = ("staged", "committed", "done")
DRIVER: Final = """
from penstock.spark import DeltaSink, session

class Sink(DeltaSink):
    def __call__(self, batch, batch_id):
        super().__call__(batch, batch_id)
        if batch_id == 2:
            die("done")

    def _commit(self, table, made, commit):
        if commit.batch_id == 1:
            die("staged")
        version = super()._commit(table, made, commit)
        if commit.batch_id == 1:
            die("committed")
        return version

fast = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1", "spark.driver.memory": "1g"}
spark = session(cores=1, settings=fast)
stream = (spark.readStream.format("penstock").option("bootstrap", bootstrap)
    .option("penstock.admin.url", admin).option("subscribe", topic)
    .option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 300).load())
query = (stream.writeStream.foreachBatch(Sink(folder + "/table", application="crash"))
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start())
query.awaitTermination()
"""


@pytest.mark.timeout(600)
def test_no_row_is_lost_or_doubled(topic: Topic, tmp_path: Path) -> None:
    written = topic.write(ROWS)
    broker = topic.broker
    outlive(DRIVER, tmp_path, broker.bootstrap, broker.admin_url, topic.name, steps=STEPS)
    assert_each_once(DeltaTable(str(tmp_path / "table")), written)
