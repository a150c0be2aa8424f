"""The Helm chart: rendered manifests, and the containers of its pods."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, Final

from compat import parts
from ruamel.yaml import YAML

from tests.deploy.files import CHART, DEPLOY
from tests.deploy.linters import part, run

RELEASE: Final = "log"
NAMESPACE: Final = "streams"
VALUES: Final = ("", "cluster", "plain", "secured")
"""Sets of values in the chart's folder `ci`; empty for the defaults."""
Manifest = dict[str, Any]


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return run(part(parts.helm), *words)


def files_of(values: str, chart: Path = DEPLOY / CHART) -> tuple[str | Path, ...]:
    return ("--values", chart / "ci" / f"{values}-values.yaml") if values else ()


def render(values: str, version: str = "1.36.0", *words: str) -> list[Manifest]:
    """Return the manifests of a set of values for a version of Kubernetes."""
    done = helm(
        *("template", RELEASE, DEPLOY / CHART, "--namespace", NAMESPACE),
        *("--kube-version", version, *files_of(values), *words),
    )
    assert done.returncode == 0, done.stderr
    return [found for found in YAML(typ="safe", pure=True).load_all(StringIO(done.stdout)) if found]


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod_of(manifests: list[Manifest]) -> Manifest:
    (brokers,) = of_kind(manifests, "StatefulSet")
    pod: Manifest = brokers["spec"]["template"]["spec"]
    return pod


def containers_of(manifests: list[Manifest]) -> Iterator[Manifest]:
    pod = pod_of(manifests)
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def variables(container: Manifest, pod_index: int, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that Kubernetes gives a container.

    `secrets` has the values of Secrets as `name/key`.
    """
    fields = {
        "metadata.name": f"{RELEASE}-{pod_index}",
        "metadata.namespace": NAMESPACE,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(pod_index),
    }
    found: dict[str, str] = {}
    for entry in container["env"]:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            text = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            text = secrets[f"{source['secretKeyRef']['name']}/{source['secretKeyRef']['key']}"]
        else:
            text = str(entry["value"])
            for name, value in found.items():  # only earlier variables are expanded
                text = text.replace(f"$({name})", value)
        assert entry["name"] not in found, f"{entry['name']} is there twice"
        found[entry["name"]] = text
    return found
