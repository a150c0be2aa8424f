"""The Compose files of brokers: their environment is valid, and a cluster runs with it.

The cluster test starts each service in the order of the file, with the file's environment, command
and health check: three brokers, the S3 store, and the topics, over a PostgreSQL server.
"""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from compat.parts import s3_gateway
from confluent_kafka.admin import AdminClient

from penstock.apps.process.configuration import configure, read_environment
from penstock.apps.serve.running import stop_ms
from tests.deploy.files import CLUSTER, DEPLOY, SINGLE, image_environment
from tests.deploy.kafka import consume, produce
from tests.deploy.linters import compose_services, need_root, part
from tests.deploy.running import SECONDS_MAX, Container, addresses, stop, wait_until
from tests.postgres import PostgresServer

Services = dict[str, dict[str, Any]]
OWN_IMAGE = "penstock:"
VALUES = [f"value-{number:03}" for number in range(100)]
MORE = [f"value-{number:03}" for number in range(100, 200)]


def brokers(services: Services) -> Services:
    """Return the services that run the image's own command."""
    return {
        name: service
        for name, service in services.items()
        if service["image"].startswith(OWN_IMAGE)
        and not (service.get("command") or service.get("entrypoint"))
    }


@pytest.fixture(scope="module", params=[SINGLE, CLUSTER])
def services(request: pytest.FixtureRequest) -> Services:
    return compose_services(DEPLOY / request.param)


def test_every_variable_of_a_broker_is_a_setting(services: Services) -> None:
    found = brokers(services)
    assert found
    for service in found.values():
        environment = image_environment() | service["environment"]
        assert len(read_environment(environment)) == len(environment)
        configuration = configure(file=None, environment=environment, flags={})
        assert configuration.notes == ()
        assert configuration.directory == Path("/data")


def test_data_is_in_named_volumes(services: Services) -> None:
    for name, service in brokers(services).items():
        volumes = [(mount["type"], mount["target"]) for mount in service["volumes"]]
        assert volumes == [("volume", "/data")], name
    sources = [
        mount["source"]
        for name, service in services.items()
        if not name.endswith("-directories")
        for mount in service.get("volumes", ())
    ]
    assert len(sources) == len(set(sources))


def test_ports_are_published_on_this_machine_only(services: Services) -> None:
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_the_stop_is_longer_than_the_time_that_a_broker_needs(services: Services) -> None:
    for name, service in brokers(services).items():
        configuration = configure(file=None, environment=service["environment"], flags={})
        assert duration_ms(service["stop_grace_period"]) > stop_ms(configuration), name


def duration_ms(text: str) -> float:
    minutes, _, seconds = text.removesuffix("s").rpartition("m")
    return 60_000 * float(minutes or 0) + 1000 * float(seconds)


def test_the_store_is_the_one_of_the_tests() -> None:
    services = compose_services(DEPLOY / CLUSTER)
    declared = (DEPLOY.parent / "compat" / "s3" / "go.mod").read_text()
    image, _, version = services["store"]["image"].partition(":")
    assert f"github.com/{image} {version}\n" in declared


@dataclass(frozen=True, slots=True)
class Cluster:
    containers: dict[str, Container]
    processes: dict[str, subprocess.Popen[str]]
    image: Path

    @property
    def published(self) -> str:
        """Addresses of all brokers for programs of this machine."""
        return ",".join(
            self.containers[name].replaced(f"localhost:{port}")
            for name, port in (("broker-1", 9092), ("broker-2", 9093), ("broker-3", 9094))
        )


def containers(services: Services, database: str, folder: Path) -> dict[str, Container]:
    """Return the services of the cluster, each with a loopback address instead of its name."""
    places = dict(zip(services, addresses(len(services)), strict=True))
    shared = {
        "@postgres/penstock": f"@{database.partition('@')[2]}",
        "/srv/store": f"{folder}/store",
    }
    for name, service in services.items():
        for port in service.get("ports") or ():  # brokers advertise published ports
            published = f"localhost:{port['published']}"
            shared[published] = f"{places[name]}:{port['target']}"
    shared |= {f"{name}:": f"{address}:" for name, address in places.items()}
    return {
        name: Container(
            name=name,
            words=[*(service.get("entrypoint") or ()), *(service.get("command") or ["serve"])],
            environment=image_environment() | (service.get("environment") or {}),
            health=(service.get("healthcheck") or {}).get("test", ())[2:],
            replacements=shared
            | {
                "/data": f"{folder}/{name}",
                "0.0.0.0": places[name],
                "127.0.0.1:9644": f"{places[name]}:9644",
                "127.0.0.1:7070": f"{places[name]}:7070",
            },
        )
        for name, service in services.items()
    }


@contextmanager
def store(container: Container) -> Iterator[None]:
    """Run the S3 store with the command and environment of its service."""
    url = container.replaced(container.health[-1])

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=SECONDS_MAX):
                return True
        except OSError:
            return False

    words = [container.replaced(word) for word in container.words]
    with subprocess.Popen(
        [part(s3_gateway), *words],
        env=container.variables(),
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            wait_until(answers, process)
            yield
        finally:
            process.kill()


@pytest.fixture(scope="module")
def cluster(
    postgres: PostgresServer, image: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """The services of the file. Each starts when those that it depends on are healthy."""
    need_root("give the store's directories to its user")
    services = compose_services(DEPLOY / CLUSTER)
    needs = {name: service.get("depends_on") or {} for name, service in services.items()}
    processes: dict[str, subprocess.Popen[str]] = {}
    starting: set[str] = set()
    with ExitStack() as stack:
        database = postgres.url(stack.enter_context(postgres.database()))
        found = containers(services, database, tmp_path_factory.mktemp("compose"))
        for name in TopologicalSorter(needs).static_order():
            container = found[name]
            for need in starting & set(needs[name]):
                found[need].wait_until_healthy(processes[need])
            starting -= set(needs[name])
            if name == "store":
                stack.enter_context(store(container))
            elif name == "store-directories":
                subprocess.run(list(map(container.replaced, container.words)), check=True)
            elif name in brokers(services):
                processes[name] = stack.enter_context(container.running(image))
                starting.add(name)
            elif services[name]["image"].startswith(OWN_IMAGE):
                container.run(image)
        yield Cluster(found, processes, image)
        stop(*(process for process in processes.values() if process.poll() is None))


def test_a_cluster_runs_as_the_file_describes_it(cluster: Cluster) -> None:
    topics = AdminClient({"bootstrap.servers": cluster.published}).list_topics().topics
    replicas = [len(partition.replicas) for partition in topics["orders"].partitions.values()]
    assert replicas == [3] * 6
    for topic in ("orders", "telemetry"):
        produce(topic, VALUES, bootstrap_servers=cluster.published)
        assert consume(topic, bootstrap_servers=cluster.published) == VALUES
    bucket = Path(cluster.containers["store"].replaced("/srv/store/objects/penstock"))
    assert any(path.is_file() for path in bucket.rglob("*"))
    for name in ("topic-orders", "topic-telemetry"):  # as when the file is brought up again
        cluster.containers[name].run(cluster.image)


@pytest.mark.long
def test_a_cluster_survives_the_failure_of_a_broker(cluster: Cluster) -> None:
    cluster.processes["broker-2"].kill()
    cluster.processes["broker-2"].wait()
    for topic in ("orders", "telemetry"):
        before = consume(topic, bootstrap_servers=cluster.published)
        produce(topic, MORE, bootstrap_servers=cluster.published)
        assert consume(topic, bootstrap_servers=cluster.published) == before + MORE
