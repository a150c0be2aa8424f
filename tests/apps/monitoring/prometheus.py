"""Prometheus's own judgement of rules: `promtool` evaluates them over series scraped from brokers.

A `Scrape` is what Prometheus would store of one request to `/metrics`, with `up`. `firing` replays
scrapes: the first value of each series lasts an hour, then the change between the two scrapes
repeats with every interval, as a fault that lasts.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from compat.parts import PartMissing, debian
from prometheus_client.parser import text_string_to_metric_families

from penstock.apps.monitoring.alerts import GROUPS, names_in
from penstock.apps.monitoring.declared import by_name
from tests.machine import lacking

INTERVAL_SECONDS = 15
HEALTHY_STEPS = 240
"""Intervals of an hour."""
FAULTY_STEPS = 360

Series = tuple[str, tuple[tuple[str, str], ...]]
Scrape = Mapping[Series, float]
JOB = (("instance", "broker:9644"), ("job", "penstock"))


def promtool() -> str:
    """Return the path of promtool; without it the test ends."""
    try:
        return str(debian("prometheus") / "usr" / "bin" / "promtool")
    except PartMissing as error:
        lacking(f"there is no promtool: {error}")


def scrape(url: str, *, disk: bool = False) -> Scrape:
    """Scrape a `/metrics` address; without an answer, `up` is 0 and there is nothing else."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
            return parsed(answer.read().decode(), disk=disk)
    except OSError:
        return {("up", JOB): 0.0}


def parsed(text: str, *, disk: bool = False) -> Scrape:
    """Return the samples of an exposition.

    Timestamps become relative to now, as promtool's time begins at 0. Without `disk`, the free
    space of this machine's own disk is left out.
    """
    found: dict[Series, float] = {("up", JOB): 1.0}
    for family in text_string_to_metric_families(text):
        if family.name.startswith("penstock_storage_disk_") and not disk:
            continue
        for sample in family.samples:
            labels = tuple(sorted({**sample.labels, **dict(JOB)}.items()))
            value = sample.value
            if sample.name.endswith("timestamp_seconds"):
                value -= time.time()
            found[sample.name, labels] = value
    return found


def series(before: Scrape, after: Scrape) -> list[dict[str, str]]:
    """Return the input series of promtool: an hour of `before`, then the repeated change.

    Series that no rule uses are left out.
    """
    used = {name for group in GROUPS for alert in group.alerts
            for name in names_in(alert.expression, ())} | {"up"}  # fmt: skip
    found = []
    for name, labels in sorted({*before, *after}):
        if not names_in(name, ()) & used and name != "up":
            continue
        first = before.get((name, labels))
        values = f"{_number(first)}x{HEALTHY_STEPS}" if first is not None else f"_x{HEALTHY_STEPS}"
        values += " " + _faulty(name, first, after.get((name, labels)))
        written = ",".join(f"{label}={json.dumps(value)}" for label, value in labels)
        found.append({"series": f"{name}{{{written}}}", "values": values})
    return found


def _faulty(name: str, first: float | None, last: float | None) -> str:
    if last is None:
        return f"_x{FAULTY_STEPS}"
    declared = by_name().get(name)
    counts = name != "up" and (declared is None or declared.kind == "counter")
    step = max(0.0, last - (first or 0.0)) if counts else 0.0
    return f"{_number(last)}+{_number(step)}x{FAULTY_STEPS}"


def _number(value: float) -> str:
    assert math.isfinite(value), value
    return f"{value:.6f}"


def check(rules: Path, before: Scrape, after: Scrape, alerts: Iterable[str]) -> str:
    """Evaluate rules before and after a change; return promtool's report of failures, or nothing.

    In the hour before the change no alert may even be pending. After it, `alerts` must fire; if
    there are none, no alert may be pending for as long as the change repeats.
    """
    healthy = HEALTHY_STEPS * INTERVAL_SECONDS
    faulty = FAULTY_STEPS * INTERVAL_SECONDS
    firing = [
        f'count(last_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[{faulty}s]))'
        for alert in alerts
    ]
    wanted: list[dict[str, object]] = [
        {"expr": f"count_over_time(ALERTS[{healthy}s])", "eval_time": f"{at}s", "exp_samples": []}
        for at in ((healthy,) if firing else (healthy, healthy + faulty))
    ]
    wanted += [
        {
            "expr": f"{expression} > bool 0",
            "eval_time": f"{healthy + faulty}s",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expression in firing
    ]
    test = {
        "interval": f"{INTERVAL_SECONDS}s",
        "input_series": series(before, after),
        "promql_expr_test": wanted,
    }
    file = rules.with_name("cases.yaml")
    file.write_text(json.dumps({
        "rule_files": [str(rules)], "evaluation_interval": f"{INTERVAL_SECONDS}s", "tests": [test],
    }))  # fmt: skip
    done = subprocess.run(
        [promtool(), "test", "rules", str(file)], capture_output=True, text=True, timeout=120
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
