"""Debezium's PostgreSQL connectors in a standalone worker of Kafka Connect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tests.ports import free_port

from compat.connect.standalone import JSON, MAIN
from compat.daemons import Daemon, java, properties
from compat.parts import debezium

WAIT_SECONDS: Final = 60.0
_WORKER: Final = {
    "key.converter": JSON,
    "value.converter": JSON,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "1000",
    "plugin.discovery": "service_load",
}
_CONNECTOR: Final = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "skipped.operations": "none",
}


def connector_settings(url: str, name: str) -> dict[str, str]:
    """Return the settings of a connector; its name is that of the slot, and the topics' prefix."""
    place = urlsplit(url)
    return {
        **_CONNECTOR, "topic.prefix": name, "slot.name": name,
        "database.hostname": place.hostname or "", "database.port": str(place.port),
        "database.user": place.username or "", "database.password": "none",
        "database.dbname": place.path.removeprefix("/"),
    }  # fmt: skip


class Debezium(Daemon):
    """Standalone worker with connectors; each name is that of a slot, and the prefix of topics."""

    def __init__(
        self,
        bootstrap: str,
        url: str,
        connectors: Mapping[str, Mapping[str, str]],
        directory: Path,
        *,
        worker: Mapping[str, str] | None = None,
    ) -> None:
        """Write the files of the worker and its connectors.

        Args:
            connectors: settings of each connector by its name.
            worker: more settings of the worker.

        Raises:
            PartMissing: the connector or Java is not available.
        """
        self._names = tuple(connectors)
        files = [properties(directory / "worker.properties", {
            **_WORKER, "bootstrap.servers": bootstrap,
            "offset.storage.file.filename": str(directory / "debezium.offsets"),
            "listeners": f"http://127.0.0.1:{free_port()}", **(worker or {}),
        })]  # fmt: skip
        for name, settings in connectors.items():
            made = {"name": name, **connector_settings(url, name), **settings}
            files.append(properties(directory / f"{name}.properties", made))
        command = java(debezium(), MAIN, *files, options=["-XX:TieredStopAtLevel=4"])
        super().__init__(command, directory / "debezium.log", environment={"TZ": "UTC"})

    def wait_until_streaming(self, execute: Any) -> None:
        """Wait until all connectors stream.

        Args:
            execute: executes a statement in the database, and returns the rows.
        """
        deadline = time.monotonic() + WAIT_SECONDS
        names = ", ".join(f"'{name}'" for name in self._names)
        query = (
            "SELECT count(*) FROM pg_replication_slots JOIN pg_stat_replication"
            f" ON pid = active_pid WHERE slot_name IN ({names}) AND state = 'streaming'"
        )
        while execute(query) != [(len(self._names),)]:
            self.check()
            if time.monotonic() > deadline:
                raise AssertionError(f"Debezium does not stream:\n{self.log()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise an error if the process has ended."""
        if not self.alive:
            raise AssertionError(f"Debezium ended:\n{self.log()}")
