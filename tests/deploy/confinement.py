"""Restrictions of each container of the deployment, in each of the formats.

No capabilities but those named here, no way to gain any, nothing writable but what is mounted, and
no root but in the container that gives the directory away. Source: the level "restricted" of
Kubernetes' pod security standards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy import files
from tests.deploy.files import document, documents, from_json

PREPARATIONS: Final = {"socket-directory", "store-directories"}
OWN_IMAGE: Final = "penstock:"
PREPARATION_NEEDS: Final = {"CHOWN", "FOWNER"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    place: str
    name: str
    root: bool
    dropped: frozenset[str]
    added: frozenset[str]
    sealed: bool
    """Nobody in it can gain privileges."""
    read_only: bool


def faults(deployment: Path) -> list[str]:
    return [
        f"{container.place}: {container.name} {fault}"
        for container in containers(deployment)
        for fault in faults_of(container)
    ]


def faults_of(one: Confinement) -> Iterator[str]:
    """Yield the rights that a container has and does not need."""
    prepares = one.name in PREPARATIONS
    if one.root != prepares:
        yield "runs as root" if one.root else "does not run as root"
    if one.dropped != {"ALL"}:
        yield f"keeps capabilities, it drops {sorted(one.dropped)}"
    if one.added != (PREPARATION_NEEDS if prepares else frozenset()):
        yield f"adds the capabilities {sorted(one.added)}"
    if not one.sealed:
        yield "can gain privileges"
    if not one.read_only:
        yield "can write to its root"


def containers(deployment: Path) -> Iterator[Confinement]:
    for file in (files.COMPOSE, files.SINGLE, files.CLUSTER):
        for name, service in documents(deployment / file)[0]["services"].items():
            if service["image"].startswith(OWN_IMAGE):
                yield _of_service(file, name, service)
    for file, kind in ((files.DAEMON_SET, "DaemonSet"), (files.PRODUCER_POD, "Deployment")):
        pod = document(deployment / file, kind)["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield of_pod(file, pod["securityContext"], container)
    for file in (files.TASK, files.PRODUCER_TASK):
        for container in from_json(deployment / file)["containerDefinitions"]:
            capabilities = container.get("linuxParameters", {}).get("capabilities", {})
            yield Confinement(
                place=file,
                name=container["name"],
                root=container.get("user", "0").startswith("0"),
                dropped=frozenset(capabilities.get("drop", ())),
                added=frozenset(capabilities.get("add", ())),
                sealed="no-new-privileges" in container.get("dockerSecurityOptions", ()),
                read_only=container.get("readonlyRootFilesystem", False),
            )


def _of_service(file: str, name: str, service: dict[str, Any]) -> Confinement:
    return Confinement(
        place=file,
        name=name,
        root=service.get("user", "0").startswith("0"),
        dropped=frozenset(service.get("cap_drop", ())),
        added=frozenset(service.get("cap_add", ())),
        sealed="no-new-privileges:true" in service.get("security_opt", ()),
        read_only=service.get("read_only", False),
    )


def of_pod(file: str, pod: dict[str, Any], container: dict[str, Any]) -> Confinement:
    context = {**pod, **container.get("securityContext", {})}
    capabilities = context.get("capabilities", {})
    profile = context.get("seccompProfile", {}).get("type")
    return Confinement(
        place=file,
        name=container["name"],
        root=context.get("runAsUser", 0) == 0 or not context.get("runAsNonRoot", False),
        dropped=frozenset(capabilities.get("drop", ())),
        added=frozenset(capabilities.get("add", ())),
        sealed=context.get("allowPrivilegeEscalation") is False and profile == "RuntimeDefault",
        read_only=context.get("readOnlyRootFilesystem", False),
    )
