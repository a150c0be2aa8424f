"""Restrictions of each container of the deployment, in every format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy import files
from tests.deploy.files import document, documents, from_json

PREPARATION: Final = "socket-directory"
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
        for fault in _of(container)
    ]


def _of(one: Confinement) -> Iterator[str]:
    prepares = one.name == PREPARATION
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
    for name, service in documents(deployment / files.COMPOSE)[0]["services"].items():
        yield Confinement(
            place=files.COMPOSE,
            name=name,
            root=service.get("user", "0").startswith("0"),
            dropped=frozenset(service.get("cap_drop", ())),
            added=frozenset(service.get("cap_add", ())),
            sealed="no-new-privileges:true" in service.get("security_opt", ()),
            read_only=service.get("read_only", False),
        )
    for file, kind in ((files.DAEMON_SET, "DaemonSet"), (files.PRODUCER_POD, "Deployment")):
        pod = document(deployment / file, kind)["spec"]["template"]["spec"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield _of_pod(file, pod["securityContext"], container)
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


def _of_pod(file: str, pod: dict[str, Any], container: dict[str, Any]) -> Confinement:
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
