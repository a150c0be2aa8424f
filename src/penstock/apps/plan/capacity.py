"""Command `penstock plan capacity`: sizes a cluster, from settings of brokers and measurements."""

from __future__ import annotations

import json
from pathlib import Path

import click

from penstock.apps.client.session import State
from penstock.apps.plan.output import plan_inputs, read_plan_file
from penstock.planner.calibration import read_calibration
from penstock.planner.capacity import CapacityInputs, Deployment, capacity_plan
from penstock.planner.results import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("capacity")
@click.option(
    "--config",
    type=_FILE,
    help="TOML file with the brokers' settings, as for penstock serve. Default: default settings.",
)
@click.option(
    "--calibration",
    type=_FILE,
    help="File that penstock bench --write made on the brokers' host. Default: assumed limits.",
)
@plan_inputs(CapacityInputs)
def capacity(
    state: State, inputs: CapacityInputs, config: Path | None, calibration: Path | None
) -> Plan:
    """Size a cluster for a load: partitions, brokers, disks, networks, latency, requests.

    Limits of the host come from --calibration. Without it they are assumptions, which --explain
    shows. Settings come from --config; without it they are the defaults.
    """
    return capacity_plan(inputs, _deployment(config, calibration))


def _deployment(config: Path | None, calibration: Path | None) -> Deployment:
    measured = None
    if calibration is not None:
        document = read_plan_file(calibration, json.loads)
        measured = read_calibration(document, str(calibration))
    if config is None:
        return Deployment(calibration=measured)
    from penstock.apps.process.configuration import configure
    from penstock.base.settings import replace
    from penstock.storage import LogConfig

    found = configure(file=config, environment={}, flags={})
    return Deployment(
        diskless=found.diskless,
        fetching=found.fetching,
        storage=found.storage,
        log=replace(LogConfig(), {"segment.bytes": found.broker.log_segment_bytes}),
        calibration=measured,
    )
