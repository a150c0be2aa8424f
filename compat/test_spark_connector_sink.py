"""What a crash between a sink's write and Spark's checkpoint does: twice through Spark's own Kafka
connector, once through Penstock's sink.

Spark repeats a batch whose number its checkpoint does not have. The connector writes records with
no number, so the repeated ones stand in the log again; the connector's documentation promises no
more than at least once. Penstock's sink commits a batch under its number.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from compat.conftest import missing
from compat.parts import PartMissing, jars
from compat.security import administrator, read, security_of, transactions, write
from compat.servers import PenstockProcess
from compat.test_spark_connector import SPARK_GROUPS, brokers
from penstock.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = 300
PER_BATCH = 100  # as in the program
CONFIGS = {"admin.loopback.trusted": "false", "admin.basic.loopback": "true"}
"""The admin interface asks who commits a batch, too."""


def _run(paths: str, folder: Path, broker: PenstockProcess, sinks: dict[str, str]) -> int:
    """Run the program once; its exit status, negative if it was killed."""
    program = Path(__file__).with_name("spark_sink_program.py")
    needs = (*read("trips", SPARK_GROUPS), *map(write, sinks.values()), transactions(sinks["ours"]))
    arguments = (paths, str(folder), broker.admin_url, "trips")
    child = subprocess.run(
        [sys.executable, str(program), *arguments],
        input=json.dumps(brokers(broker, *needs)).encode(),
        env={**security_of("spark").environment(), "SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()[-3_000:]
    return child.returncode


def _counts(client: Client, topic: str) -> Counter[bytes]:
    return Counter(client.read_arrow(topic, columns=("value",)).column("value").to_pylist())


@pytest.mark.long
def test_a_repeated_batch_is_doubled_by_the_connector_only(tmp_path: Path) -> None:
    try:
        paths = ",".join(str(path) for path in jars("spark"))
    except PartMissing as error:
        missing(error)
    values = [b"trip %d" % number for number in range(ROWS)]
    sinks = {sink: f"trips-{sink}" for sink in ("connector", "ours", "stream")}
    with (
        PenstockProcess(tmp_path / "broker", configs=CONFIGS) as broker,
        administrator(broker.bootstrap) as client,
    ):
        client.create_topic("trips", partitions=1)
        for topic in sinks.values():
            client.create_topic(topic, partitions=2)
        client.write_arrow("trips", pa.table({"key": values, "value": values}))
        assert _run(paths, tmp_path, broker, sinks) == -signal.SIGKILL
        once = Counter(values)
        assert _counts(client, "trips-stream") == once
        # The connector's streaming sink, as a crash leaves it between the write of the last batch
        # and its mark in the checkpoint.
        for mark in (tmp_path / "stream" / "commits").glob("*2*"):
            mark.unlink()
        assert _run(paths, tmp_path, broker, sinks) == 0
        repeated = once + Counter(values[PER_BATCH : 2 * PER_BATCH])
        assert _counts(client, "trips-connector") == repeated
        assert _counts(client, "trips-ours") == once
        assert _counts(client, "trips-stream") == once + Counter(values[2 * PER_BATCH :])
