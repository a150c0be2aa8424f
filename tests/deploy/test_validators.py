"""Every file passes the validator of its format, and no validator lets a mistake pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy import linters
from tests.deploy.files import (
    BROKER_UNIT,
    CLUSTER,
    COMPOSE,
    CONTAINER,
    DAEMON_SET,
    DEPLOY,
    DIRECTORIES,
    PRODUCER_POD,
    PRODUCER_TASK,
    REGISTRY_UNIT,
    SERVICE,
    SINGLE,
    TASK,
    UNIT,
    USERS,
    Mistake,
    plant,
)

Validator = Callable[[Path, Path], str]

REGISTER = "RegisterTaskDefinition"
VALIDATORS: dict[str, Validator] = {
    CONTAINER: lambda path, _: linters.hadolint(path),
    COMPOSE: lambda path, _: linters.compose_schema(path),
    DAEMON_SET: lambda path, _: linters.kubernetes_schema(path),
    PRODUCER_POD: lambda path, _: linters.kubernetes_schema(path),
    TASK: lambda path, _: linters.ecs_model(path, REGISTER),
    PRODUCER_TASK: lambda path, _: linters.ecs_model(path, REGISTER),
    SERVICE: lambda path, _: linters.ecs_model(path, "CreateService"),
    SINGLE: lambda path, _: linters.compose_schema(path) or linters.compose_model(path),
    CLUSTER: lambda path, _: linters.compose_schema(path) or linters.compose_model(path),
    UNIT: linters.systemd_verify,
    BROKER_UNIT: linters.systemd_verify,
    REGISTRY_UNIT: linters.systemd_verify,
    USERS: lambda path, folder: linters.systemd_users(path, folder / "root"),
    DIRECTORIES: lambda path, folder: directories(path, folder / "root"),
}


def directories(path: Path, root: Path) -> str:
    users = linters.systemd_users(DEPLOY / USERS, root)
    return users or linters.systemd_directories(path, root)


MISTAKES = [
    Mistake(file=CONTAINER, old=":3.11.13-slim-bookworm", new="", complaint="DL3006"),
    Mistake(file=CONTAINER, old="WORKDIR /build", new="WORKDIR build", complaint="DL3000"),
    Mistake(file=CONTAINER, old="USER 10001:10001", new="USER root", complaint="DL3002"),
    Mistake(file=CONTAINER, old="tini=0.19.0-*", new="tini", complaint="DL3008"),
    Mistake(file=CONTAINER, old='CMD ["serve"]', new="CMD [serve]", complaint="DL3025"),
    Mistake(
        file=CONTAINER,
        old="--require-hashes --only-binary :all: -r build.txt -r requirements.txt",
        new="setuptools",
        complaint="DL3013",
    ),
    Mistake(file=COMPOSE, old="read_only: true", new="readonly: true", complaint="readonly"),
    Mistake(file=COMPOSE, old="[CHOWN, FOWNER]", new="CHOWN", complaint="cap_add"),
    Mistake(
        file=COMPOSE,
        old="service_healthy",
        new="service_is_healthy",
        complaint="service_is_healthy",
    ),
    Mistake(file=COMPOSE, old="retries: 3", new="retries: {}", complaint="retries"),
    Mistake(file=DAEMON_SET, old="kind: DaemonSet", new="kind: DeamonSet", complaint="deamonset"),
    Mistake(file=DAEMON_SET, old="apps/v1", new="extensions/v1beta1", complaint="extensions"),
    Mistake(file=DAEMON_SET, old="runAsNonRoot: true", new="runAsNonroot: true", complaint="runAs"),
    Mistake(file=DAEMON_SET, old="runAsUser: 10001", new='runAsUser: "10001"', complaint="integer"),
    Mistake(
        file=DAEMON_SET,
        old="terminationGracePeriodSeconds: 30",
        new="terminationGracePeriodSeconds: 30s",
        complaint="integer",
    ),
    Mistake(
        file=DAEMON_SET,
        old="mountPath: /var/run/penstock\n      containers",
        new="readOnly: false\n      containers",
        complaint="mountPath",
    ),
    Mistake(file=PRODUCER_POD, old="replicas: 2", new="replicas: two", complaint="two"),
    Mistake(file=PRODUCER_POD, old="readOnly: true", new="readonly: true", complaint="readonly"),
    Mistake(file=TASK, old='"sourcePath"', new='"path"', complaint="path"),
    Mistake(
        file=TASK, old='"stopTimeout": 30', new='"stopTimeout": "30s"', complaint="stopTimeout"
    ),
    Mistake(file=TASK, old='"SUCCESS"', new='"SUCCEEDED"', complaint="SUCCEEDED"),
    Mistake(file=TASK, old='"family"', new='"familiy"', complaint="familiy"),
    Mistake(file=PRODUCER_TASK, old='"awsvpc"', new='"vpc"', complaint="networkMode"),
    Mistake(
        file=PRODUCER_TASK, old='"essential": true', new='"essential": 1', complaint="essential"
    ),
    Mistake(file=SERVICE, old='"DAEMON"', new='"DAEMONSET"', complaint="DAEMONSET"),
    Mistake(file=SERVICE, old='"serviceName"', new='"name"', complaint="serviceName"),
    Mistake(file=UNIT, old="RestartSec=1", new="RestartSecs=1", complaint="RestartSecs"),
    Mistake(file=UNIT, old="TimeoutStopSec=30", new="TimeoutStopSec=soon", complaint="soon"),
    Mistake(file=UNIT, old="Type=notify", new="Type=notifying", complaint="notifying"),
    Mistake(
        file=UNIT,
        old="ExecStart=/opt/penstock/bin",
        new="ExecStart=/opt/penstok/bin",
        complaint="penstok",
    ),
    Mistake(file=UNIT, old="=@system-service", new="=@sistem-service", complaint="sistem"),
    Mistake(file=SINGLE, old="cap_drop: [ALL]", new="cap_drop: ALL", complaint="cap_drop"),
    Mistake(file=SINGLE, old="- broker-data:", new="- data:", complaint="undefined volume data"),
    Mistake(file=CLUSTER, old="store: {cond", new="stores: {cond", complaint="undefined service"),
    Mistake(file=CLUSTER, old=":-penstock}@", new=":-penstock@", complaint="invalid interpolation"),
    Mistake(file=BROKER_UNIT, old="LimitNOFILE=1048576", new="LimitNOFILE=all", complaint="all"),
    Mistake(file=REGISTRY_UNIT, old="RestartSec=1", new="RestartSecs=1", complaint="RestartSecs"),
    Mistake(file=USERS, old="g penstock", new="group penstock", complaint="group"),
    Mistake(file=USERS, old="10001:10001", new="ten:10001", complaint="ten"),
    Mistake(file=DIRECTORIES, old="0770", new="rwx", complaint="rwx"),
    Mistake(file=DIRECTORIES, old="0770 penstock", new="0770 pensock", complaint="pensock"),
]


@pytest.mark.parametrize("file", sorted(VALIDATORS))
def test_the_file_passes(file: str, tmp_path: Path) -> None:
    assert VALIDATORS[file](DEPLOY / file, tmp_path) == ""


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_does_not(mistake: Mistake, tmp_path: Path) -> None:
    copy = plant(mistake, tmp_path)
    complaint = VALIDATORS[mistake.file](copy / mistake.file, tmp_path)
    assert mistake.complaint.lower() in complaint.lower()


def test_every_validator_has_been_shown_a_mistake() -> None:
    assert {mistake.file for mistake in MISTAKES} == set(VALIDATORS)


@pytest.mark.parametrize("unit", [UNIT, BROKER_UNIT, REGISTRY_UNIT])
def test_the_unit_is_confined(unit: str) -> None:
    assert linters.systemd_security(DEPLOY / unit) == ""


@pytest.mark.parametrize(
    "mistake",
    [
        Mistake(
            file=UNIT, old="CapabilityBoundingSet=\n", new="", complaint="✗ CapabilityBounding"
        ),
        Mistake(file=UNIT, old="ProtectSystem=strict", new="", complaint="✗ ProtectSystem"),
        Mistake(file=UNIT, old="NoNewPrivileges=yes", new="", complaint="✗ NoNewPrivileges"),
        Mistake(file=UNIT, old="User=penstock\n", new="", complaint="✗ User="),
    ],
    ids=str,
)
def test_a_unit_that_is_less_confined_is_reported(mistake: Mistake, tmp_path: Path) -> None:
    copy = plant(mistake, tmp_path)
    assert mistake.complaint in linters.systemd_security(copy / UNIT)


def test_users_and_directories_come_to_be(tmp_path: Path) -> None:
    assert directories(DEPLOY / DIRECTORIES, tmp_path) == ""
    assert "penstock:x:10001:10001:" in (tmp_path / "etc/passwd").read_text()
    assert "penstock:x:10001:" in (tmp_path / "etc/group").read_text()
    made = (tmp_path / "run/penstock").stat()
    assert (made.st_mode & 0o7777, made.st_uid, made.st_gid) == (0o770, 10001, 10001)
