"""Registries in threads of the test, and snapshots to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.apps.process.configuration import Given, configure
from penstock.apps.process.wiring import address
from penstock.apps.registry.standalone import StandaloneRegistry
from penstock.apps.schema.connection import Connections, RegistryAddress
from penstock.apps.schema.snapshot import RegisteredVersion, Snapshot, read_registry
from penstock.client.schemas import SchemaReference, StoredSchema
from penstock.testing.loop_thread import End, LoopThread
from tests.apps.conftest import Ran, Run

ORDER = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
NAMED_ORDER = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"name","type":["null","string"],"default":null}]}'
)
BASKET = '{"type":"record","name":"Basket","fields":[{"name":"first","type":"Order"}]}'


@pytest.fixture
def new_registry(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts registries, each with a directory of its own; they end with the test."""
    with ExitStack() as running:

        def start() -> str:
            place = tmp_path / f"registry-{len(list(tmp_path.iterdir()))}"
            flags = {"log.dirs": str(place), "registry.listener": "127.0.0.1:0"}
            given = {name: Given(value, "test") for name, value in flags.items()}
            configuration = configure(file=None, environment={}, flags=given, has_topics=False)

            async def begin() -> tuple[str, End]:
                standalone = StandaloneRegistry(configuration)
                bound = await standalone.start()
                return f"http://{address(bound)}", standalone.stop

            thread = LoopThread("registry", begin)
            url = thread.start()
            running.callback(thread.stop)
            return url

        yield start


@pytest.fixture
def registry(new_registry: Callable[[], str]) -> str:
    """The URL of an empty registry."""
    return new_registry()


@pytest.fixture
def schema(
    bare: Run, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """Runs `penstock schema` with the registry; journals of imports are in the test's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_REGISTRY", registry)
    return lambda *words, stdin="": bare("schema", *words, stdin=stdin)


def version(
    subject: str,
    number: int,
    schema_id: int,
    text: str = ORDER,
    *,
    kind: str = "AVRO",
    references: tuple[tuple[str, str, int], ...] = (),
    deleted: bool = False,
) -> RegisteredVersion:
    """A version; references are of the form (name, subject, version)."""
    return RegisteredVersion(
        subject=subject,
        version=number,
        id=schema_id,
        deleted=deleted,
        schema=StoredSchema(
            schema=text,
            schema_type=kind,
            references=tuple(
                SchemaReference(name=name, subject=target, version=of)
                for name, target, of in references
            ),
        ),
    )


def snapshot(*versions: RegisteredVersion) -> Snapshot:
    return Snapshot(versions={found.key: found for found in versions})


def shop() -> Snapshot:
    """Two contexts, references, a deleted version, configs and modes."""
    found = snapshot(
        version("orders-value", 1, 7),
        version("orders-value", 2, 8, NAMED_ORDER, deleted=True),
        version("orders-value", 4, 7),
        version("baskets-value", 1, 9, BASKET, references=(("Order", "orders-value", 1),)),
        version("copies", 3, 7),
        version(":.test:orders-value", 1, 1, '{"type":"object"}', kind="JSON"),
    )
    found.configs = {"": {"compatibilityLevel": "FULL"}, "copies": {"normalize": True}}
    found.modes = {"copies": "READONLY", ":.test:": "READONLY"}
    return found


def content(url: str) -> Snapshot:
    """Everything that a registry has."""
    with Connections(RegistryAddress(url=url), 2) as connections:
        return read_registry(connections)
