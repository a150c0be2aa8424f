"""Page of diskless topics, compared with the broker's metrics and its queue of work."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.request import urlopen

import pyarrow as pa
import pytest

from penstock.testing import Broker
from tests.apps.console.visitor import Visitor, guarded_broker

OLD_MS = 1_577_836_800_000
ROWS = 2_000


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Run a broker with a diskless topic whose records are from 2020, so reads are cold."""
    with guarded_broker(tmp_path_factory.mktemp("diskless")) as broker:
        with broker.client() as client:
            client.create_topic("clicks", 1, {"diskless.enable": "true"})
            table = pa.table({"value": [b"x" * 200] * ROWS, "timestamp": [OLD_MS] * ROWS})
            client.write_arrow("clicks", table)
            assert client.read_arrow("clicks").num_rows == ROWS
        yield broker


def metric(broker: Broker, name: str) -> float:
    with urlopen(f"{broker.admin_url}/metrics") as response:
        text = response.read().decode()
    [line] = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[-1])


def test_figures_are_those_of_the_metrics(guarded: Broker) -> None:
    page = Visitor(guarded.admin_url).get("/console/diskless")
    objects = metric(guarded, "penstock_diskless_objects_committed_total")
    assert objects >= 1
    assert f"Objects {objects:,.0f} Objects now" in page.words
    assert metric(guarded, 'penstock_objects_fetch_bytes_total{path="cold"}') > 0
    cold = page.words.split("Cold path (old data) ")[1]
    assert re.match(r"\S+ \S+ [1-9][\d.,]* KiB \S+ \S+ \S+ \S+ 0 0 0 0 ", cold)
    assert "Rates appear after some seconds." in page.words
    blocks = metric(guarded, "penstock_objects_cache_blocks")
    assert f"Cached blocks {blocks:.0f} " in page.words


def test_backlogs_are_those_of_the_queue(guarded: Broker) -> None:
    with urlopen(f"{guarded.admin_url}/v1/diskless/backlogs") as response:
        [row] = json.load(response)["partitions"]
    page = Visitor(guarded.admin_url).get("/console/diskless?q=click")
    kib = row["size_bytes"] / 1024
    shown = f"{kib:.0f}" if kib >= 100 else f"{kib:.1f}"
    assert f"clicks 0 {row['extents']} 2020-01-01 00:00:00 {shown} KiB" in page.words


def test_permission_is_needed(guarded: Broker) -> None:
    assert Visitor(guarded.admin_url, "alice").get("/console/diskless").status == 403
