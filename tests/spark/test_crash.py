"""kill -9 of the Spark driver between every two steps of a batch: the table has each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from deltalake import DeltaTable

from tests.spark.conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROWS: Final = 900
STEPS: Final = ("staged", "committed", "done")
DRIVER: Final = '''
import os, signal, sys
from penstock.spark import DeltaSink, session

folder, bootstrap, admin, topic, *steps = sys.argv[1:]

def die(step):
    """Kill this process group once per step, for good."""
    mark = os.path.join(folder, "died-" + step)
    if step in steps and not os.path.exists(mark):
        open(mark, "w").close()
        os.killpg(0, signal.SIGKILL)

class Sink(DeltaSink):
    def __call__(self, batch, batch_id):
        super().__call__(batch, batch_id)
        if batch_id == 2:
            die("done")

    def _commit(self, files, schema, commit):
        if commit.batch_id == 1:
            die("staged")
        version = super()._commit(files, schema, commit)
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
'''


def drive(topic: Topic, folder: Path) -> int:
    arguments = (str(folder), topic.broker.bootstrap, topic.broker.admin_url, topic.name, *STEPS)
    child = subprocess.run(
        [sys.executable, "-c", DRIVER, *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()[-3_000:]
    return child.returncode


@pytest.mark.timeout(240)
def test_no_row_is_lost_or_doubled(topic: Topic, tmp_path: Path) -> None:
    written = topic.write(ROWS)
    deaths = 0
    while drive(topic, tmp_path) != 0:
        deaths += 1
        assert deaths <= len(STEPS)
    assert deaths == len(STEPS)
    assert {name for name in os.listdir(tmp_path) if name.startswith("died-")} == {
        f"died-{step}" for step in STEPS
    }
    read = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    assert Counter(read["value"].to_pylist()) == Counter(written["value"].to_pylist())
    places = Counter(zip(*read.select(["partition", "offset"]).to_pydict().values(), strict=True))
    assert max(places.values()) == 1
