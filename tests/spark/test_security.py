"""Reads and writes through Spark of a broker with TLS, users and ACLs; and where secrets do not go.

The queries run in a process of their own, whose plans, event log and output are searched.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from penstock.spark.errors import InvalidOption
from penstock.spark.options import parse
from penstock.spark.sink.options import parse as parse_sink
from penstock.testing import Broker
from tests.broker.security.secured import users_file
from tests.security.access import allow
from tests.security.certificates import keystore, truststore

if TYPE_CHECKING:
    from tests.s3 import S3Server

PASSWORD = "planted-cafe-secret-7"
OPTIONS = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.username": "alice",
    "kafka.sasl.password": PASSWORD,
}

QUERIES = """
import json, os, sys
from penstock.spark import session

directory, options = sys.argv[1], json.load(sys.stdin)
spark = session(
    application="secured", cores=2,
    settings={
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": "file://" + directory,
        "spark.eventLog.compress": "false",
    },
)
spark.sparkContext.setLogLevel("INFO")
read = spark.read.format("penstock").options(**options).option("subscribe", "orders").load()
read.explain("extended")
read.explain("formatted")
print(read, read._jdf.queryExecution().toString())
rows = sorted(bytes(row.value).decode() for row in read.select("value").collect())
written = read.select("value").write.format("penstock").options(**options)
written.option("topic", "copies").mode("append").save()
stream = spark.readStream.format("penstock").options(**options).option("subscribe", "orders")
query = (
    stream.option("startingOffsets", "earliest").load().select("value").writeStream
    .format("penstock").options(**options).option("topic", "copies")
    .option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
print(query.lastProgress)
for bad in ({"kafka.sasl.pasword": options.get("kafka.sasl.password", "x")},):
    try:
        spark.read.format("penstock").options(**options, **bad).option("subscribe", "a").load()
    except Exception as error:
        print("refused:", error)
spark.stop()
print("rows", rows, flush=True)
"""


@contextmanager
def secured_broker(directory: Path, **more: str) -> Iterator[Broker]:
    """With TLS, ACLs and a user, who may read and write; settings by names with underscores."""
    settings = {
        "listeners": "SASL_SSL://127.0.0.1:0",
        "authorizer.class.name": "acls",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.location": keystore(directory),
        "sasl.users.file": users_file(directory, "alice", password=PASSWORD),
        "admin.security.protocol": "SSL",
        **{name.replace("_", "."): value for name, value in more.items()},
    }
    rights = [("read", "topic", "orders"), ("write", "topic", "orders")]
    rights += [("write", "topic", "copies"), ("write", "transactional_id", "*")]
    rights += [("describe", "transactional_id", "*")]
    with Broker(settings) as broker, broker.client() as client:
        client.create_acls([allow(*right, "alice") for right in rights])
        yield broker


def fill(broker: Broker, **configs: str) -> None:
    """The topics, and two records of `orders`, whose configurations these are."""
    broker.create_topic("orders", configs={n.replace("_", "."): v for n, v in configs.items()})
    broker.create_topic("copies")
    with broker.client() as client:
        client.write_arrow("orders", pa.table({"value": [b"one", b"two"]}))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    directory = tmp_path_factory.mktemp("tls")
    with secured_broker(directory) as broker:
        fill(broker)
        yield broker, directory


def options_of(secured: tuple[Broker, Path]) -> dict[str, str]:
    broker, directory = secured
    server = broker.server
    assert server is not None
    host, port = server.bound["SASL_SSL"]
    return {
        **OPTIONS,
        "kafka.ssl.truststore.location": truststore(directory),
        "kafka.bootstrap.servers": f"{host}:{port}",
        "penstock.admin.url": broker.admin_url,
    }


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("by_file", [False, pytest.param(True, marks=pytest.mark.long)])
def test_queries_run_and_no_secret_is_anywhere(
    secured: tuple[Broker, Path], tmp_path: Path, by_file: bool
) -> None:
    options, environment = options_of(secured), dict(os.environ)
    if by_file:
        security = {name: options.pop(name) for name in list(options) if _is_security(name)}
        config = tmp_path / "client.properties"
        lines = [f"{name.removeprefix('kafka.')}={value}" for name, value in security.items()]
        config.write_text("\n".join(lines))
        environment["PENSTOCK_CLIENT_CONFIG"] = str(config)
    texts = queried(options, tmp_path, environment)
    assert [name for name, text in texts.items() if PASSWORD.encode() in text] == []
    with secured[0].client() as client:
        assert client.list_offsets("copies", "latest")[0] >= 4


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
def test_queries_read_by_signed_urls_that_are_nowhere(s3: S3Server, tmp_path: Path) -> None:
    store = s3.options()
    options_file = tmp_path / "store"
    options_file.write_text("".join(f"{name}={value}\n" for name, value in store.items()))
    settings = {
        "diskless_storage_url": s3.fresh_url(), "diskless_storage_options_file": str(options_file)
    }  # fmt: skip
    with secured_broker(tmp_path, **settings) as broker:
        fill(broker, diskless_enable="true")
        environment = {n: v for n, v in os.environ.items() if not n.startswith("AWS_")}
        texts = queried(options_of((broker, tmp_path)), tmp_path, environment)
    secrets = [PASSWORD, "X-Amz-Signature", store["aws_secret_access_key"]]
    assert [name for name, text in texts.items() if any(s.encode() in text for s in secrets)] == []
    assert b"reading from the broker" not in texts["stderr"]


def queried(
    options: dict[str, str], tmp_path: Path, environment: dict[str, str]
) -> dict[str, bytes]:
    """Run the queries; their output, plans and event log, by name."""
    log = tmp_path / "events"
    log.mkdir()
    process = subprocess.run(
        [sys.executable, "-c", QUERIES, str(log)],
        input=json.dumps(options),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert process.stdout.rstrip().endswith("rows ['one', 'two']"), process.stderr[-3000:]
    assert "unknown security option" in process.stdout
    texts = {str(path): path.read_bytes() for path in log.rglob("*") if path.is_file()}
    assert any(b"SparkListenerSQLExecutionStart" in text for text in texts.values())
    return texts | {"stdout": process.stdout.encode(), "stderr": process.stderr.encode()}


def _is_security(name: str) -> bool:
    return name.startswith(("kafka.sasl", "kafka.ssl", "kafka.security"))


def test_options_do_not_show_what_is_secret(secured: tuple[Broker, Path]) -> None:
    options = options_of(secured)
    read = parse({**options, "subscribe": "orders"})
    written = parse_sink({**options, "topic": "orders"})
    for parsed in (read, written):
        assert PASSWORD not in repr(parsed)
        assert PASSWORD not in str(parsed)
        assert parsed.security["sasl.password"] == PASSWORD
        assert pickle.loads(pickle.dumps(parsed)).security == parsed.security


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.sasl.pasword", PASSWORD),
        ("sasl.password", PASSWORD),
        ("kafka.sasl.jaas.config", PASSWORD),
        ("kafka.sasl.mechanism", PASSWORD),
        ("kafka.security.protocol", PASSWORD),
    ],
)
def test_a_wrong_option_is_named_without_its_value(name: str, value: str) -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", **OPTIONS, name: value}
    with pytest.raises(InvalidOption, match=r"sasl|security") as failed:
        parse({**options, "subscribe": "orders"})
    assert PASSWORD not in str(failed.value)
    assert PASSWORD not in repr(failed.value)
