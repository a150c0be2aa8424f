"""A whole broker on a thread of its own, for clients that block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.base.metrics import Registry
from penstock.base.settings import load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.broker.configuration.configs import TopicConfigs
from penstock.broker.configuration.settings import BrokerSettings
from penstock.broker.server import BrokerServer
from penstock.control import SqliteControlPlane
from penstock.storage import LogStore, StorageSettings
from tests.broker.handlers.conftest import QUICK

WAIT_SECONDS = 60.0


class RunningBroker:
    """Runs a `BrokerServer` over one directory; can be stopped and started again."""

    def __init__(self, directory: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self.settings = load(BrokerSettings, {**QUICK, **(settings or {})})
        self.server: BrokerServer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.call(self._start)

    def call(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run a coroutine on the broker's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(function(), self._loop).result(WAIT_SECONDS)

    async def _start(self) -> None:
        configs = TopicConfigs(self.settings)
        store = LogStore.open(
            self.directory / "log",
            StorageSettings(),
            clock=SYSTEM_CLOCK,
            config_of=configs.config_of,
        )
        self.server = server = BrokerServer(
            self.settings,
            control=SqliteControlPlane(self.directory / "control.db"),
            store=store,
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            registry=Registry(),
        )
        configs.bind(lambda: server.cluster.loaded)
        await server.start()

    def restart(self, *, same_port: bool = False) -> None:
        """Stop the broker and start it again over the same directory, on new ports or not."""
        if same_port:
            self.settings = replace(self.settings, listeners=(f"PLAINTEXT://{self.bootstrap}",))
        self.call(lambda: self.server.stop())
        self.call(self._start)

    def close(self) -> None:
        self.call(lambda: self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()

    @property
    def bootstrap(self) -> str:
        host, port = self.server.kafka_address
        return f"{host}:{port}"

    @property
    def admin_url(self) -> str:
        address = self.server.admin_address
        assert address is not None
        return f"http://{address[0]}:{address[1]}"
