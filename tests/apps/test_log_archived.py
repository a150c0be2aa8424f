"""`penstock log` of topics in an object store, which a broker has to fetch before it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.testing import Broker
from tests.apps.conftest import Run
from tests.apps.test_tiers import SETTINGS, TIERED, until

RECORDS, VALUE_BYTES, BATCHES = 20, 700, 30


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Start a broker with a tiered and a diskless topic of the same records."""
    table = pa.table({"value": [bytes(VALUE_BYTES)] * RECORDS})
    with Broker(SETTINGS) as running:
        running.create_topic("t", 1, TIERED)
        running.create_topic("d", 1, {"diskless.enable": "true"})
        with running.client() as client:
            for _ in range(BATCHES):
                client.write_arrow("t", table)
                client.write_arrow("d", table)
        logs = running.directory / "log" / "t-0"
        until(lambda: len(list(logs.glob("*.log"))) < 4)
        running.restart()  # nothing is in memory
        yield running


@pytest.mark.parametrize("topic", ["t", "d"])
def test_all_of_it_is_counted_shown_and_verified(bare: Run, broker: Broker, topic: str) -> None:
    words = ("-b", broker.bootstrap, "log")
    verified = bare(*words, "verify", topic, "--output", "json")
    assert verified.status == 0, verified.out
    assert json.loads(verified.out)["records"] == RECORDS * BATCHES
    counted = bare(*words, "stats", topic, "--deep", "--output", "json")
    [row] = json.loads(counted.out)
    assert (row["records"], row["next_offset"]) == (RECORDS * BATCHES, RECORDS * BATCHES)
    shown = bare(*words, "dump", topic, "--output", "json")
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert sum(row["records"] for row in rows) == RECORDS * BATCHES
    assert all(row["valid"] for row in rows)
