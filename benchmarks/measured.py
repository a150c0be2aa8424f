"""Code that each benchmark measures, and recorded results that are too old for it.

A recorded result stores the release of the product and a digest of each measured folder. It is too
old if its release is more than one release behind the newest one of CHANGELOG.md and the code has
changed since. Quick runs and results that belong to no benchmark are always too old.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import ROOT, Result

_LOG = ("storage", "records", "kernels")
_BROKER = ("broker", "partitions", "control", "wire", *_LOG)
_CLUSTER = (*_BROKER, "replication")
_DISKLESS = (*_BROKER, "diskless", "objects", "archive")
_REGISTRY = ("registry", "broker/admin_server.py", "broker/http_security.py")
_SPARK = ("spark", "formats", "kernels", "records")
_CONNECT = ("connect", "client", "formats", "records")

MEASURES: Final[Mapping[str, Sequence[str]]] = {
    "columnar_codec": ("records", "kernels"),
    "value_formats": ("formats", "kernels"),
    "log_append": _LOG,
    "compaction": ("storage/compaction", "storage/log", "records", "kernels"),
    "upkeep": _BROKER,
    "partitions": _BROKER,
    "recovery": _LOG,
    "tiering": (*_BROKER, "objects"),
    "metadata_refresh": ("broker/metadata", "broker/partitions", "control"),
    "authorisation": ("broker/requests", "security"),
    "coordinator_saves": ("broker/groups", "control"),
    "share_saves": ("broker/share", "control"),
    "group_targets": ("broker/groups", "control"),
    "record_validation": ("broker/requests", *_LOG),
    "schema_validation": ("broker/requests", "client", *_LOG),
    "columnar_client": ("client", *_BROKER),
    "broker_peer": _BROKER,
    "log_peers": _BROKER,
    "curves": (*_BROKER, "apps/process"),
    "transactions": _BROKER,
    "groups": _BROKER,
    "pipelines": (*_SPARK, "apps/pipeline", "broker/fetch"),
    "pipelines_20m": (*_SPARK, "apps/pipeline", "broker/fetch"),
    "spark_pipelines": _SPARK,
    "spark_pipelines_1kib": _SPARK,
    "spark_triggers": _SPARK,
    "table_codecs": ("spark/tables",),
    "field_protection": ("spark/pipeline", "security"),
    "transforms": ("connect/steps.py", "connect/transforms", "kernels"),
    "mirror": ("mirror", "link", "client", "records"),
    "change_capture": _CONNECT,
    "connect_sql": _CONNECT,
    "connect_files": _CONNECT,
    "iceberg": (*_CONNECT, "lake"),
    "host_socket": ("host",),
    "outbox": ("outbox",),
    "diskless_fetch": _DISKLESS,
    "diskless_produce": _DISKLESS,
    "diskless_brokers": _DISKLESS,
    "signed_reads": ("spark/reads", "archive", "objects"),
    "cluster": _CLUSTER,
    "cluster_failover": _CLUSTER,
    "cluster_messages": ("replication", "records"),
    "processes": ("apps/process", *_BROKER),
    "quotas": ("broker/quotas", "broker/net", "broker/requests"),
    "tls": ("broker/net", "security"),
    "floods": ("broker/net", "security"),
    "bombs": ("records", "broker/requests"),
    "access_changes": ("security", "broker/requests"),
    "registry": _REGISTRY,
    "registry_hostile": _REGISTRY,
    "console": ("apps/console", "broker/admin", "broker/lag"),
    "metrics_scrape": ("broker/telemetry", "base"),
    "tracing": ("broker/telemetry", "broker/requests", "base"),
}
"""Folders and files of the product's source that each benchmark measures."""
RELEASES_BEHIND_MAX: Final = 1
_RELEASE = re.compile(r"^## (\d+\.\d+)\b", re.MULTILINE)


def releases() -> list[str]:
    """Return the releases that CHANGELOG.md names, the newest first."""
    return _RELEASE.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def sources(benchmark: str, source: Path = ROOT / "src" / "penstock") -> dict[str, str]:
    """Return a digest of each folder and file that a benchmark measures."""
    found = {}
    for name in MEASURES[benchmark]:
        place = source / name
        digest = hashlib.sha256()
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
        found[name] = digest.hexdigest()[:16]
    return found


def changed(result: Result, now: Mapping[str, str]) -> list[str]:
    """Return the measured folders that have changed since a result."""
    return [name for name, digest in now.items() if result.sources.get(name) != digest]


def too_old(
    results: Iterable[Result],
    known: Sequence[str],
    digests: Callable[[str], Mapping[str, str]] = sources,
) -> Iterator[str]:
    """Return for each result that has to be recorded again the name of its benchmark and why.

    Args:
        known: the releases, the newest first.
        digests: returns the digests of the code that a benchmark measures.
    """
    for result in results:
        if result.benchmark not in MEASURES:
            yield f"{result.benchmark}: no such benchmark; delete its results"
            continue
        if result.quick:
            yield f"{result.benchmark}: a quick run"
        recent = known[: RELEASES_BEHIND_MAX + 1]
        parts = changed(result, digests(result.benchmark))
        if result.release not in recent and parts:
            release = result.release or "an unknown release"
            yield f"{result.benchmark}: recorded with {release}; changed: {', '.join(parts)}"
