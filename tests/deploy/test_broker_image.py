"""The broker's image: its environment and health check, and the image itself, built and run.

The long tests build the container file with buildah on a Debian root, and run the result without
root, without capabilities and with a read-only root. The other tests use the installed wheel.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.deploy.built import BuiltImage
from tests.deploy.files import CONTAINER, DEPLOY, image_environment, instructions
from tests.deploy.kafka import consume, produce
from tests.deploy.running import SECONDS_MAX, Container, addresses, stop

READY_SECONDS_MAX = 1.5
STARTS = 5
RECORDS = [f"value-{number:03}" for number in range(100)]


def health_check() -> list[str]:
    (line,) = (line for line in instructions(DEPLOY / CONTAINER) if line.name == "HEALTHCHECK")
    assert line.array[0] == "python"
    return line.array[1:]


@pytest.fixture
def broker(tmp_path: Path) -> Container:
    """The image's command with its environment, at an address of its own."""
    (address,) = addresses(1)
    return Container(
        name="broker",
        words=["serve"],
        environment=image_environment(),
        health=health_check(),
        replacements={"/data": str(tmp_path), "0.0.0.0": address, "127.0.0.1": address},
    )


def config_of(bootstrap: str, name: str) -> str:
    """Return a broker's setting, as a Kafka client gets it."""
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    client = AdminClient({"bootstrap.servers": bootstrap})
    (found,) = client.describe_configs([broker]).values()
    return str(found.result(SECONDS_MAX)[name].value)


def test_a_broker_runs_with_the_images_environment(broker: Container, image: Path) -> None:
    bootstrap = f"{broker.replaced('0.0.0.0')}:9092"
    assert not broker.is_healthy()
    with broker.running(image) as process:
        broker.wait_until_healthy(process)
        produce("orders", RECORDS, bootstrap_servers=bootstrap)
        assert consume("orders", bootstrap_servers=bootstrap) == RECORDS
        stop(process)
    assert not broker.is_healthy()


def test_variables_of_either_prefix_override_the_images(broker: Container, image: Path) -> None:
    """`PENSTOCK_` overrides `KAFKA_`, and both override the image."""
    given = replace(
        broker,
        environment={
            **broker.environment,
            "KAFKA_LOG_RETENTION_HOURS": "7",
            "KAFKA_NUM_PARTITIONS": "5",
            "PENSTOCK_NUM_PARTITIONS": "4",
            "PENSTOCK_LISTENERS": "PLAINTEXT://0.0.0.0:9095",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://0.0.0.0:9095",
        },
    )
    bootstrap = f"{broker.replaced('0.0.0.0')}:9095"
    with given.running(image) as process:
        given.wait_until_healthy(process)
        assert config_of(bootstrap, "log.retention.hours") == "7"
        assert config_of(bootstrap, "num.partitions") == "4"
        stop(process)


@contextmanager
def container(
    built: BuiltImage, data: Path, environment: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the image until the end of the context; yield it with its address for clients."""
    local = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0", "KAFKA_ADMIN_LISTENER": "127.0.0.1:0"}
    with built.running(data, local | environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("penstock ready kafka="), line
        yield process, line.split()[2].partition("=")[2]


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
def test_the_built_image_declares_how_it_runs(built: BuiltImage) -> None:
    assert built.config["User"] == "10001:10001"
    assert built.config["Volumes"] == {"/data": {}}
    assert built.config["StopSignal"] == "SIGTERM"
    assert built.config["Healthcheck"]["Test"] == ["CMD", "python", *health_check()]
    assert set(built.config["ExposedPorts"]) == {"9092/tcp", "9644/tcp"}


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
def test_the_built_image_runs_confined(built: BuiltImage, tmp_path: Path) -> None:
    data = built.data_directory(tmp_path)
    facts = "id -u; id -g; cat /proc/1/comm; grep CapEff /proc/self/status"
    script = f"{facts}; touch /file; touch /data/file"
    user, group, first, capabilities, *rest = built.shell(data, script).splitlines()
    assert (user, group, first) == ("10001", "10001", "tini")
    assert int(capabilities.split()[1], 16) == 0
    assert "Read-only file system" in rest[0]
    assert len(rest) == 1
    assert built.shell(data, "penstock --version").startswith("penstock, version")
    for package in ("pip", "numba"):  # nothing is installed or compiled in a container
        assert f"No module named '{package}'" in built.shell(data, f"python -c 'import {package}'")


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
def test_the_built_image_keeps_records_over_a_restart(built: BuiltImage, tmp_path: Path) -> None:
    data = built.data_directory(tmp_path)
    with container(built, data, {"KAFKA_LOG_RETENTION_HOURS": "7"}) as (process, bootstrap):
        produce("orders", RECORDS, bootstrap_servers=bootstrap)
        assert consume("orders", bootstrap_servers=bootstrap) == RECORDS
        assert config_of(bootstrap, "log.retention.hours") == "7"
        assert built.stop(process) == 0
    with container(built, data, {}) as (process, bootstrap):
        assert consume("orders", bootstrap_servers=bootstrap) == RECORDS
        assert built.stop(process) == 0


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(1800)
def test_the_built_image_is_ready_soon(built: BuiltImage, tmp_path: Path) -> None:
    """A start and a stop take less CPU time than a start may take on an idle machine.

    The time on the clock depends on what else runs on the machine.
    """
    durations = []
    for number in range(STARTS):
        data = built.data_directory(tmp_path / str(number))
        before = cpu_seconds()
        with container(built, data, {}) as (process, _):
            assert built.stop(process) == 0
        durations.append(cpu_seconds() - before)
    assert statistics.median(durations) <= READY_SECONDS_MAX


def cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
