"""Dashboards and rules name declared metrics, and the names of metrics do not change."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from penstock.apps.cli import root
from penstock.apps.monitoring.alerts import GROUPS, Alert, Group, alert_rules, names_in
from penstock.apps.monitoring.dashboards import (
    BOARDS,
    UnknownMetric,
    dashboards,
    metrics_of,
    queries,
    unit_of,
)
from penstock.apps.monitoring.declared import by_name, declared_metrics
from penstock.base.metrics import Metric
from tests.apps.monitoring.prometheus import promtool
from tests.test_documentation import parse

ROOT = Path(__file__).resolve().parents[3]
FROZEN = Path(__file__).parent / "metric_names.txt"
ALERTS = [alert for group in GROUPS for alert in group.alerts]
COMMAND = re.compile(r"`penstock ([^`]+)`")


def test_names_and_labels_of_metrics_are_frozen() -> None:
    """Dashboards and alerts of users depend on these names.

    New metrics are added to the list: delete it and run this test, which then writes it again and
    fails. A removed or renamed metric is announced in CHANGELOG.md.
    """
    lines = [f"{metric.name} {metric.kind} {','.join(metric.labels)}".rstrip()
             for metric in declared_metrics()]  # fmt: skip
    if not FROZEN.exists():
        FROZEN.write_text("".join(f"{line}\n" for line in lines))
        pytest.fail(f"{FROZEN.name} was written")
    frozen = FROZEN.read_text().splitlines()
    assert [line for line in frozen if line not in lines] == [], "changed or removed"
    assert [line for line in lines if line not in frozen] == [], "add these to the list"


def test_names_are_well_formed_and_mean_the_same_everywhere() -> None:
    """Some metrics are also declared for `/metrics/kafka_exporter`, under the same names."""
    kinds = {metric.name: (metric.kind, metric.labels) for metric in declared_metrics()}
    for metric in declared_metrics():
        assert kinds[metric.name] == (metric.kind, metric.labels)
        assert re.fullmatch(r"(penstock|kafka)(_[a-z0-9]+)+", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name


def test_every_metric_is_on_a_board() -> None:
    declared = declared_metrics()
    shown = {
        metric.name
        for board in BOARDS
        for row in board.rows
        for metric in metrics_of(row.names, declared)
    }
    assert by_name().keys() - shown == set()


def test_boards_are_valid_and_their_expressions_use_declared_metrics() -> None:
    for name, text in dashboards(declared_metrics()).items():
        board = json.loads(text)
        assert board["uid"] == name.removesuffix(".json")
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        assert len({place[:2] for place in places}) == len(places), "panels overlap"
        used = {
            name
            for panel in board["panels"]
            for target in panel.get("targets", ())
            for name in names_in(target["expr"], by_name())
        }
        assert used <= by_name().keys()


def test_expressions_of_boards_are_promql(tmp_path: Path) -> None:
    """promtool parses each of them as a recording rule."""
    rules = [
        {"record": f"r{number}_{place}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, metric in enumerate(declared_metrics())
        for place, (expression, _) in enumerate(queries(metric))
    ]
    file = tmp_path / "boards.yaml"
    file.write_text(json.dumps({"groups": [{"name": "boards", "rules": rules}]}))
    done = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True)
    assert f"SUCCESS: {len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_the_rules_pass_promtool(tmp_path: Path) -> None:
    file = tmp_path / "alerts.yaml"
    file.write_text(alert_rules(declared_metrics()))
    done = subprocess.run([promtool(), "check", "rules", str(file)], capture_output=True, text=True)
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_to_do(alert: Alert) -> None:
    assert (ROOT / alert.guide).is_file()
    assert alert.advice.endswith(".")
    for command in COMMAND.findall(alert.advice):
        words = command.split()
        assert "Missing" in _problem(words) or not _problem(words), command


def _problem(words: list[str]) -> str:
    """Return click's error for a command line; empty without one."""

    try:
        parse(words)
    except click.ClickException as error:
        return error.format_message()
    return ""


def test_an_undeclared_metric_is_found() -> None:
    declared = declared_metrics()
    with pytest.raises(UnknownMetric, match="penstock_no_such_total"):
        alert_rules(
            declared,
            [
                Group(
                    "g", (msgspec.structs.replace(ALERTS[1], expression="penstock_no_such_total"),)
                )
            ],
        )
    with pytest.raises(UnknownMetric, match="penstock_no_such_"):
        list(metrics_of(["penstock_no_such_"], declared))


@pytest.mark.parametrize(
    ("kind", "name", "unit"),
    [
        ("counter", "a_bytes_total", "Bps"),
        ("counter", "a_seconds_total", "percentunit"),
        ("counter", "a_total", "ops"),
        ("gauge", "a_bytes", "bytes"),
        ("gauge", "a_ratio", "percentunit"),
        ("gauge", "a_timestamp_seconds", "dateTimeAsIso"),
        ("histogram", "a_seconds", "s"),
        ("gauge", "a", "short"),
    ],
)
def test_units_follow_from_names(kind: str, name: str, unit: str) -> None:
    assert unit_of(Metric(name=name, kind=kind, doc="")) == unit  # type: ignore[arg-type]


def test_the_commands_write_the_files(tmp_path: Path) -> None:
    for command in ("dashboards", "alerts"):
        arguments = ["monitoring", command, "--directory", str(tmp_path / command)]
        done = CliRunner().invoke(root, arguments)
        assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "dashboards").iterdir()} == {
        f"penstock-{board.name}.json" for board in BOARDS
    }
    committed = ROOT / "deploy" / "monitoring" / "penstock-alerts.yaml"
    assert (tmp_path / "alerts" / committed.name).read_text() == committed.read_text()
