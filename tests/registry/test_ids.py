"""Ids that brokers check produced records against, as registrations and deletions change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from uuid import UUID

import pytest

from penstock.control import MemoryControlPlane
from penstock.records.columnar.schema_ids import SchemaId
from penstock.registry import decisions, ids
from penstock.registry.ids import RegisteredIds
from penstock.registry.service import SchemaRegistry
from penstock.registry.values import Config, Schema, Subject

ORDERS = Subject(".", "orders-value")
OTHER = Subject(".", "other-value")
UNKNOWN_GUID = UUID(int=1)


def record(name: str) -> Schema:
    return Schema(schema=f'{{"type":"record","name":"{name}","fields":[]}}')


class Control(MemoryControlPlane):
    """Control plane whose answer to a question for the version can be held back."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def registry_version(self) -> int:
        found = await super().registry_version()
        self.asked.set()
        await self.may_answer.wait()
        return found


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    plane = Control()
    await plane.start()
    yield plane
    await plane.close()


@pytest.fixture
def registry(control: Control) -> SchemaRegistry:
    """A registry that is not polling, as one of a broker that starts."""
    return SchemaRegistry(control)


@pytest.fixture
def other(control: Control) -> SchemaRegistry:
    return SchemaRegistry(control)


async def test_ids_and_guids_of_the_default_context_are_registered(
    registry: SchemaRegistry,
) -> None:
    known = RegisteredIds(registry)
    assert known.missing([1], None) == [1]
    made = await registry.register(ORDERS, record("A"))
    elsewhere = await registry.register(Subject(".test", "orders-value"), record("B"))
    guid = made.version.guid
    assert known.missing([1, guid], None) == []
    asked: list[SchemaId] = [2, 0, 2**32 - 1, UNKNOWN_GUID, elsewhere.version.guid, 1]
    assert known.missing(asked, None) == asked[:-1]


async def test_ids_of_a_subject_are_those_of_its_versions(registry: SchemaRegistry) -> None:
    known = RegisteredIds(registry)
    assert known.missing([1], "orders-value") == [1]
    first = await registry.register(ORDERS, record("A"))
    assert known.missing([1, first.version.guid], "orders-value") == []
    second = await registry.register(OTHER, record("B"))
    assert known.missing([1, 2], "orders-value") == [2]
    assert known.missing([1, 2, first.version.guid], "other-value") == [1, first.version.guid]
    await registry.register(
        ORDERS, Schema(schema='{"type":"record","name":"A","fields":[],"doc":"d"}')
    )
    assert known.missing([1, 3], "orders-value") == []
    assert second.version.id == 2


async def test_an_alias_stands_for_its_subject(registry: SchemaRegistry) -> None:
    known = RegisteredIds(registry)
    await registry.register(ORDERS, record("A"))
    assert known.missing([1], "short-value") == [1]
    alias = Config(alias="orders-value")
    await registry.change(
        partial(decisions.set_config, subject=Subject(".", "short-value"), config=alias)
    )
    assert known.missing([1], "short-value") == []


async def test_a_deleted_version_counts_for_any_subject_until_it_is_removed(
    registry: SchemaRegistry,
) -> None:
    known = RegisteredIds(registry)
    made = await registry.register(ORDERS, record("A"))
    delete = partial(decisions.delete_subject, subject=ORDERS)
    await registry.change(partial(delete, permanent=False))
    pair: list[SchemaId] = [1, made.version.guid]
    assert known.missing(pair, None) == []
    assert known.missing(pair, "orders-value") == pair
    await registry.change(partial(delete, permanent=True))
    assert known.missing(pair, None) == pair


async def test_ids_of_another_broker_are_known_after_a_refresh(
    registry: SchemaRegistry, other: SchemaRegistry
) -> None:
    known = RegisteredIds(other)
    await registry.register(ORDERS, record("A"))
    assert known.missing([1], None) == [1]
    await known.refresh()
    assert known.missing([1], None) == []
    assert known.missing([1], "orders-value") == []


async def test_a_refresh_reads_what_was_registered_while_another_one_ran(
    control: Control, registry: SchemaRegistry, other: SchemaRegistry
) -> None:
    known = RegisteredIds(other)
    await registry.register(OTHER, record("B"))
    await known.refresh()
    control.asked.clear()
    control.may_answer.clear()
    early = asyncio.create_task(known.refresh())
    await control.asked.wait()
    rows = asyncio.create_task(registry.register(ORDERS, record("A")))
    while await MemoryControlPlane.registry_version(control) == 1:
        await asyncio.sleep(0)
    late = [asyncio.create_task(known.refresh()) for _ in range(3)]
    await asyncio.sleep(0)
    control.may_answer.set()
    await asyncio.gather(*late)
    assert known.missing([1, 2], None) == []
    await asyncio.gather(early, rows)


async def test_ids_of_few_subjects_are_kept(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids, "SUBJECTS_MAX", 2)
    known = RegisteredIds(registry)
    await registry.register(ORDERS, record("A"))
    for name in ("a", "orders-value", "b", "orders-value", "c", "orders-value"):
        assert known.missing([1], name) == ([] if name == "orders-value" else [1])
    assert known._of.cache_info() == (2, 4, 2, 2), "hits, misses, limit, size"
