"""kill -9 of drivers, workers and the broker between the steps of a batch: each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from compat.servers import bootstrap_of, running_brokers
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.client.admin_http import AdminHttp
from penstock.spark import LogSink
from penstock.spark.sink.commits import Commits
from penstock.testing import Broker
from tests.postgres import PostgresServer
from tests.spark.conftest import KEEP, Topic
from tests.spark.sink.conftest import Target

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS: Final = 900
# In the commit of batch 1: before it is posted, and after its answer, before Spark's checkpoint.
STEPS: Final = ("staged", "committed")
# The commit of a foreachBatch runs in the driver, that of a format in a process of Spark's planner,
# staging in workers. The driver imports this, planners get the source from it, and it is the parent
# of the workers.
DEADLY: Final = '''
import os, signal, sys
from penstock.spark.reads import daemon
from penstock.spark.sink import staging
from penstock.spark.sink.commits import Commits
from penstock.spark.sink.blobs import BlobStore
from penstock.spark.sessions.source import PenstockSource

folder = os.environ["DEADLY_FOLDER"]
steps = os.environ["DEADLY_STEPS"].split(",")
plain_commit, plain_put = Commits.commit, BlobStore.put
puts = 0

def die(step, group):
    """Kill a process group and this process once per step, for good."""
    mark = os.path.join(folder, "died-" + step)
    if step in steps and not os.path.exists(mark):
        open(mark, "w").close()
        if group:
            os.killpg(int(os.environ["DEADLY_GROUP"]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

def commit(self, batch_id, owner, blobs):
    if batch_id == 1:
        die("staged", True)
    done = plain_commit(self, batch_id, owner, blobs)
    if batch_id == 1:
        die("committed", True)
    return done

def put(self, name, pieces, size_bytes):
    global puts
    holders = plain_put(self, name, pieces, size_bytes)
    puts += 1
    if puts == 3:
        die("put", False)
    return holders

class Source(PenstockSource):
    """The same source, from here."""

Commits.commit, BlobStore.put = commit, put
if "put" in steps:
    staging.CHUNK_BYTES = 2_000
if __name__ == "__main__":
    from pyspark import daemon as parent
    daemon.preload()
    parent.manager()
'''
DRIVER: Final = """
import os, sys
os.environ["DEADLY_GROUP"] = str(os.getpgid(0))
import deadly
from pyspark.sql import SparkSession
from penstock.spark import LogSink, session

way, folder, bootstrap, admin, topic, target = sys.argv[1:]
fast = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "1g",
    "spark.python.daemon.module": "deadly", "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
# One core, where a task may fail three times before its job does.
spark = session(SparkSession.builder.master("local[1,4]"), settings=fast)
spark.dataSource.register(deadly.Source)
addresses = {"bootstrap": bootstrap, "penstock.admin.url": admin}
options = addresses | {"subscribe": topic, "startingOffsets": "earliest"}
sink = LogSink(application=target, bootstrap=bootstrap, admin_url=admin, topic=target)
if way == "task":
    rows = spark.read.format("penstock").options(**options).load().drop("partition")
    done = sink.write(rows, 0)
    assert not done.replayed
    sys.exit(0)
stream = (spark.readStream.format("penstock").options(**options)
    .option("maxRecordsPerTrigger", 300).load().drop("partition"))
writer = stream.writeStream.option("checkpointLocation", folder + "/checkpoint")
if way == "foreachBatch":
    writer = writer.foreachBatch(sink)
else:
    writer = writer.format("penstock").options(**addresses).option("topic", target)
    writer = writer.option("transactional", way == "transactional")
writer.trigger(availableNow=True).start().awaitTermination()
"""


def drive(way: str, topic: Topic, target: Target, folder: Path, *steps: str) -> int:
    """Run the driver once; its exit status, negative if it was killed."""
    (folder / "deadly.py").write_text(DEADLY)
    arguments = (way, folder, topic.broker.bootstrap, topic.broker.admin_url, topic.name)
    child = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, arguments), target.name],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
            "DEADLY_FOLDER": str(folder),
            "DEADLY_STEPS": ",".join(steps),
        },
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert child.returncode in (0, -signal.SIGKILL), child.stderr.decode()[-3_000:]
    return child.returncode


def deaths(folder: Path) -> set[str]:
    return {path.name.removeprefix("died-") for path in folder.glob("died-*")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "way",
    [
        pytest.param("foreachBatch", marks=pytest.mark.long),
        pytest.param("format", marks=pytest.mark.long),
        pytest.param("transactional", marks=pytest.mark.long),
    ],
)
def test_a_driver_that_dies(topic: Topic, target: Target, tmp_path: Path, way: str) -> None:
    written = topic.write(ROWS)
    died = 0
    while drive(way, topic, target, tmp_path, *STEPS) != 0:
        died += 1
        assert died <= len(STEPS)
    assert deaths(tmp_path) == set(STEPS)
    wanted = Counter(
        zip(*(written[name].to_pylist() for name in written.schema.names), strict=True)
    )
    assert Counter((row["key"], row["value"], row["timestamp"]) for row in target.rows()) == wanted


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_worker_that_dies(topic: Topic, target: Target, tmp_path: Path) -> None:
    written = topic.write(ROWS)
    staging = Path(topic.broker.directory) / "staging"
    before = set(staging.iterdir())
    assert drive("task", topic, target, tmp_path, "put") == 0
    assert deaths(tmp_path) == {"put"}
    assert Counter(row["value"] for row in target.rows()) == Counter(written["value"].to_pylist())
    # What the dead attempt left waits to be collected; the other's blobs went with the commit.
    left = {path.name for path in set(staging.iterdir()) - before}
    assert len(left) == 3
    assert all(name.startswith(f"s-{target.name}-0-0-") for name in left)


class Killable(Protocol):
    """A broker in a process of its own."""

    @property
    def admin_url(self) -> str: ...

    def kill(self) -> None: ...

    def start(self) -> object: ...


class Restarting:
    """Kills a broker when the commit of a batch is recorded, or answered; starts it again."""

    def __init__(self, broker: Killable, application: str, batch_id: int) -> None:
        self._broker = broker
        self._batch_id = batch_id
        self._path = f"/v1/sinks/{application}"
        self.state = ""
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with closing(AdminHttp(self._broker.admin_url)) as address:
            while self.state == "":
                ended = self._answered.is_set()
                answer = address.call("GET", self._path, timeout_seconds=30)
                if answer.body.get("batch") == self._batch_id:
                    self.state = str(answer.body["state"])
                if ended:
                    break
        self._broker.kill()
        self._broker.start()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._answered.set()
        self._thread.join()
        assert self.state


@contextmanager
def killed(broker: Killable) -> Iterator[None]:
    """Between staging and commit; it starts again while the commit is tried."""
    broker.kill()
    starting = threading.Thread(target=broker.start)
    starting.start()
    try:
        yield
    finally:
        starting.join()


Deaths = dict[int, Callable[[], AbstractContextManager[None]]]
"""During what the commits of some batches are tried, once."""


def write_over(
    deaths: Deaths,
    spark: SparkSession,
    sink: LogSink,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    rows: int = 200_000,
) -> None:
    """Write batches to the topic `out` over deaths: each row is there once, without a hole."""
    plain = Commits.commit

    def between(self: Commits, batch_id: int, *more: Any) -> Any:
        with deaths.pop(batch_id, nullcontext)():
            return plain(self, batch_id, *more)

    monkeypatch.setattr(Commits, "commit", between)
    batches = max(deaths) + 2
    for batch_id in range(batches):
        numbers = spark.range(batch_id * rows, (batch_id + 1) * rows, numPartitions=2)
        frame = numbers.select(F.col("id").cast("string").alias("value"))
        try:
            done = sink.write(frame, batch_id)
        except PenstockError:
            done = sink.write(frame, batch_id)  # as Spark would after a restart
        assert done.replayed or done.records == rows
    assert not deaths
    assert sink.write(frame, batches - 1).replayed
    found = client.read_arrow("out", columns=("partition", "offset", "value"))
    values = found["value"].to_pylist()
    assert sorted(map(int, values)) == list(range(batches * rows))
    places = set(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    ends = client.list_offsets("out", "latest")
    assert places == {(p, n) for p, end in ends.items() for n in range(end)}


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_broker_that_dies(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(process=True) as broker, broker.client() as client:
        client.create_topic("out", partitions=3, configs=KEEP)
        sink = LogSink(
            application="app", topic="out", bootstrap=broker.bootstrap, admin_url=broker.admin_url
        )
        deaths: Deaths = {1: partial(killed, broker), 2: partial(Restarting, broker, "app", 2)}
        write_over(deaths, spark, sink, client, monkeypatch)


@pytest.mark.timeout(300)
@pytest.mark.long
def test_brokers_with_copies_that_die(
    spark: SparkSession,
    tmp_path: Path,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader without the staged files, then the broker that has them, then the next leader."""
    configs = {
        "replication.listener": "127.0.0.1:0",
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "250",
    }
    with (
        running_brokers(postgres, tmp_path, 3, configs) as brokers,
        Client(bootstrap_of(brokers)) as client,
    ):
        client.create_topic("out", partitions=3, replication_factor=3, configs=KEEP)
        staged, *others = brokers
        sink = LogSink(
            application="app",
            topic="out",
            bootstrap=bootstrap_of(brokers),
            admin_url=staged.admin_url,
        )
        deaths: Deaths = {
            1: partial(killed, others[0]),
            2: partial(Restarting, staged, "app", 2),
            3: partial(killed, others[1]),
            4: partial(killed, staged),
        }
        write_over(deaths, spark, sink, client, monkeypatch)
