"""Collectors of a support bundle: each returns the files of one subject.

No collector reads records. Those that ask brokers fail if no broker answers; the bundle then lists
their subjects as missing.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.apps.bench.machine import host_facts
from penstock.apps.checks.brokers import known_admins, reach
from penstock.apps.client.admin import ask_admin
from penstock.apps.doctor.command import examine
from penstock.apps.host_reading import existing
from penstock.apps.process.configuration import (
    DEFAULT_DIRECTORY,
    Given,
    all_settings,
    gathered,
    read_environment,
)
from penstock.apps.support.redaction import names_secret
from penstock.apps.upgrade.formats import survey
from penstock.base.errors import PenstockError, UnavailableError
from penstock.base.settings import HIDDEN

if TYPE_CHECKING:
    from penstock.apps.client.session import State

TOPICS_MAX: Final = 1_000
GROUPS_MAX: Final = 500
"""Most topics and groups that a bundle describes."""
LOG_BYTES_MAX: Final = 2 << 20
LOG_LINES_MAX: Final = 5_000
"""Newest lines of each log, and their most bytes."""
JOURNAL_SECONDS: Final = 10.0
UNITS: Final = ("penstock-broker.service", "penstock-host.service", "penstock-registry.service")
_METRICS_SECONDS: Final = 10.0
_LIMITS: Final = ("NOFILE", "NPROC", "MEMLOCK", "AS", "CORE")
_FILES: Final = ("/proc/meminfo", "/proc/loadavg", "/proc/version", "/proc/pressure/io")
_KERNEL_FILE_BYTES: Final = 64 << 10

Item = TypeVar("Item")
Files = Iterator[tuple[str, Any]]
"""Names of files, and their contents: a text, or a value that is written as JSON."""


class NotCollected(UnavailableError):
    """Subject of a bundle that could not be collected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a broker and options of the client, by name.

    Attributes:
        given: values from the environment and the file, with their origins.
        options: security options of the client.
        problems: causes why some of them are missing.
    """

    given: Mapping[str, Given]
    options: Mapping[str, str]
    problems: Sequence[str]

    @property
    def directory(self) -> str:
        named = self.given.get("log.dirs")
        return str(named.value) if named else DEFAULT_DIRECTORY

    def secrets(self) -> Iterator[str]:
        """Yield all values that are secret."""
        for name, item in self.given.items():
            if _hidden(name):
                yield str(item.value)
        yield from (value for name, value in self.options.items() if names_secret(name))

    def shown(self) -> dict[str, Any]:
        """Return settings and options without secret values."""
        settings = {
            name: {"value": HIDDEN if _hidden(name) else item.value, "origin": item.origin}
            for name, item in sorted(self.given.items())
        }
        options = {
            name: HIDDEN if names_secret(name) else value
            for name, value in sorted(self.options.items())
        }
        return {"broker": settings, "client": options}


def read_settings(state: State, file: Path | None) -> Settings:
    """Read the settings and options; a source that is invalid does not hide the other ones."""
    problems = []
    options: Mapping[str, str] = {}
    try:
        given = gathered(file, os.environ)
    except PenstockError as error:
        given = read_environment(os.environ)
        problems.append(str(error))
    try:
        options = state.security() or {}
    except PenstockError as error:
        problems.append(str(error))
    return Settings(given, options, problems)


def _hidden(name: str) -> bool:
    """Return whether a value is hidden: it is secret, or its setting is unknown."""
    info = all_settings().get(name)
    if name.startswith("listener.name."):
        return names_secret(name)
    return info is None or info.secret or names_secret(name)


def host(directory: Path) -> Files:
    """Yield facts about this machine: processors, memory, disk, kernel, limits and packages."""
    usage = shutil.disk_usage(existing(directory))
    limits = {
        name.lower(): resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in _LIMITS
    }
    yield (
        "host.json",
        {
            **host_facts(existing(directory)),
            "machine": platform.platform(),
            "data_directory": str(directory),
            "disk_bytes": usage._asdict(),
            "limits": limits,
            "load": os.getloadavg(),
        },
    )
    yield "packages.json", {item.name: item.version for item in distributions()}
    for name in _FILES:
        path = Path(name)
        if path.exists():
            with path.open("rb") as file:
                text = file.read(_KERNEL_FILE_BYTES).decode("utf-8", "replace")
            yield f"host{name.replace('/', '-')}.txt", text


def cluster(state: State) -> Files:
    """Yield the brokers, topics with their settings, and groups with their offsets."""
    with state.client() as client:
        metadata = client.metadata()
        yield (
            "brokers.json",
            {
                "cluster_id": metadata.cluster_id,
                "controller_id": metadata.controller_id,
                "brokers": list(metadata.nodes.values()),
                "states": {str(node): found for node, found in client.broker_states().items()},
                "settings": {
                    str(node): client.describe_configs("broker", str(node))
                    for node in metadata.nodes
                },
            },
        )
        topics = sorted(metadata.topics)
        yield (
            "topics.json",
            {
                "count": len(topics),
                "topics": {
                    name: {
                        "description": metadata.topics[name],
                        "settings": client.describe_configs("topic", name),
                    }
                    for name in topics[:TOPICS_MAX]
                },
            },
        )
        groups = sorted(item.group_id for item in client.list_groups())
        yield (
            "groups.json",
            {
                "count": len(groups),
                "groups": {
                    name: {
                        "description": client.describe_group(name),
                        "offsets": [
                            {"topic": topic, "partition": partition, "offset": found.offset}
                            for (topic, partition), found in sorted(client.committed(name).items())
                        ],
                    }
                    for name in groups[:GROUPS_MAX]
                },
            },
        )


def metrics(state: State, admin: str | None) -> Files:
    """Yield the metrics and the health of each admin interface.

    Raises:
        NotCollected: no interface is known, or some do not answer.
    """
    _, states, _ = reach(state)
    addresses = known_admins(state, states, admin)
    if not addresses:
        raise NotCollected("no admin interface is known: name one with --admin HOST:PORT")

    def answers(number: int, address: str) -> Files:
        answer = ask_admin(state, address, "/metrics", timeout_seconds=_METRICS_SECONDS)
        yield f"metrics-{number}.txt", answer.content.decode("utf-8", "replace")
        yield f"health-{number}.json", dict(ask_admin(state, address, "/readyz").body)

    yield from _of_each(addresses, answers)


def _of_each(items: Iterable[Item], collector: Callable[[int, Item], Files]) -> Files:
    """Yield the files of all items; then raise NotCollected with the causes of those that fail."""
    causes = []
    for number, item in enumerate(items):
        try:
            yield from collector(number, item)
        except (PenstockError, OSError) as error:
            causes.append(str(error))
    if causes:
        raise NotCollected("; ".join(causes))


def formats(directory: Path) -> Files:
    """Yield the versions of the formats in a data directory."""
    yield "formats.json", survey(directory)


def doctor(state: State, file: Path | None, directory: Path, admin: str | None) -> Files:
    """Yield the findings of `penstock doctor`."""
    yield "doctor.json", examine(state, file, str(directory), admin)


def logs(paths: Sequence[Path]) -> Files:
    """Yield the newest lines of log files, or of the system's journal if no file is named.

    Raises:
        NotCollected: files cannot be read, or no file is named and there is no journal.
    """
    if not paths:
        yield "log-journal.txt", _journal()

    def newest(number: int, path: Path) -> Files:
        yield f"log-{number}-{path.name}.txt", _newest_lines(path)

    yield from _of_each(paths, newest)


def _newest_lines(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES_MAX))
        content = file.read(LOG_BYTES_MAX)
    text = content.decode("utf-8", "replace")
    if size > LOG_BYTES_MAX:
        text = text.partition("\n")[2]  # the first line may lack the name of a secret
    return "\n".join(text.splitlines()[-LOG_LINES_MAX:]) + "\n"


def _journal() -> str:
    command = shutil.which("journalctl")
    if command is None:
        raise NotCollected("no log: name the broker's log files with --log FILE")
    words = [command, "--no-pager", f"--lines={LOG_LINES_MAX}", *(f"--unit={u}" for u in UNITS)]
    done = subprocess.run(words, capture_output=True, timeout=JOURNAL_SECONDS, check=False)
    if done.returncode:
        cause = done.stderr.decode("utf-8", "replace").strip()
        raise NotCollected(f"journalctl failed: {cause}; name log files with --log FILE")
    return done.stdout[-LOG_BYTES_MAX:].decode("utf-8", "replace")
