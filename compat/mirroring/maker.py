"""Process of MirrorMaker 2 that mirrors two clusters both ways, and can be killed."""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Final, Self

from tests.mirror.bed import Cluster

from compat.parts import mirror_java

OFFSET_LAG_MAX: Final = 20
_INTERVALS: Final = (
    "refresh.topics", "refresh.groups", "emit.checkpoints", "sync.group.offsets",
    "sync.topic.configs",
)  # fmt: skip
_TOPICS: Final = (
    "", "offset-syncs.topic.", "checkpoints.topic.", "heartbeats.topic.",
    "offset.storage.", "config.storage.", "status.storage.",
)  # fmt: skip


class MirrorMaker:
    """MirrorMaker of the clusters `left` and `right`; a context manager that ends its process."""

    def __init__(
        self,
        folder: Path,
        left: Cluster,
        right: Cluster,
        topics: str,
        *,
        exactly_once: Collection[str],
    ) -> None:
        """Write the file of properties.

        Args:
            topics: names of the mirrored topics, separated by commas.
            exactly_once: clusters to which records, and positions in the source, are written in
                transactions.

        Raises:
            PartMissing: the jars or Java are not available.
        """
        settings = {
            "clusters": "left, right", "topics": topics, "groups": "g", "tasks.max": "2",
            "left.bootstrap.servers": left.bootstrap, "right.bootstrap.servers": right.bootstrap,
            "left->right.enabled": "true", "right->left.enabled": "true",
            "sync.group.offsets.enabled": "true", "offset.lag.max": str(OFFSET_LAG_MAX),
            "dedicated.mode.enable.internal.rest": "true", "listeners": "http://127.0.0.1:0",
            "plugin.discovery": "service_load",
            **{f"{name}.interval.seconds": "1" for name in _INTERVALS},
            **{f"{name}replication.factor": "1" for name in _TOPICS},
        }  # fmt: skip
        for cluster in ("left", "right"):
            support = "enabled" if cluster in exactly_once else "disabled"
            settings |= {
                f"{cluster}.exactly.once.source.support": support,
                f"{cluster}.plugin.discovery": "service_load",
                f"{cluster}.offset.flush.interval.ms": "1000",
                f"{cluster}.scheduled.rebalance.max.delay.ms": "0",
            }
        self._file = folder / "mm2.properties"
        self._file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        self._command = [
            "java", "-Xmx512m", "-cp", mirror_java(),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "org.apache.kafka.connect.mirror.MirrorMaker", str(self._file),
        ]  # fmt: skip

    def start(self) -> None:
        with self._file.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return self._file.with_suffix(".log").read_text(errors="replace")[-6000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
