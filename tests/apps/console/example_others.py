"""Other processes of the example: a pipeline's status page, a host agent, and an outbox."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from penstock.base.http_page import HttpPage
from penstock.host import HostClient
from penstock.outbox import Outbox, OutboxSettings
from penstock.spark.pipeline.admin import Run, build_app
from penstock.spark.pipeline.state import QueryState
from penstock.testing import Agent, Broker

PAGES: Final[Mapping[str, str]] = {
    "pipeline": "/console/pipelines/shop",
    "pipeline-replay": "/console/pipelines/shop?rule=undecodable&topic=orders#replay",
    "hosts": "/console/hosts",
    "host": "/console/hosts/1",
    "host-socket": "/console/hosts/2",
    "host-silent": "/console/hosts/3",
    "outboxes": "/console/outboxes",
    "outbox": "/console/outboxes/1",
}
SILENT: Final = "http://127.0.0.1:1"
"""Address without a process that listens."""
DEAD: Final = "shop.dead"
"""Dead-letter topic of the pipeline."""
RULE: Final = '<b>amount</b> is "positive"'
"""Name of a rule, with markup that must be shown as text."""

RUN: Final = Run(
    pipeline="shop",
    file="/srv/pipelines/shop's orders.toml",
    bootstrap="127.0.0.1:9092",
    state_directory="/srv/pipelines/.penstock",
    version="0.2",
    pid=4711,
    started_ms=1_790_000_000_000,
    master="local[2]",
    broker_admin="http://127.0.0.1:9644",
    dead_letter_topic=DEAD,
)
QUERIES: Final = (
    QueryState(
        query="orders",
        group_id="shop.orders",
        phase="running",
        batch_id=7,
        batch_rows=1_000,
        batch_ms=180,
        lag_records=12,
        held=2,
        counts={
            "rows": 8_000,
            "batches": 8,
            "rejected.undecodable": 3,
            f"rejected.{RULE}": 4,
            "warned.old": 1,
            "dead_letters": 7,
            "written.lake": 7_993,
        },
    ),
    QueryState(
        query="per_minute",
        group_id="shop.per_minute",
        phase="failed",
        state_rows=40_000,
        state_bytes=5 << 20,
        watermark="2026-01-01T00:00:00.000Z",
        restarts=2,
        error="column amount: cannot be decimal(40,2), the largest precision is 38",
    ),
)


@contextmanager
def other_processes() -> Iterator[dict[str, Any]]:
    """Run the other processes; yield the settings of a broker that name them."""
    root = tempfile.mkdtemp(prefix="penstock-outbox-")
    page = HttpPage(build_app(RUN, lambda: QUERIES), ("127.0.0.1", 0))
    try:
        host, port = page.start()
        with Agent(http=True) as agent, agent.client(client_name="till-7") as producer:
            publish(producer)
            yield {
                "console.pipelines": f"http://{host}:{port},{SILENT}",
                "console.host.agents": f"{agent.http_url},{agent.socket},{SILENT}",
                "console.outboxes": f"weather={root},/nowhere/outbox",
            }
    finally:
        page.stop()
        shutil.rmtree(root, ignore_errors=True)


def publish(producer: HostClient) -> None:
    producer.publish_batch([b"x" * 1_000] * 20, topic="readings", partition=0).result(30)


def fill_others(broker: Broker, settings: Mapping[str, Any]) -> None:
    """Write the dead letters of the pipeline, and payloads with their pointers."""
    root = settings["console.outboxes"].partition("=")[2].partition(",")[0]
    with broker.client() as client:
        client.create_topic(DEAD, 2)
        headers = [*dead_letter("undecodable", 3), *dead_letter(RULE, 4)]
        table = pa.table({"value": [b'{"amount": -1}'] * 7})
        client.write_arrow(DEAD, table.append_column("headers", pa.array(headers)))
        client.create_topic("weather", 1)
        outbox = OutboxSettings(root=root, topic="weather", durable=False, threshold_bytes=-1)
        with Outbox(outbox, broker.bootstrap) as writer:
            for number in range(6):
                writer.send(b"x" * 90_000, partition_id="JFK" if number % 3 else "LHR")
        client.commit_offsets("load", {("weather", 0): 4})


def dead_letter(rule: str, count: int, pipeline: str = "shop") -> Sequence[list[dict[str, Any]]]:
    """Return the headers of dead letters that came from the topic `orders`."""
    facts = {"pipeline": pipeline, "rule": rule, "topic": "orders", "reason": "an example"}
    row = [
        {"key": f"penstock.error.{name}", "value": text.encode()} for name, text in facts.items()
    ]
    return [row] * count
