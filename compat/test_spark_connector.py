"""Spark's own Kafka connector: a batch written, a stream read in steps, and read back whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.conftest import missing
from compat.drivers import Driver, Record
from compat.drivers.remote import Program, from_json
from compat.parts import PartMissing, jars
from compat.scenes import in_order, plain_records, with_offsets
from compat.security import Need, grant, read, security_of, write
from compat.servers import Addressed, Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
SPARK_SECONDS = 120


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Spark with the connector, in a process of its own."""
    pytest.importorskip("pyspark")
    try:
        paths = ",".join(str(path) for path in jars("spark"))
    except PartMissing as error:
        missing(error)
    program = Path(__file__).with_name("spark_program.py")
    directory = str(tmp_path_factory.mktemp("spark"))
    command = [sys.executable, str(program), paths, directory]
    running = Program(command, {"SPARK_LOCAL_IP": "127.0.0.1"}, answer_seconds=SPARK_SECONDS)
    yield running
    running.close()


SPARK_GROUPS = "spark-kafka-*"


def brokers(server: Addressed, *needs: Need) -> dict[str, str]:
    """The connector's options for the brokers, where Spark may do this."""
    grant(server.bootstrap, "spark", needs)
    options = {"bootstrap.servers": server.bootstrap, **security_of("spark").properties()}
    return {f"kafka.{name}": value for name, value in options.items()}


def _read(spark: Program, server: Server, topic: str, **options: str) -> list[Record]:
    found = spark.call(
        "read", brokers=brokers(server, *read(topic, SPARK_GROUPS)), topic=topic, options=options
    )
    return in_order(from_json(each) for each in found)


@pytest.mark.long
def test_reads_what_others_wrote(
    spark: Program, server: Server, helper: Driver, topic: str, now_ms: int
) -> None:
    expected = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        sent = plain_records(120, start=120 * number, timestamp=now_ms)
        expected += with_offsets(sent, helper.produce(topic, sent, codec=codec))
    assert _read(spark, server, topic) == in_order(expected)


@pytest.mark.long
def test_reads_by_offsets_and_by_time(
    spark: Program, server: Server, helper: Driver, topic: str, now_ms: int
) -> None:
    start = now_ms - 1_000_000
    sent = plain_records(100, partitions=1, timestamp=start, step_ms=10)
    helper.produce(topic, sent)
    places = f'{{"{topic}": {{"0": 40, "1": -2, "2": -2, "3": -2, "4": -2, "5": -2}}}}'
    assert len(_read(spark, server, topic, startingOffsets=places)) == 60
    by_time = {
        "startingTimestamp": str(start + 333),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": str(start + 500),
    }
    found = _read(spark, server, topic, **by_time)
    assert [record.offset for record in found] == list(range(34, 50))


@pytest.mark.long
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_writes_a_batch(
    spark: Program, server: Server, helper: Driver, topic: str, codec: str
) -> None:
    spark.call("write", brokers=brokers(server, write(topic)), topic=topic, count=1000, codec=codec)
    found = helper.consume(topic, dict.fromkeys(range(6), 0), 1000)
    assert {(record.key, record.value, record.partition) for record in found} == {
        (str(number).encode(), f"value {number}".encode(), number % 6) for number in range(1000)
    }


@pytest.mark.long
def test_streams_from_topic_to_topic(
    spark: Program, server: Server, helper: Driver, topic: str, now_ms: int, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    helper.create_topic(target, 2, {})
    expected = []
    for number in range(2):
        expected += plain_records(300, start=300 * number, timestamp=now_ms)
        helper.produce(topic, expected[300 * number :])
        assert spark.call(
            "stream",
            brokers=brokers(server, *read(topic, SPARK_GROUPS), write(target)),
            topic=topic,
            target=target,
            checkpoint=str(tmp_path / "checkpoint"),
            per_batch=200,
        )
    found = helper.consume(target, {0: 0, 1: 0}, len(expected))
    assert sorted(record.value or b"" for record in found) == sorted(
        record.value or b"" for record in expected
    )
    assert helper.bounds(target, [0, 1])[0][1] + helper.bounds(target, [0, 1])[1][1] == 600
