"""Schemas that follow from the source's registry into the target's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.schemas import SchemaClient, StoredSchema
from penstock.connect.status import read_status
from penstock.mirror.mirror_file import load
from penstock.testing import Broker
from tests.mirror.bed import mirror_file, run_command

pytestmark = pytest.mark.long
RECORD = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"%s}]}'


@pytest.fixture
def clusters() -> Iterator[tuple[Broker, Broker]]:
    settings = {"registry.enable": True, "registry.listener": "127.0.0.1:0"}
    with Broker(settings) as source, Broker(settings) as target:
        yield source, target


def schemas(client: SchemaClient, *, deleted: bool = False) -> dict[str, Any]:
    return {
        f"{subject} {version}": client.version(subject, version, deleted=deleted)
        for subject in client.subjects(deleted=deleted)
        for version in client.versions(subject, deleted=deleted)
    }


def test_schemas_changes_and_deletions_follow(
    tmp_path: Path, clusters: tuple[Broker, Broker]
) -> None:
    source, target = clusters
    urls = [f"http://{broker.registry_address}" for broker in clusters]
    keys = [f'registry = "{url}"' for url in urls]
    file = mirror_file(tmp_path, "dr", source, target, "identity", *keys)
    with SchemaClient(urls[0]) as left, SchemaClient(urls[1]) as right:
        left.register("orders-value", StoredSchema(schema=RECORD % ""))
        left.register("items-value", StoredSchema(schema='"string"'))
        assert "import schemas: 2 registered" in run_command("run", file, 0, "--once")
        assert schemas(right) == schemas(left)
        left.register("orders-value", StoredSchema(schema=RECORD % ',"default":0'))
        left.request("DELETE", ("subjects", "items-value"))
        left.request("PUT", ("config", "orders-value"), {"compatibility": "FULL"})
        run_command("run", file, 0, "--once")
        assert schemas(right) == schemas(left)
        assert schemas(right, deleted=True) == schemas(left, deleted=True)
        assert right.request("GET", ("config", "orders-value"))["compatibilityLevel"] == "FULL"
        right.register("other-value", StoredSchema(schema='"int"'))
        left.register("another-value", StoredSchema(schema='"long"'))
        run_command("run", file, 0, "--once")
        status = read_status(load(file).state)
        assert status is not None
        assert "not imported" in status.facts["schemas"]


def test_both_registries_are_needed(tmp_path: Path, clusters: tuple[Broker, Broker]) -> None:
    file = mirror_file(tmp_path, "dr", *clusters, "identity", 'registry = "http://127.0.0.1:1"')
    assert "target.registry: is missing" in run_command("validate", file, 1)
