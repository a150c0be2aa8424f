"""Spans of one trace: from the application through agent, broker and fetch to Delta's commit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.host import trace_context
from penstock.spark.pipeline import late
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.tracing import REQUEST_SECONDS, batch_traces, linked
from penstock.testing import Agent, Broker
from tests.otlp import Receiver, attributes_of, otlp_receiver

TRACES = ("4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c")
FILE = """
name = "traced"

[run]
trigger = "once"

[source.orders]
topic = "orders"
format = "json"
schema = "id int"

[sink.lake]
from = "orders"
table = "lake/orders"

[errors]
on_invalid = "drop"
"""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with otlp_receiver() as found:
        monkeypatch.setenv("PENSTOCK_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("PENSTOCK_OTLP_SAMPLE_RATIO", "0")
        batch_traces.cache_clear()
        yield found
    batch_traces.cache_clear()


def test_one_trace_from_the_agent_to_the_table(
    receiver: Receiver, spark: SparkSession, tmp_path: Path
) -> None:
    export: dict[str, Any] = {"otlp.endpoint": receiver.url, "otlp.sample.ratio": 0}
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE)
    with Broker(export) as broker:
        broker.create_topic("orders")
        with (
            Agent(broker.bootstrap, export) as agent,
            agent.client(topics=["orders"]) as producer,
        ):
            for number, trace in enumerate((None, *TRACES)):
                payload = b'{"id": %d}' % number
                if trace is None:
                    producer.publish(payload, topic="orders").result()
                    continue
                with trace_context(f"00-{trace}-00f067aa0ba902b7-01"):
                    producer.publish(payload, topic="orders").result()
        spec = load(file, bootstrap=broker.bootstrap, admin=broker.admin_url)
        runner = PipelineRunner(spec, spark)
        runner.start()
        try:
            runner.wait(threading.Event())
        finally:
            runner.stop()
        assert len(list(linked(spec, tmp_path / "missing", 0))) == 0
        receiver.wait(lambda found: sum(span.name == "commit" for _, span in found.spans) == 5)
        assert seconds_of_a_batch_beside_a_silent_broker(spec, runner) < REQUEST_SECONDS / 2
    for trace in TRACES:
        assert receiver.names(bytes.fromhex(trace)) == {
            "penstock-host-agent publish", "penstock-broker produce", "penstock-broker commit",
            "penstock-broker fetch", "penstock-pipeline commit",
        }  # fmt: skip
    pipeline = [span for service, span in receiver.spans if service == "penstock-pipeline"]
    [batch] = [span for span in pipeline if span.name == "batch"]
    produced = {span.trace_id: span for _, span in receiver.spans if span.name == "produce"}
    assert {(link.trace_id, link.span_id) for link in batch.links} == {
        (span.trace_id, span.span_id) for span in produced.values()
    }
    assert attributes_of(batch) == {
        "penstock.pipeline": "traced", "penstock.query": batch_query(batch), "penstock.batch": 0,
    }  # fmt: skip
    commits = [span for span in pipeline if span.name == "commit"]
    assert {span.trace_id.hex() for span in commits} == {*TRACES, batch.trace_id.hex()}
    for commit in commits:
        assert attributes_of(commit)["penstock.sink"] == "lake"
        assert batch.start_time_unix_nano < commit.start_time_unix_nano
        assert commit.end_time_unix_nano <= batch.end_time_unix_nano
        if commit.trace_id != batch.trace_id:
            assert commit.parent_span_id == produced[commit.trace_id].span_id
            assert commit.links[0].span_id == batch.span_id


def seconds_of_a_batch_beside_a_silent_broker(spec: PipelineSpec, runner: PipelineRunner) -> float:
    """Report a committed batch while the broker accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        admin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asking = replace(spec, run=replace(spec.run, admin_url=admin))
        [state] = runner.states()
        checkpoint = PipelinePaths(spec).checkpoint(state.query)
        assert late.bounds(checkpoint, 0) is not None, "there are records to ask for"
        traces = batch_traces()
        assert traces is not None
        began = time.monotonic()
        traces.committed(asking, state.query, batch_id=0, started=began, commits={})
        return time.monotonic() - began


def batch_query(span: Any) -> str:
    return str(attributes_of(span)["penstock.query"])


def test_nothing_is_traced_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_OTLP_ENDPOINT", raising=False)
    batch_traces.cache_clear()
    assert batch_traces() is None
    batch_traces.cache_clear()
