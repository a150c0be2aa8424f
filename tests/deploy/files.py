"""Files of the deployment: their paths, their readers, and mistakes that a test plants in them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"

LOCK = "requirements.txt"
CONTAINER = "Containerfile"
IGNORED = "Containerfile.dockerignore"
COMPOSE = "host/compose.yaml"
DAEMON_SET = "host/kubernetes/daemonset.yaml"
PRODUCER_POD = "host/kubernetes/producer.yaml"
TASK = "host/ecs/task-definition.json"
SERVICE = "host/ecs/service.json"
PRODUCER_TASK = "host/ecs/producer-task-definition.json"
UNIT = "systemd/penstock-host.service"
USERS = "systemd/sysusers.d/penstock.conf"
DIRECTORIES = "systemd/tmpfiles.d/penstock.conf"
SINGLE = "compose/compose.yaml"
CLUSTER = "compose/compose.cluster.yaml"
BROKER_UNIT = "systemd/penstock-broker.service"
REGISTRY_UNIT = "systemd/penstock-registry.service"
CHART = "helm/penstock"


HOST_FILES = (
    *(LOCK, CONTAINER, IGNORED, COMPOSE, DAEMON_SET, PRODUCER_POD),
    *(TASK, SERVICE, PRODUCER_TASK, UNIT, USERS, DIRECTORIES),
)
ALL = (*HOST_FILES, SINGLE, CLUSTER, BROKER_UNIT, REGISTRY_UNIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """Change to one file that a check has to report, with a word of its message."""

    file: str
    old: str
    new: str
    complaint: str

    def __str__(self) -> str:
        return f"{self.file}: {self.old.strip()[:40]} -> {self.new.strip()[:40]}"


def plant(mistake: Mistake, folder: Path) -> Path:
    """A copy of the deployment below `folder` with the mistake in it."""
    copy = folder / "deploy"
    shutil.copytree(DEPLOY, copy)
    path = copy / mistake.file
    text = path.read_text()
    assert mistake.old in text, f"{mistake.file} has no {mistake.old!r} to change"
    path.write_text(text.replace(mistake.old, mistake.new, 1))
    return copy


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file; a key that is there twice is an error."""
    return list(YAML(typ="safe", pure=True).load_all(StringIO(path.read_text())))


def document(path: Path, kind: str) -> dict[str, Any]:
    (found,) = (text for text in documents(path) if text["kind"] == kind)
    return found


def from_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def unit_values(path: Path) -> dict[str, list[str]]:
    """Return a unit's settings, `Section.Key` to all its values in order."""
    found: dict[str, list[str]] = {}
    section = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(f"{section}.{key}", []).append(value)
    return found


@dataclass(frozen=True, slots=True)
class Instruction:
    """Instruction of a container file."""

    name: str
    words: str

    @property
    def array(self) -> list[str]:
        """The words of a JSON form, which begins at the first bracket."""
        found: list[str] = json.loads(self.words[self.words.index("[") :])
        return found

    @property
    def copied(self) -> list[str]:
        """Return a COPY's paths of the context; none if it copies from another stage."""
        words = shlex.split(self.words)
        return [] if words[0].startswith("--from=") else words[:-1]


def instructions(path: Path) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line]
    return [Instruction(name, words.strip()) for name, _, words in found]


def image_environment() -> dict[str, str]:
    """Return the settings that the container file sets."""
    pairs = [
        word.partition("=")
        for line in instructions(DEPLOY / CONTAINER)
        if line.name == "ENV"
        for word in line.words.split()
    ]
    return {name: value for name, _, value in pairs if name.startswith("KAFKA_")}


def is_sent(path: PurePosixPath, patterns: list[str]) -> bool:
    """Whether a file goes into the build's context; the last pattern that matches decides."""
    sent = True
    for pattern in patterns:
        wanted = pattern.startswith("!")
        body = pattern.removeprefix("!")
        if any(_matches(str(part), body) for part in (path, *path.parents)):
            sent = wanted
    return sent


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatchcase(PurePosixPath(path).name, pattern.removeprefix("**/"))
    return path.count("/") == pattern.count("/") and fnmatchcase(path, pattern)


def patterns(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def context_files(deployment: Path) -> list[PurePosixPath]:
    """The files of the project that a container build is sent."""
    rules = patterns(deployment / IGNORED)
    tops = sorted({PurePosixPath(rule.lstrip("!")).parts[0] for rule in rules if rule[0] == "!"})
    found: list[PurePosixPath] = []
    for top in tops:
        whole = ROOT / top
        for path in [whole] if whole.is_file() else sorted(whole.rglob("*")):
            relative = PurePosixPath(path.relative_to(ROOT))
            if path.is_file() and is_sent(relative, rules):
                found.append(relative)
    return found


def copy_context(deployment: Path, target: Path) -> None:
    for path in context_files(deployment):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target / path)
