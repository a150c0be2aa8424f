"""The OpenTelemetry Collector accepts what a broker exports by OTLP."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.machine import lacking
from tests.ports import free_port

from compat.parts import PartMissing, otel_collector
from penstock.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.long, pytest.mark.timeout(600)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SECONDS = 60
CONFIGURATION = """
receivers:
  otlp:
    protocols:
      http:
        endpoint: 127.0.0.1:{port}
exporters:
  debug:
    verbosity: detailed
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [debug]
    metrics:
      receivers: [otlp]
      exporters: [debug]
"""


def test_the_collector_accepts_spans_and_metrics(tmp_path: Path) -> None:
    try:
        program = otel_collector()
    except PartMissing as error:
        lacking(f"there is no OpenTelemetry Collector: {error}")
    port, log = free_port(), tmp_path / "log"
    configuration = tmp_path / "collector.yaml"
    configuration.write_text(CONFIGURATION.format(port=port))
    with (
        log.open("wb") as output,
        subprocess.Popen([program, "--config", configuration], stderr=output) as process,
    ):
        try:
            wait(log, "Everything is ready")
            produce(port)
            for expected in (
                f"Trace ID       : {TRACE}", "Parent ID      : 00f067aa0ba902b7",
                "Name           : produce", "Name           : commit", "Name           : fetch",
                "Kind           : Server", "service.name: Str(penstock-broker)",
                "-> Name: penstock_kafka_request_duration_seconds", "-> DataType: Histogram",
                "-> Name: penstock_kafka_received_bytes_total", "-> IsMonotonic: true",
                "-> Name: kafka_topic_partition_current_offset", "-> topic: Str(orders)",
                f"-> Trace ID: {TRACE}",
            ):  # fmt: skip
                wait(log, expected)
        finally:
            process.terminate()


def produce(port: int) -> None:
    header = [{"key": "traceparent", "value": PARENT.encode()}]
    table = pa.table({"value": [b"a"], "headers": pa.array([header], HEADERS)})
    settings = {"otlp.endpoint": f"http://127.0.0.1:{port}", "otlp.interval.ms": 500}
    with Broker(settings) as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", table)
        client.read_arrow("orders")


def wait(log: Path, text: str) -> None:
    end = time.monotonic() + SECONDS
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < end, f"{text!r} is missing:\n{log.read_text()[-5000:]}"
        time.sleep(0.05)
