"""Brokers that run with the rendered pods of the Helm chart: environment, probes, first user."""

from __future__ import annotations

import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.chart import (
    NAMESPACE,
    RELEASE,
    Manifest,
    containers_of,
    pod_of,
    render,
    variables,
)
from tests.deploy.files import image_environment
from tests.deploy.image import command
from tests.deploy.kafka import consume, produce
from tests.deploy.running import SECONDS_MAX, Container, addresses, stop, wait_until
from tests.postgres import PostgresServer
from tests.s3 import S3Server

PASSWORD = "a password of the test"
RECORDS = [f"value-{number:03}" for number in range(100)]
BLOCK = re.compile(r"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----\n", re.DOTALL)

pytestmark = pytest.mark.long


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """The Secrets that the chart's values name, as directories of files and as values."""

    folder: Path
    values: dict[str, str]

    @property
    def authority(self) -> str:
        return str(self.folder / "tls" / "ca.crt")


def create_secrets(
    image: Path, folder: Path, hosts: list[str], options: str = "", database: str = ""
) -> Secrets:
    """Create the Secrets; that of TLS has three files, as cert-manager creates it."""
    for name in ("tls", "scram", "store"):
        (folder / name).mkdir(parents=True)
    words = ["tls", "dev-ca", str(folder / "pki")]
    for host in hosts:
        words += ["--host", host]
    subprocess.run(command(image, *words), check=True, capture_output=True, timeout=SECONDS_MAX)
    blocks = list(BLOCK.finditer((folder / "pki" / "broker.pem").read_text()))
    for name, kind in (("tls.key", "PRIVATE KEY"), ("tls.crt", "CERTIFICATE")):
        text = "".join(block[0] for block in blocks if block[1].endswith(kind))
        (folder / "tls" / name).write_text(text)
    (folder / "tls" / "ca.crt").write_text((folder / "pki" / "ca.pem").read_text())
    (folder / "scram" / "password").write_text(PASSWORD)
    (folder / "store" / "options").write_text(options)
    return Secrets(folder=folder, values={"penstock-database/url": database})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod of the StatefulSet, with a loopback address instead of its name."""

    address: str
    first: list[Container]
    broker: Container
    manifest: Manifest
    secrets: Secrets

    def answers(self, probe: str) -> bool:
        """Return whether a probe succeeds, as the kubelet evaluates it."""
        request = self.manifest[probe]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.manifest["ports"]}
        scheme = request["scheme"].lower()
        url = f"{scheme}://{self.address}:{ports[request['port']]}{request['path']}"
        context = ssl.create_default_context(cafile=self.secrets.authority)
        try:
            with urllib.request.urlopen(url, timeout=SECONDS_MAX, context=context) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def pods(manifests: list[Manifest], places: list[str], secrets: Secrets, folder: Path) -> list[Pod]:
    domain = f"{RELEASE}-headless.{NAMESPACE}.svc.cluster.local"
    shared = {
        f"{RELEASE}-{index}.{name}": address
        for index, address in enumerate(places)
        for name in (domain, "log.example.com")
    }
    shared["/etc/penstock"] = str(secrets.folder)
    found = []
    for index, address in enumerate(places):
        containers = [
            Container(
                name=f"{RELEASE}-{index}/{manifest['name']}",
                words=manifest.get("args") or ["serve"],
                environment=image_environment() | variables(manifest, index, secrets.values),
                replacements=shared | {"0.0.0.0": address, "/data": f"{folder}/{index}"},
            )
            for manifest in containers_of(manifests)
        ]
        found.append(
            Pod(
                address=address,
                first=containers[:-1],
                broker=containers[-1],
                manifest=pod_of(manifests)["containers"][0],
                secrets=secrets,
            )
        )
    return found


@contextmanager
def running(image: Path, pods: list[Pod]) -> Iterator[None]:
    """Run pods until the end of the context: first containers, then brokers with their probes."""
    with ExitStack() as stack:
        for pod in pods:
            for container in pod.first:
                container.run(image)
        brokers = [stack.enter_context(pod.broker.running(image)) for pod in pods]
        for pod, broker in zip(pods, brokers, strict=True):
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                wait_until(lambda pod=pod, probe=probe: pod.answers(probe), broker)  # type: ignore[misc]
        yield
        stop(*brokers)


def client(secrets: Secrets, bootstrap: str, user: str) -> dict[str, str]:
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": user,
        "sasl_password": PASSWORD,
        "ssl_ca_location": secrets.authority,
    }


def test_a_secured_broker_runs(image: Path, tmp_path: Path) -> None:
    places = addresses(1)
    secrets = create_secrets(image, tmp_path / "secrets", places)
    found = pods(render("secured"), places, secrets, tmp_path)
    options = client(secrets, f"{places[0]}:9092", "operator")
    with running(image, found):
        produce("orders", RECORDS, **options)
    with running(image, found):  # a restarted pod: the user and the records are there
        assert consume("orders", **options) == RECORDS
    assert not found[0].answers("livenessProbe")


def test_a_secured_cluster_runs(
    image: Path, postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> None:
    places = addresses(3)
    lines = "\n".join(f"{name}={value}" for name, value in s3.options().items())
    with postgres.database() as database:
        secrets = create_secrets(image, tmp_path / "secrets", places, lines, postgres.url(database))
        manifests = render("cluster", "1.36.0", "--set", f"objectStore.url={s3.fresh_url()}")
        found = pods(manifests, places, secrets, tmp_path)
        external = ",".join(f"{address}:9094" for address in places)
        options = client(secrets, external, "admin")
        with running(image, found):
            create_topic = Container(
                name="topic",
                words=["topic", "create", "orders", "--bootstrap", external, *properties(options)],
                environment={},
            )
            create_topic.run(image)
            produce("orders", RECORDS, **options)
            assert consume("orders", **options) == RECORDS
            register = urllib.request.Request(  # the registry needs a password, too
                f"https://{places[1]}:8081/subjects/orders-value/versions",
                data=b'{"schema": "\\"string\\""}',
                headers={"Content-Type": "application/json"},
            )
            context = ssl.create_default_context(cafile=secrets.authority)
            with pytest.raises(urllib.error.HTTPError, match=r"40[13]"):
                urllib.request.urlopen(register, timeout=SECONDS_MAX, context=context)


def properties(options: dict[str, str]) -> list[str]:
    """Return a client's options for the command line."""
    names = {"ssl_ca_location": "ssl.truststore.location"}
    words = []
    for name, value in options.items():
        if name != "bootstrap_servers":
            words += ["-X", f"{names.get(name, name.replace('_', '.'))}={value}"]
    return words
