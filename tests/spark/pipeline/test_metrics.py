"""A pipeline's metrics in the Prometheus text format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.base.metrics import render
from penstock.spark.pipeline.admin import PHASES, QueryMetrics, samples
from penstock.spark.pipeline.state import QueryState
from tests.spark.pipeline.test_progress import ORDERS, WINDOWS


def text(*states: QueryState) -> dict[str, float]:
    found = render(samples("shop", states)).decode().splitlines()
    pairs = [line.rpartition(" ") for line in found if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def test_values() -> None:
    found = text(ORDERS, WINDOWS)
    at = '{pipeline="shop",query="orders"}'
    window = '{pipeline="shop",query="per_minute"}'
    expected = {
        f"rows_total{at}": 8_000,
        f"batches_total{at}": 8,
        f"batch_seconds_total{at}": 1.5,
        f"last_batch_seconds{at}": 0.18,
        f"last_batch_rows{at}": 1_000,
        f"rows_per_second{at}": pytest.approx(5_555.56, abs=0.01),
        f"lag_records{at}": 12,
        f"held_records{at}": 2,
        f"dead_letters_total{at}": 7,
        f"state_rows{window}": 40_000,
        f"state_bytes{window}": 5 << 20,
        f"restarts_total{window}": 2,
        'rejected_total{pipeline="shop",query="orders",reason="undecodable"}': 3,
        'rejected_total{pipeline="shop",query="orders",reason="amount is positive"}': 4,
        'warned_total{pipeline="shop",query="orders",rule="old"}': 1,
        'written_total{pipeline="shop",query="orders",sink="lake"}': 7_993,
    }
    for name, value in expected.items():
        assert found[f"penstock_pipeline_{name}"] == value, name
    # Not known is not 0.
    assert f"penstock_pipeline_lag_records{window}" not in found


def test_one_phase_at_a_time() -> None:
    for phase in PHASES:
        found = text(replace(ORDERS, phase=phase))
        ones = [name for name, value in found.items() if "_phase{" in name and value == 1]
        assert ones == [
            f'penstock_pipeline_phase{{phase="{phase}",pipeline="shop",query="orders"}}'
        ]


def test_every_metric_is_written() -> None:
    declared = {metric.name for metric in QueryMetrics.metrics.values()}
    written = {sample.metric.name for sample in samples("shop", [ORDERS])}
    assert written == declared
    assert all(name.startswith("penstock_pipeline_") for name in declared)


def test_no_queries_no_samples() -> None:
    assert text() == {}
