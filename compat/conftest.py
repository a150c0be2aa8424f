"""Fixtures of the interoperability suite: the server, a driver for each client, the allow-list."""

from __future__ import annotations

import gc
import os
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from tests.ports import free_port

from compat.command_line import COMMAND_LINE
from compat.drivers import DRIVERS, Driver, eventually, patient
from compat.parts import PartMissing
from compat.sample import mark_the_rest
from compat.security import realm
from compat.servers import QUICK_GROUPS, PenstockProcess, Server, chosen, server, topics
from compat.wire import served

if TYPE_CHECKING:
    from compat.registry import Link, RegistryClient

HERE = Path(__file__).resolve().parent
ALLOWED = HERE / "allowed.toml"
OWN = {
    "test_compacted",
    "test_connect_cluster",
    "test_debezium",
    "test_diskless",
    "test_history",
    "test_karapace",
    "test_log_files",
    "test_mirroring",
    "test_monitors",
    "test_mirrormaker",
    "test_registry",
    "test_registry_values",
    "test_schema_validation",
    "test_share_replicated",
    "test_telemetry",
    "test_three_brokers",
    "test_transaction_kills",
    "test_transforms",
    "test_two_brokers",
}
OPEN = {"test_karapace", "test_monitors"}
"""Files of `OWN` whose brokers the suite's clients reach only without security."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is here; expect the listed deviations of Penstock to fail, and only those.

    Files about what only Penstock has are no part of the suite against another server.
    """
    left_out = OWN if chosen() != "penstock" else OPEN if realm() is not None else ()
    if left_out:
        own = [item for item in items if item.path.parent == HERE and item.path.stem in left_out]
        config.hook.pytest_deselected(items=own)
        items[:] = [item for item in items if item not in own]
    allowed = tomllib.loads(ALLOWED.read_text())
    if not any(name.startswith("PENSTOCK_COMPAT_") for name in os.environ):
        mark_the_rest(item for item in items if item.nodeid.startswith("compat/"))
    for item in items:
        if not item.nodeid.startswith("compat/"):
            continue
        item.add_marker(pytest.mark.interop)
        item.add_marker(pytest.mark.filterwarnings("default"))
        reason = allowed.get(item.path.stem, {}).get(item.name)
        if reason is not None and chosen() == "penstock":
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def missing(error: PartMissing) -> NoReturn:
    """Skip for want of a foreign part, or fail where the suite is required."""
    if os.environ.get("PENSTOCK_REQUIRE_INTEROP") == "1":
        pytest.fail(f"a foreign part is missing, and the suite is required: {error}")
    pytest.skip(f"a foreign part is missing: {error}")


# The suite's server and clients end with the suite, not with the session: clients have threads,
# descriptors and processes, which are no business of the tests that come after in this process.


@pytest.fixture(scope="package", name="server")
def the_server() -> Iterator[Server]:
    """The server under test, started once."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server())
        except PartMissing as error:
            missing(error)
        yield running


@pytest.fixture(scope="package", autouse=True)
def command_line() -> Iterator[None]:
    """Apache Kafka's tools, which any test may run."""
    with COMMAND_LINE.ended():
        yield


@pytest.fixture(scope="package")
def driver_of(server: Server) -> Iterator[Callable[[str], Driver]]:
    """Drivers by name, each started when it is first asked for."""
    started: dict[str, Driver | PartMissing] = {}

    def get(name: str) -> Driver:
        if name not in started:
            try:
                driver = DRIVERS[name](server.bootstrap)
                started[name] = patient(driver) if topics() == "replicated" else driver
            except PartMissing as error:
                started[name] = error
        found = started[name]
        if isinstance(found, PartMissing):
            missing(found)
            raise found
        return found

    with ExitStack() as stack:
        stack.callback(gc.collect)  # what clients leave unclosed is told here, not after all tests
        yield get
        for driver in started.values():
            if isinstance(driver, Driver):
                stack.callback(driver.close)


@pytest.fixture
def driver(driver_of: Callable[[str], Driver], request: pytest.FixtureRequest) -> Driver:
    """The client under test (the parameter is its name)."""
    return driver_of(request.param)


@pytest.fixture
def helper(driver_of: Callable[[str], Driver]) -> Driver:
    """The client that sets the scene and checks it, where another is under test."""
    return driver_of("confluent-kafka")


@pytest.fixture
def reader(driver_of: Callable[[str], Driver]) -> Driver:
    """The client that reads committed metadata as others see it."""
    return driver_of("kafka-python")


@pytest.fixture(scope="package")
def registry_link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    """A broker that serves the schema registry, and what its clients need to know."""
    from compat.registry import Link
    from compat.registry.samples import descriptors

    if realm() is not None:
        pytest.skip("the registry's clients connect without credentials")
    address = f"127.0.0.1:{free_port()}"
    configs = {"registry.enable": "true", "registry.listener": address, **QUICK_GROUPS}
    directory = tmp_path_factory.mktemp("registry")
    with PenstockProcess(directory, configs=configs) as broker:
        yield Link(
            bootstrap=broker.bootstrap, registry=f"http://{address}", descriptors=descriptors()
        )


@pytest.fixture(scope="package")
def registry_client(registry_link: Link) -> Iterator[Callable[[str], RegistryClient]]:
    """Clients of the schema registry by name, each started when it is first requested."""
    from compat.registry import CLIENTS

    started: dict[str, RegistryClient] = {}

    def get(name: str) -> RegistryClient:
        if name not in started:
            try:
                started[name] = CLIENTS[name](registry_link)
            except PartMissing as error:
                missing(error)
        return started[name]

    with ExitStack() as stack:
        yield get
        for client in started.values():
            stack.callback(client.close)


@pytest.fixture
def client(
    registry_client: Callable[[str], RegistryClient], request: pytest.FixtureRequest
) -> RegistryClient:
    """The client of the schema registry under test (the parameter is its name)."""
    return registry_client(request.param)


@pytest.fixture
def name() -> str:
    """A name that nothing else has."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(server: Server, helper: Driver, name: str) -> str:
    """A new topic of six partitions."""
    helper.create_topic(name, 6, {})
    # Apache Kafka's partitions answer a little after it says that they are made
    eventually(lambda: served(server.bootstrap, name, 6), lambda: f"{name} has no leaders yet")
    return name


@pytest.fixture
def now_ms() -> int:
    """The time, as records carry it."""
    return int(time.time() * 1000)
