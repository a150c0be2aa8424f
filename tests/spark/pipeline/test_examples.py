"""Every example runs, and what comes out is what its records say, computed another way."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from examples.pipelines import data
from pyspark.sql import SparkSession

from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.runner import PipelineRunner
from penstock.spark.pipeline.state import QueryState
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

Run = Callable[[], dict[str, QueryState]]
LINES_MAX = 60


def example(pipeline: Pipeline, name: str, records: pa.Table) -> Run:
    """An example's folder for this test, its topics filled, and a way to run it to the end."""
    folder = pipeline.folder
    shutil.copytree(data.HERE / name, folder, dirs_exist_ok=True)
    for topic, partitions in data.TOPICS[name].items():
        pipeline.client.create_topic(topic, partitions=partitions, configs=data.KEEP)
    pipeline.client.write_arrow(next(iter(data.TOPICS[name])), records)

    def run() -> dict[str, QueryState]:
        spec = load(folder, bootstrap=pipeline.broker.bootstrap, admin=pipeline.broker.admin_url)
        runner = PipelineRunner(
            replace(spec, run=replace(spec.run, trigger="once", restarts=0)), pipeline.spark
        )
        runner.start()
        try:
            runner.wait(threading.Event())
        finally:
            runner.stop()
        return {state.query: state for state in runner.states()}

    return run


def values(table: pa.Table) -> list[Any]:
    return [None if value is None else json.loads(value) for value in table["value"].to_pylist()]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize("name", sorted(data.MAKERS))
def test_an_example_fits_on_two_screens(name: str) -> None:
    assert len((data.HERE / name / "pipeline.toml").read_text().splitlines()) <= LINES_MAX


@pytest.mark.long
def test_clicks_become_sessions(pipeline: Pipeline) -> None:
    records = data.clicks(4_000, users=40)
    run = example(pipeline, "clicks", records)
    run()
    pipeline.client.write_arrow("clicks", data.last_click())
    run()
    good = [value for value in values(records) if "user" in value]
    sessions: Counter[tuple[str, datetime, datetime, int]] = Counter()
    by_user = defaultdict(list)
    for click in good:
        by_user[click["user"]].append(moment(click["at"]))
    gap = timedelta(minutes=10)
    for user, at in by_user.items():
        run_of: list[datetime] = []
        for when in [*sorted(at), None]:
            if run_of and (when is None or when > run_of[-1] + gap):
                sessions[user, run_of[0], run_of[-1] + gap, len(run_of)] += 1
                run_of = []
            if when is not None:
                run_of.append(when)
    found = Counter(
        (row["user"], row["start"], row["end"], row["clicks"])
        for row in pipeline.rows("lake/sessions")
    )
    assert found == sessions
    assert len(pipeline.rows("lake/clicks")) == len(good) + 1
    assert len(pipeline.records("clicks.dead")) == records.num_rows - len(good) == 4


def test_changes_are_applied(pipeline: Pipeline) -> None:
    records = data.changes(3_000, accounts=200)
    run = example(pipeline, "cdc", records.slice(0, 2_000))
    run()
    pipeline.client.write_arrow("accounts.changes", records.slice(2_000))
    run()
    balances: dict[int, float] = {}
    for change in values(records):
        if change is None:
            continue
        if change["op"] == "d":
            balances.pop(change["before"]["id"], None)
        else:
            balances[change["after"]["id"]] = change["after"]["balance"]
    found = {row["id"]: float(row["balance"]) for row in pipeline.rows("lake/accounts")}
    assert found == pytest.approx(balances)
    assert pipeline.records("accounts.dead") == []


@pytest.mark.long
def test_a_hot_device_is_found_and_its_minutes_are_right(pipeline: Pipeline) -> None:
    records = data.readings(6_000)
    run = example(pipeline, "iot", records)
    run()
    pipeline.client.write_arrow("readings", data.last_reading())
    run()
    good = [value for value in values(records) if value["celsius"] < 150]
    counts = Counter(
        (reading["device"], moment(reading["at"]).replace(second=0)) for reading in good
    )
    found = {
        (row["device"], row["minute"]): row["readings"] for row in pipeline.rows("lake/minutes")
    }
    assert found == dict(counts)
    assert {record["key"] for record in pipeline.records("devices.hot")} == {b"device-0"}
    assert len(pipeline.records("readings.dead")) == len(values(records)) - len(good) == 2


@pytest.mark.long
def test_a_payment_that_cannot_be_booked_blocks_its_account(
    pipeline: Pipeline,
) -> None:
    records = data.payments(6_000, accounts=40)
    run = example(pipeline, "payments", records)
    state = run()["payments"]
    booked: dict[str, list[int]] = defaultdict(list)
    parked: dict[str, list[int]] = defaultdict(list)
    for value in values(records):
        account = value["account"]
        bad = "amount" not in value or value["currency"] == "XYZ"
        (parked if bad or parked[account] else booked)[account].append(value["id"])
    held = sum(map(len, parked.values()))
    assert state.held == held > 3
    ledger = defaultdict(list)
    for record in pipeline.records("ledger"):
        ledger[record["key"].decode()].append(json.loads(record["value"])["id"])
    assert {account: ids for account, ids in ledger.items()} == {
        account: ids for account, ids in booked.items() if ids
    }
    assert len(pipeline.rows("lake/bookings")) == records.num_rows - held


@pytest.mark.long
def test_flights_with_their_planes_and_delays(pipeline: Pipeline, spark: SparkSession) -> None:
    del spark
    records = data.MAKERS["flights"]().slice(0, 30_000)
    from deltalake import write_deltalake

    write_deltalake(str(Path(pipeline.folder) / "planes"), data.planes())
    example(pipeline, "flights", records)()
    flights = values(records)
    flown = [flight for flight in flights if flight.get("dep_delay") is not None]
    rows = pipeline.rows("lake/flown")
    assert len(rows) == len(flown)
    built = {plane["tailnum"]: plane["year"] for plane in data.planes().to_pylist()}
    assert all(row["built"] == built.get(row["tailnum"]) for row in rows)
    minutes: Counter[tuple[str, datetime]] = Counter()
    for flight in flights:
        minutes[flight["carrier"], moment(flight["time_hour"])] += flight.get("dep_delay") or 0
    found = {
        (row["carrier"], row["hour"]): row["minutes"] or 0 for row in pipeline.rows("lake/delays")
    }
    assert found == dict(minutes)
