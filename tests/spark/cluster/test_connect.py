"""Through a Spark Connect server, a process of its own: what works, and what is refused."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.spark.sessions.session import ServerSetting
from tests.spark.cluster import jobs
from tests.spark.cluster.conftest import Driver
from tests.spark.cluster.java import JavaProcess
from tests.spark.cluster.topics import Records
from tests.spark.conftest import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(400),
]

MODULE = """
def doubled(batches):
    for batch in batches:
        yield from (batch, batch)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": jobs.FAST,
        "spark.python.daemon.module": "penstock.spark.reads.daemon",
    }
    words = [word for item in settings.items() for word in ("--conf", "=".join(item))]
    kind = "org.apache.spark.sql.connect.service.SparkConnectServer"
    process = JavaProcess(
        tmp_path_factory.mktemp("connect"),
        "server",
        "org.apache.spark.deploy.SparkSubmit",
        *("--master", "local[2]", "--class", kind, *words, "spark-internal"),
        environment={"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": jobs.TESTED},
    )
    try:
        found = process.await_word(r"Spark Connect server started at: \S*?:(\d+)")
        yield f"sc://127.0.0.1:{found.group(1)}"
    finally:
        process.end()


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Driver]:
    made = Driver()
    try:
        with pytest.raises(ServerSetting, match="spark\\.executor\\.memory"):
            made.call(jobs.open_session, server, settings={"spark.executor.memory": "3g"})
        made.call(jobs.open_session, server)
        yield made
    finally:
        made.close()


@pytest.mark.long
def test_batch_reads_and_shipped_functions(
    client: Driver, records: Records, tmp_path: Path
) -> None:
    written = records.write(900)
    assert Counter(client.call(jobs.batch, records.options())) == Counter(written)
    first = client.call(jobs.batch, records.options(), where="partition = 1 and offset < 20")
    assert 0 < len(first) <= 20
    file = tmp_path / "shipped_over_connect.py"
    file.write_text(MODULE)
    assert client.call(jobs.shipped, str(file)) == 20


@pytest.mark.long
def test_a_stream_is_written_to_a_topic_once_and_shows_its_group(
    client: Driver, records: Records, tmp_path: Path
) -> None:
    written = records.write(900)
    options = records.options(maxRecordsPerTrigger=500, groupId=f"{records.name}-group")
    sink = {"kind": "writer", "topic": records.out}
    client.call(jobs.stream, options, sink, str(tmp_path))
    client.call(jobs.stream, options, sink, str(tmp_path))
    assert Counter(records.appended(client)) == Counter(written)
    until(  # the listener hears of a batch a moment after it ended
        "the group is listed",
        lambda: (
            f"{records.name}-group" in {group.group_id for group in records.client.list_groups()}
        ),
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["table", "log"])
def test_sinks_of_foreach_batch_run_in_the_server(
    kind: str, client: Driver, records: Records, tmp_path: Path
) -> None:
    written = records.write(900)
    sink = {
        "kind": kind,
        "application": f"connect-{kind}-{records.name}",
        "table": str(tmp_path / "table"),
        "topic": records.out,
    }
    client.call(jobs.stream, records.options(maxRecordsPerTrigger=500), sink, str(tmp_path))
    found = values(sink) if kind == "table" else records.appended(client)
    assert Counter(found) == Counter(written)


def values(sink: dict[str, str]) -> list[bytes]:
    found: list[bytes] = DeltaTable(sink["table"]).to_pyarrow_table()["value"].to_pylist()
    return found
