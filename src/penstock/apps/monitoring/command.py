"""Command group `penstock monitoring`: writes dashboards and alert rules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.apps.client.session import State, output_option, show

if TYPE_CHECKING:
    from collections.abc import Mapping

ALERTS_FILE: Final = "penstock-alerts.yaml"


@click.group("monitoring", short_help="Write dashboards and alert rules.")
def monitoring() -> None:
    """Write Grafana dashboards and Prometheus alert rules for the metrics of this version."""


_directory = click.option(
    "--directory",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the files; it is created if it is missing.",
)


@monitoring.command("dashboards", short_help="Write Grafana dashboards.")
@_directory
@output_option
def write_dashboards(state: State, directory: Path) -> None:
    """Write one JSON file for each Grafana dashboard. Existing files of these names are replaced.

    Import them in Grafana, or let Grafana read them from the directory.
    """
    from penstock.apps.monitoring.dashboards import dashboards
    from penstock.apps.monitoring.declared import declared_metrics

    _write(state, directory, dashboards(declared_metrics()))


@monitoring.command("alerts", short_help="Write alert rules of Prometheus.")
@_directory
@output_option
def write_alerts(state: State, directory: Path) -> None:
    """Write the alert rules into penstock-alerts.yaml. An existing file is replaced.

    Name the file under `rule_files` of Prometheus.
    """
    from penstock.apps.monitoring.alerts import alert_rules
    from penstock.apps.monitoring.declared import declared_metrics

    _write(state, directory, {ALERTS_FILE: alert_rules(declared_metrics())})


def _write(state: State, directory: Path, files: Mapping[str, str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    show(state, [{"file": str(directory / name)} for name in files])
