"""The systemd units: their settings are valid, and systemd starts, confines and stops them.

The long test boots systemd in a container of its own, with a Debian root, and runs all three units
there. Their filters of system calls, users and directories are then those of a real host.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from penstock.apps.process.configuration import configure, read_environment
from penstock.apps.serve.running import stop_ms
from tests.deploy.built import BuiltImage, call, debian_root
from tests.deploy.files import (
    BROKER_UNIT,
    DEPLOY,
    DIRECTORIES,
    REGISTRY_UNIT,
    UNIT,
    USERS,
    unit_values,
)
from tests.deploy.linters import need_root
from tests.machine import system_tool
from tests.test_documentation import parse

UNITS = (BROKER_UNIT, REGISTRY_UNIT, UNIT)
PROGRAM = "/opt/penstock/bin/penstock"
STARTED_IN_ORDER = ("penstock-broker", "penstock-registry", "penstock-host")
BUILT_SECONDS_MAX = 1800


def environment_of(unit: str) -> dict[str, str]:
    pairs = unit_values(DEPLOY / unit)["Service.Environment"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.mark.parametrize("unit", [BROKER_UNIT, REGISTRY_UNIT])
def test_the_environment_has_settings_and_the_directory_is_the_units(unit: str) -> None:
    environment = environment_of(unit)
    assert len(read_environment(environment)) == len(environment)
    configuration = configure(file=None, environment=environment, flags={})
    (state,) = unit_values(DEPLOY / unit)["Service.StateDirectory"]
    assert configuration.directory == Path("/var/lib") / state
    assert configuration.notes == ()


@pytest.mark.parametrize("unit", UNITS)
def test_the_command_exists_and_is_started_again_after_a_failure(unit: str) -> None:
    values = unit_values(DEPLOY / unit)
    (start,) = values["Service.ExecStart"]
    program, *words = shlex.split(start)
    assert program == PROGRAM
    parse(words)
    assert values["Service.Type"] == ["notify"]
    assert values["Service.Restart"] == ["on-failure"]
    assert values["Service.EnvironmentFile"][0].startswith("-/etc/penstock/")
    assert int(values["Service.LimitNOFILE"][0]) >= 65536


def test_the_stop_is_longer_than_the_time_that_a_broker_needs() -> None:
    configuration = configure(file=None, environment=environment_of(BROKER_UNIT), flags={})
    (seconds,) = unit_values(DEPLOY / BROKER_UNIT)["Service.TimeoutStopSec"]
    assert int(seconds) * 1000 > stop_ms(configuration)


SCRIPT = """#!/bin/sh
exec > /result 2> /errors
export PATH=/opt/penstock/bin:$PATH
for unit in %(units)s; do systemctl start $unit && echo started $unit; done
penstock topic create orders
echo first | penstock produce orders
penstock consume orders -e
penstock host health --socket /var/run/penstock/host.sock > /dev/null && echo healthy
for unit in %(units)s; do
    status=/proc/$(systemctl show --property MainPID --value $unit)/status
    echo $unit $(grep -h -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' $status)
done
for unit in %(units)s; do
    systemctl stop $unit
    echo stopped $(systemctl show --property Result --property ExecMainStatus $unit)
done
journalctl --no-pager >> /errors
systemctl poweroff --force
"""
TRIAL = """[Unit]
After=basic.target

[Service]
Type=oneshot
ExecStart=/usr/local/bin/trial
"""
NICE = """[Service]
# Helper processes lower their priority, under the same filter of system calls.
ExecStartPre=/opt/penstock/bin/python -c "import os; os.nice(10)"
"""


def install(root: Path, built: BuiltImage) -> None:
    """Install the program and the units as the guide describes it, and the script that runs."""
    shutil.copytree(built.root / "opt" / "penstock", root / "opt" / "penstock", symlinks=True)
    units = root / "etc" / "systemd" / "system"
    for unit in UNITS:
        shutil.copy(DEPLOY / unit, units)
        if unit != UNIT:  # the agent has no helper processes
            folder = units / f"{Path(unit).name}.d"
            folder.mkdir()
            (folder / "nice.conf").write_text(NICE)
    for file, name in ((USERS, "sysusers.d"), (DIRECTORIES, "tmpfiles.d")):
        (root / "etc" / name).mkdir(exist_ok=True)
        shutil.copy(DEPLOY / file, root / "etc" / name)
    script = root / "usr" / "local" / "bin" / "trial"
    script.write_text(SCRIPT % {"units": " ".join(STARTED_IN_ORDER)})
    script.chmod(0o755)
    (units / "trial.service").write_text(TRIAL)
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(exist_ok=True)
    (wanted / "trial.service").symlink_to("../trial.service")


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(BUILT_SECONDS_MAX)
def test_systemd_runs_the_units(built: BuiltImage, tmp_path: Path) -> None:
    need_root("boot a container")
    root = tmp_path / "root"
    debian_root(root, ("python3", "python-is-python3", "systemd", "systemd-sysv"))
    install(root, built)
    call(
        *(system_tool("systemd-nspawn", "systemd-container"), "--register=no", "--keep-unit"),
        *("--quiet", "--private-network", f"--directory={root}", "--boot"),
    )
    lines = (root / "result").read_text().splitlines()
    errors = (root / "errors").read_text()
    count = len(STARTED_IN_ORDER)
    assert lines[:count] == [f"started {unit}" for unit in STARTED_IN_ORDER], errors
    assert lines[count : count + 3] == ["topic orders has 1 partition", "first", "healthy"], errors
    for line in lines[count + 3 : -count]:
        values = dict(re.findall(r"(\w+): (\w+)", line))
        assert values == {
            "Uid": "10001",
            "CapEff": "0" * 16,
            "CapBnd": "0" * 16,
            "NoNewPrivs": "1",
            "Seccomp": "2",
        }
    assert lines[-count:] == ["stopped Result=success ExecMainStatus=0"] * count
