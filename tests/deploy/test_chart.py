"""The Helm chart: valid manifests that agree with the broker, and a broker that runs with them."""

from __future__ import annotations

import shutil
from pathlib import Path

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from penstock.apps.process.configuration import configure, read_environment
from penstock.apps.serve.running import stop_ms
from penstock.broker.admin_app import BrokerViews
from tests.deploy.chart import (
    VALUES,
    Manifest,
    containers_of,
    files_of,
    helm,
    of_kind,
    pod_of,
    render,
    variables,
)
from tests.deploy.confinement import faults_of, of_pod
from tests.deploy.files import CHART, DEPLOY, documents, from_json, image_environment

pytestmark = pytest.mark.long  # Helm is compiled first, which takes minutes
VERSIONS = ("1.28.0", "1.32.0", "1.36.0")
DATABASE = {"penstock-database/url": "postgresql://penstock@database/penstock"}
FOREIGN_KINDS = {"ServiceMonitor"}
"""Kinds of the Prometheus operator, which Kubernetes' own schemas do not have."""


@pytest.fixture(scope="module", params=VALUES)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(request.param)


@pytest.mark.parametrize("values", VALUES)
def test_the_chart_passes_helms_linter(values: str) -> None:
    done = helm("lint", "--strict", DEPLOY / CHART, *files_of(values))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VALUES)
def test_the_manifests_are_valid(values: str, version: str) -> None:
    found = render(values, version)
    for manifest in found:
        if manifest["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(manifest, version.rpartition(".")[0], strict=True)
    kinds = {manifest["kind"] for manifest in found}
    assert {"StatefulSet", "Service", "ServiceAccount", "PodDisruptionBudget"} <= kinds


def test_a_wrong_manifest_is_found() -> None:
    (brokers,) = of_kind(render(""), "StatefulSet")
    brokers["spec"]["replicas"] = "three"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(brokers, "1.36", strict=True)


def test_every_variable_is_a_setting(manifests: list[Manifest]) -> None:
    for container in containers_of(manifests):
        found = variables(container, 2, DATABASE)
        settings = {name for name in found if name.startswith("PENSTOCK_")}
        assert settings == found.keys() - {"POD_NAME", "POD_NAMESPACE"}
        environment = image_environment() | found
        origins = {given.origin for given in read_environment(environment).values()}
        assert {f"environment variable {name}" for name in settings} <= origins
        configuration = configure(file=None, environment=environment, flags={})
        assert configuration.notes == ()
        assert configuration.broker.node_id == 2


@pytest.mark.parametrize("values", VALUES)
def test_settings_of_the_chart_cannot_be_set_twice(values: str) -> None:
    files = files_of(values)
    chosen = documents(Path(files[1]))[0].get("settings", {}) if files else {}
    schema = from_json(DEPLOY / CHART / "values.schema.json")
    reserved = schema["properties"]["settings"]["propertyNames"]["not"]["enum"]
    for container in containers_of(render(values)):
        found = read_environment(variables(container, 0, DATABASE))
        assert found.keys() - chosen.keys() <= set(reserved)


def test_probes_and_ports_are_those_of_the_broker(manifests: list[Manifest]) -> None:
    *_, broker = containers_of(manifests)
    environment = variables(broker, 0, DATABASE)
    configuration = configure(file=None, environment=environment, flags={})
    ports = {port["name"]: port["containerPort"] for port in broker["ports"]}
    listening = {
        text.rpartition(":")[2]
        for text in (
            *configuration.broker.listeners,
            configuration.broker.admin_listener,
            configuration.broker.replication_listener,
            configuration.schemas.registry_listener
            if configuration.schemas.registry_enable
            else "",
        )
        if text
    }
    assert {str(port) for port in ports.values()} == listening
    paths = {route.path for route in BrokerViews.routes.declared}
    scheme = "HTTPS" if configuration.broker.admin_security_protocol == "SSL" else "HTTP"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = broker[probe]["httpGet"]
        assert request["path"] in paths
        assert (request["port"], request["scheme"]) == ("admin", scheme)
    used = {
        entry["port"] for policy in of_kind(manifests, "NetworkPolicy")
        for rule in policy["spec"]["ingress"] for entry in rule["ports"]
    } | {
        entry["targetPort"] for service in of_kind(manifests, "Service")
        for entry in service["spec"]["ports"]
    }  # fmt: skip
    assert used <= ports.keys()
    for monitor in of_kind(manifests, "ServiceMonitor"):
        assert {endpoint["path"] for endpoint in monitor["spec"]["endpoints"]} <= paths


def test_files_that_variables_name_are_mounted(manifests: list[Manifest]) -> None:
    pod = pod_of(manifests)
    volumes = {volume["name"] for volume in pod["volumes"]} | {"data"}
    for container in containers_of(manifests):
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounts.values()) <= volumes
        named = [
            text
            for name, text in variables(container, 0, DATABASE).items()
            if name.endswith(("_LOCATION", "_FILE", "_DIRS"))
        ]
        for path in map(Path, named):
            assert any(str(parent) in mounts for parent in path.parents), path


def test_pods_are_confined(manifests: list[Manifest]) -> None:
    context = pod_of(manifests)["securityContext"]
    for container in containers_of(manifests):
        assert list(faults_of(of_pod(CHART, context, container))) == []


def test_volumes_outlive_the_release(manifests: list[Manifest]) -> None:
    (brokers,) = of_kind(manifests, "StatefulSet")
    policy = brokers["spec"]["persistentVolumeClaimRetentionPolicy"]
    assert set(policy.values()) == {"Retain"}


def test_the_stop_is_longer_than_the_time_that_a_broker_needs(manifests: list[Manifest]) -> None:
    *_, broker = containers_of(manifests)
    configuration = configure(file=None, environment=variables(broker, 0, DATABASE), flags={})
    seconds = pod_of(manifests)["terminationGracePeriodSeconds"]
    assert seconds * 1000 > stop_ms(configuration)


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("replicas=3", "controlDatabase.existingSecret"),
        ("controlDatabase.existingSecret=database", "objectStore.url"),
        ("external.enabled=true", "external.domain"),
        ("replicas=0", "replicas"),
        ("storage.size=much", "/storage/size"),
        (r"settings.node\.id=7", "node.id"),
        ("setting.a=b", "setting"),
        ("antiAffinity=some", "antiAffinity"),
        ("terminationGracePeriodSeconds=5", "terminationGracePeriodSeconds"),
    ],
)
def test_wrong_values_are_rejected(setting: str, complaint: str) -> None:
    done = helm("template", "log", DEPLOY / CHART, "--set", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


def notes(values: str, folder: Path) -> str:
    """Return the text that Helm prints after an installation: rendered as a manifest's field."""
    chart = folder / "penstock"
    shutil.copytree(DEPLOY / CHART, chart)
    text = (chart / "templates" / "NOTES.txt").read_text()
    template = '{{- define "notes" }}' + text + '{{ end }}\ntext: {{ include "notes" . | quote }}\n'
    (chart / "templates" / "notes.yaml").write_text(template)
    done = helm(
        *("template", "log", chart, *files_of(values), "--namespace", "streams"),
        *("--show-only", "templates/notes.yaml"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("values", "expected", "absent"),
    [
        ("", "clients need no password", "certificate"),
        ("cluster", "*.log-headless.streams.svc.cluster.local", "clients need no password"),
    ],
)
def test_the_notes_name_what_is_left_to_do(
    values: str, expected: str, absent: str, tmp_path: Path
) -> None:
    text = notes(values, tmp_path)
    assert expected in text
    assert absent not in text


def test_a_version_is_that_of_the_image() -> None:
    done = helm("show", "chart", DEPLOY / CHART)
    assert "appVersion: 0.1.0" in done.stdout.replace('"', "")
    *_, broker = containers_of(render(""))
    assert broker["image"] == "penstock:0.1.0"
