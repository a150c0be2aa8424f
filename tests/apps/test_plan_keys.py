"""`penstock plan keys` against a broker: what is read, table, JSON, plots, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from penstock.client import Client
from tests.apps.conftest import Run

MakeTopic = Callable[..., str]

RECORDS = 20_000


@pytest.fixture
def skewed(topic: MakeTopic, bootstrap: str) -> str:
    """Eight partitions; one of a hundred keys has half of the records."""
    name = topic(8)
    dice = np.random.default_rng(7)
    numbers = np.where(np.arange(RECORDS) % 2 == 0, 0, dice.integers(1, 100, RECORDS))
    keys = pa.array([b"car-%d" % number for number in numbers.tolist()], pa.binary())
    with Client(bootstrap) as client:
        client.write_arrow(
            name, pa.table({"key": keys, "value": pa.array([b"x" * 10] * RECORDS, pa.binary())})
        )
    return name


def figures(text: str) -> dict[str, object]:
    return {load["name"]: load["value"] for load in json.loads(text)["figures"]}


def test_a_topic_is_counted(run: Run, skewed: str, tmp_path: Path) -> None:
    drawn = tmp_path / "keys.svg"
    ran = run("--output", "json", "plan", "keys", skewed, "--rate", "100k", "--plot", str(drawn))
    assert ran.status == 0, ran.err
    found = figures(ran.out)
    assert (found["records"], found["distinct_keys"], found["hot_keys"]) == (RECORDS, 100, 1)
    assert found["hottest_key_percent"] == 50
    assert found["default_placed_percent"] == 100
    assert found["records_hottest_percent"] == found["log_hottest_percent"]
    assert found["records_hottest_percent"] == found["partitions_8_hottest_percent"]
    assert found["hottest_now_rate"] >= 50_000  # type: ignore[operator]
    assert found["hottest_salted_rate"] < 30_000  # type: ignore[operator]
    assert b"<svg" in drawn.read_bytes()


def test_table_and_explanations(run: Run, skewed: str, tmp_path: Path) -> None:
    drawn = tmp_path / "keys.png"
    ran = run("plan", "keys", skewed, "--all", "--explain", "--plot", str(drawn))
    assert ran.status == 0, ran.err
    assert f"keys of {skewed}" in ran.out
    assert "read: the whole topic" in ran.out
    assert "1. car-0: share of records" in ran.out
    assert "BuiltInPartitioner.partitionForKey" in ran.out
    assert "salt hot keys with" in ran.out
    assert "sample" not in ran.out
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_the_newest_records_of_each_partition(run: Run, skewed: str) -> None:
    ran = run("--output", "json", "plan", "keys", skewed, "--records", "1000")
    found = figures(ran.out)
    assert 1000 <= found["records"] <= 1008  # type: ignore[operator]
    assert found["log_skew"] == pytest.approx(found["records_skew"], rel=0.02)
    assert any([load["subject"] == "sample" for load in json.loads(ran.out)["findings"]])


def test_records_since(run: Run, skewed: str) -> None:
    ran = run("--output", "json", "plan", "keys", skewed, "--since", "1h")
    assert figures(ran.out)["records"] == RECORDS
    later = run("plan", "keys", skewed, "--since", "1ns")
    assert later.status == 1
    assert "gave 0 records without a key" in later.err


def test_estimates_above_the_bound(run: Run, skewed: str, tmp_path: Path) -> None:
    file = tmp_path / "inputs.toml"
    file.write_text('tracked-keys = 10\nskew-max = "3"\n')
    ran = run("--output", "json", "plan", "keys", skewed, "--inputs", str(file))
    found = figures(ran.out)
    assert found["count_error_records"] > 0  # type: ignore[operator]
    assert 48 < found["hottest_key_percent"] <= 50  # type: ignore[operator]
    assert found["distinct_keys"] == pytest.approx(100, rel=0.04)


def test_bad_calls(run: Run, topic: MakeTopic) -> None:
    name = topic(1)
    empty = run("plan", "keys", name)
    assert empty.status == 1
    assert f"{name} gave 0 records without a key (the whole topic)" in empty.err
    assert run("plan", "keys", "not-there").status == 1
    twice = run("plan", "keys", name, "--all", "--since", "1h")
    assert (twice.status, "give one of" in twice.err) == (2, True)
    assert "must be a number of s" in run("plan", "keys", name, "--since", "soon").err
    assert "must be above 0" in run("plan", "keys", name, "--since", "-1h").err
    low = run("plan", "keys", name, "--skew-max", "0")
    assert (low.status, "skew-max = " in low.err) == (2, True)
