"""The validators of the deployment's files. Each answers what is wrong, or nothing.

They are the formats' own: hadolint, the Compose specification's schema, Kubernetes' schemas, the
service model of ECS, and systemd's own tools.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from botocore.loaders import Loader  # type: ignore[import-untyped]
from botocore.model import ServiceModel  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from compat.parts import PartMissing, compose_config

from tests.deploy.files import from_json
from tests.machine import lacking, system_tool

SECONDS_MAX = 60
EXPOSURE_MAX = 16
"""Tenths; `systemd-analyze security` calls up to 2.9 OK, and 10 what is not confined at all."""
STUB = "#!/bin/sh\n"


def call(*words: str | Path) -> str:
    """Return a tool's output if it finds fault, else nothing."""
    done = run(*words)
    return done.stdout + done.stderr if done.returncode else ""


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def installed(name: str) -> Path:
    """A tool that the lock file installs beside the interpreter."""
    return Path(sys.executable).parent / name


def hadolint(path: Path) -> str:
    return call(installed("hadolint"), "--no-color", "--failure-threshold", "style", path)


def compose_schema(path: Path) -> str:
    words = ("--builtin-schema", "vendor.compose-spec", path)
    return call(installed("check-jsonschema"), *words)


def compose_model(path: Path) -> str:
    """Load a Compose file with the library of `docker compose`, which also resolves references."""
    return call(part(compose_config), path)


def compose_services(path: Path) -> dict[str, dict[str, Any]]:
    """Return the services of a Compose file after interpolation, by name."""
    done = run(part(compose_config), path)
    assert done.returncode == 0, done.stderr
    services: dict[str, dict[str, Any]] = json.loads(done.stdout)["services"]
    return services


def part(fetch: Callable[[], Path]) -> Path:
    """Return a foreign program; where it cannot be fetched, the test ends."""
    try:
        return fetch()
    except PartMissing as error:
        lacking(str(error))


def kubernetes_schema(path: Path) -> str:
    """A kind without a schema is only warned about by the tool; here it is wrong too."""
    done = run(installed("kubernetes-validate"), "--strict", path)
    said = done.stdout + done.stderr
    return said if done.returncode or "WARN" in said else ""


def ecs_model(path: Path, operation: str) -> str:
    """The parameters against the service's model: names, types, ranges and enumerations."""
    description = Loader().load_service_model("ecs", "service-2")
    shape = ServiceModel(description, "ecs").operation_model(operation).input_shape
    parameters = from_json(path)
    report = ParamValidator().validate(parameters, shape)
    odd = [] if report.has_errors() else list(_outside_enumerations(parameters, shape, ""))
    return "\n".join([report.generate_report(), *odd]).strip()


def _outside_enumerations(value: Any, shape: Any, place: str) -> Iterator[str]:
    """botocore leaves values of enumerations to the service."""
    if shape.type_name == "structure":
        for name, member in value.items():
            yield from _outside_enumerations(member, shape.members[name], f"{place}.{name}")
    elif shape.type_name == "list":
        for number, member in enumerate(value):
            yield from _outside_enumerations(member, shape.member, f"{place}[{number}]")
    elif getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{place.lstrip('.')}: {value!r} is none of {', '.join(shape.enum)}"


def systemd_tool(name: str) -> str:
    return system_tool(name, "systemd")


def systemd_verify(unit: Path, folder: Path) -> str:
    """`systemd-analyze verify` in a root that holds the unit, systemd's own, and the command.

    The tool only prints what it does not know, so whatever it prints is wrong.
    """
    root = folder / "root"
    shutil.copytree("/lib/systemd/system", root / "lib/systemd/system", symlinks=True)
    (root / "etc/systemd/system").mkdir(parents=True)
    shutil.copy(unit, root / "etc/systemd/system")
    command = root / "opt/penstock/bin/penstock"
    command.parent.mkdir(parents=True)
    command.write_text(STUB)
    command.chmod(0o755)
    done = run(
        *(systemd_tool("systemd-analyze"), "verify", f"--root={root}"),
        *("--recursive-errors=no", unit.name),
    )
    said = done.stdout + done.stderr
    return said if said or done.returncode == 0 else f"status {done.returncode}"


def systemd_security(unit: Path) -> str:
    words = ("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", "--no-pager", unit)
    return call(systemd_tool("systemd-analyze"), *words)


def need_root(why: str) -> None:
    """Only root may give files away and make name spaces; CI runs as root."""
    if os.getuid() != 0:
        lacking(f"only root can {why}")


def systemd_users(path: Path, root: Path) -> str:
    """Make the users in an empty root; what is said on the way goes to stderr in any case."""
    need_root("make users in a root of its own")
    (root / "etc").mkdir(parents=True)
    return call(systemd_tool("systemd-sysusers"), f"--root={root}", path)


def systemd_directories(path: Path, root: Path) -> str:
    done = run(systemd_tool("systemd-tmpfiles"), f"--root={root}", "--create", path)
    return done.stdout + done.stderr
