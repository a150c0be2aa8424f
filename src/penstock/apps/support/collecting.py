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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.apps.bench.machine import host_facts
from penstock.apps.client.admin import ask_admin
from penstock.apps.host_reading import existing
from penstock.apps.process.configuration import Given, all_settings
from penstock.apps.support.redaction import names_secret
from penstock.base.errors import UnavailableError
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


class NotCollected(UnavailableError):
    """Subject of a bundle that could not be collected."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a broker and options of the client, by name.

    Attributes:
        given: values from the command line, the environment and the file, with their origins.
        options: security options of the client.
    """

    given: Mapping[str, Given] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

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


def _hidden(name: str) -> bool:
    """Return whether a value is hidden: it is secret, or its setting is unknown."""
    info = all_settings().get(name)
    if name.startswith("listener.name."):
        return names_secret(name)
    return info is None or info.secret or names_secret(name)


def host(directory: Path) -> Iterator[tuple[str, Any]]:
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


def cluster(state: State) -> Iterator[tuple[str, Any]]:
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
                        "description": _without_protocol(
                            msgspec.to_builtins(client.describe_group(name))
                        ),
                        "offsets": _offsets(client.committed(name)),
                    }
                    for name in groups[:GROUPS_MAX]
                },
            },
        )


def _without_protocol(described: Any) -> Any:
    """Remove the bytes that members exchange, because applications decide what they contain."""
    if isinstance(described, dict):
        return {
            name: _without_protocol(value)
            for name, value in described.items()
            if name not in ("metadata", "user_data")
        }
    if isinstance(described, list):
        return [_without_protocol(item) for item in described]
    return described


def _offsets(committed: Mapping[tuple[str, int], Any]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "offset": int(getattr(found, "offset", -1))}
        for (topic, partition), found in sorted(committed.items())
    ]


def metrics(state: State, addresses: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yield the metrics and the health of each admin interface.

    Raises:
        NotCollected: no address of an admin interface is known.
    """
    listed = list(addresses)
    if not listed:
        raise NotCollected("no admin interface is known: name one with --admin HOST:PORT")
    for number, address in enumerate(listed):
        answer = ask_admin(state, address, "/metrics", timeout_seconds=_METRICS_SECONDS)
        yield f"metrics-{number}.txt", answer.content.decode("utf-8", "replace")
        yield f"health-{number}.json", dict(ask_admin(state, address, "/readyz").body)


def formats(directory: Path) -> Iterator[tuple[str, Any]]:
    """Yield the versions of the formats in a data directory."""
    from penstock.apps.upgrade.formats import survey

    yield "formats.json", asdict(survey(directory))


def logs(paths: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Yield the newest lines of log files, or of the system's journal if no file is named.

    Raises:
        NotCollected: no file is named, and there is no journal.
    """
    listed = list(paths)
    for number, path in enumerate(listed):
        yield f"log-{number}-{path.name}.txt", _newest_lines(path)
    if not listed:
        yield "log-journal.txt", _journal()


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
