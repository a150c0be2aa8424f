"""The registry's service: changes of several brokers over one control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import pytest

from penstock.control import MemoryControlPlane
from penstock.control.values.errors import ControlUnavailable
from penstock.control.values.registry import RegistryRow
from penstock.registry import decisions, service
from penstock.registry.errors import (
    IncompatibleSchema,
    OperationNotPermitted,
    RejectedSchema,
)
from penstock.registry.service import SchemaRegistry, TooManyChanges
from penstock.registry.values import GLOBAL, Config, Reference, Schema, Subject, parse_subject

ORDERS = parse_subject("orders-value")


def record(*fields: str, name: str = "Order") -> Schema:
    """An Avro record whose fields have defaults."""
    listed = [{"name": field, "type": "int", "default": 0} for field in fields]
    text = json.dumps({"type": "record", "name": name, "fields": listed})
    return Schema(schema=text)


class Control(MemoryControlPlane):
    """A control plane whose writes can fail, before or after they took effect."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = ""

    async def write_registry_rows(self, changes: Sequence[RegistryRow], *, expected: int) -> int:
        if self.fails == "before":
            raise ControlUnavailable("the database is away")
        written = await super().write_registry_rows(changes, expected=expected)
        if self.fails == "after":
            raise ControlUnavailable("the connection was lost")
        return written


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    plane = Control()
    await plane.start()
    yield plane
    await plane.close()


async def registry_on(control: Control) -> SchemaRegistry:
    made = SchemaRegistry(control)
    await made.start()
    return made


@pytest.fixture
async def first(control: Control) -> AsyncIterator[SchemaRegistry]:
    made = await registry_on(control)
    yield made
    await made.stop()


@pytest.fixture
async def second(control: Control) -> AsyncIterator[SchemaRegistry]:
    made = await registry_on(control)
    yield made
    await made.stop()


async def test_equal_schemas_of_two_brokers_have_one_id(
    first: SchemaRegistry, second: SchemaRegistry
) -> None:
    made = await asyncio.gather(
        *[broker.register(ORDERS, record("a")) for broker in (first, second) for _ in range(5)]
    )
    assert {(version.version.id, version.number) for version in made} == {(1, 1)}


async def test_different_schemas_of_two_brokers_have_different_ids(
    first: SchemaRegistry, second: SchemaRegistry
) -> None:
    subjects = [Subject(".", f"s{number}") for number in range(40)]
    made = await asyncio.gather(
        *[
            (first, second)[number % 2].register(subject, record(f"f{number}"))
            for number, subject in enumerate(subjects)
        ]
    )
    assert sorted(version.version.id for version in made) == list(range(1, 41))
    for broker in (first, second):
        await broker.refresh()
        assert broker.state.highest_id(".") == 40
        assert [subject.name for subject in broker.state.subjects()] == sorted(
            s.name for s in subjects
        )


async def test_versions_of_one_subject_follow_each_other(
    first: SchemaRegistry, second: SchemaRegistry
) -> None:
    made = await asyncio.gather(
        *[
            (first, second)[number % 2].register(ORDERS, record("a", f"f{number}"))
            for number in range(12)
        ]
    )
    assert sorted(version.number for version in made) == list(range(1, 13))
    assert sorted(version.version.id for version in made) == list(range(1, 13))


async def test_changes_wait_while_others_are_stored_and_share_one_write(
    control: Control, first: SchemaRegistry
) -> None:
    before = await control.registry_version()
    await asyncio.gather(
        *[first.register(Subject(".", f"s{number}"), record("a")) for number in range(100)]
    )
    assert await control.registry_version() - before <= 3


async def test_an_incompatible_schema_names_path_rule_and_an_edit(first: SchemaRegistry) -> None:
    await first.register(ORDERS, record("a"))
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "b", "type": "int"}]})
    with pytest.raises(IncompatibleSchema) as caught:
        await first.register(ORDERS, Schema(schema=text))
    message = str(caught.value)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in message
    assert "/fields/0" in message
    edit = message.partition("proposed edit, which is compatible: ")[2].rpartition("}]")[0]
    made = await first.register(ORDERS, Schema(schema=edit))
    assert made.number == 2


async def test_a_failed_write_leaves_no_trace(control: Control, first: SchemaRegistry) -> None:
    control.fails = "before"
    with pytest.raises(ControlUnavailable):
        await first.register(ORDERS, record("a"))
    assert first.state.subjects() == []
    control.fails = ""
    other = await first.register(Subject(".", "other"), record("b"))
    assert other.version.id == 1
    assert [subject.name for subject in first.state.subjects()] == ["other"]


async def test_a_write_whose_answer_was_lost_is_found_when_it_is_repeated(
    control: Control, first: SchemaRegistry
) -> None:
    control.fails = "after"
    with pytest.raises(ControlUnavailable):
        await first.register(ORDERS, record("a"))
    assert first.state.subjects() == [], "it is unknown whether it took effect"
    control.fails = ""
    again = await first.register(ORDERS, record("a"))
    assert (again.version.id, again.number) == (1, 1)


async def test_a_restarted_broker_has_what_was_stored(
    control: Control, first: SchemaRegistry
) -> None:
    address = record("street", name="Address")
    await first.register(Subject(".test", "address"), address)
    user = Schema(
        schema=json.dumps(
            {"type": "record", "name": "U", "fields": [{"name": "a", "type": "Address"}]}
        ),
        references=(Reference(name="Address", subject="address", version=-1),),
        metadata={"properties": {"owner": "ü"}},
        rule_set={"domainRules": []},
    )
    made = await first.register(Subject(".test", "user"), user)
    await first.change(partial(decisions.set_config, subject=GLOBAL, config=Config(alias="x")))
    await first.change(partial(decisions.set_mode, subject=GLOBAL, mode="READONLY", force=False))
    again = await registry_on(control)
    found = again.state.version(Subject(".test", "user"), 1)
    assert found == made
    assert found.schema.references == (Reference(name="Address", subject="address", version=1),)
    assert again.state.modes == {GLOBAL: "READONLY"}
    assert again.state.configs == {GLOBAL: Config(alias="x")}
    assert [
        version.subject.name for version in again.state.referrers_of(Subject(".test", "address"), 1)
    ] == ["user"]
    await again.stop()


async def test_a_schema_is_checked_again_if_its_subject_changed_meanwhile(
    first: SchemaRegistry, second: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await first.register(ORDERS, record("a"))
    await second.refresh()
    checked = SchemaRegistry._check

    async def slow(self: SchemaRegistry, *given: Any) -> Any:
        key = await checked(self, *given)
        if self is second and first.state.versions == 1:
            await first.register(ORDERS, record("a", "b"))
        return key

    monkeypatch.setattr(SchemaRegistry, "_check", slow)
    made = await second.register(ORDERS, record("a", "c"))
    assert (made.number, made.version.id) == (3, 3)


async def test_a_missing_reference_is_named(first: SchemaRegistry) -> None:
    given = Schema(
        schema='{"type":"record","name":"U","fields":[{"name":"a","type":"Address"}]}',
        references=(Reference(name="Address", subject="address", version=3),),
    )
    with pytest.raises(RejectedSchema, match="'Address' names subject 'address' version 3"):
        await first.register(ORDERS, given)


async def test_a_read_only_subject_is_not_changed(first: SchemaRegistry) -> None:
    await first.change(partial(decisions.set_mode, subject=ORDERS, mode="READONLY", force=False))
    with pytest.raises(OperationNotPermitted, match="'orders-value' is in read-only mode"):
        await first.register(ORDERS, record("a"))


async def test_waiting_changes_are_bounded(
    first: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAITING_CHANGES_MAX", 3)
    results = await asyncio.gather(
        *[first.register(Subject(".", f"s{number}"), record("a")) for number in range(6)],
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, TooManyChanges)]
    assert 1 <= len(refused) <= 3
    assert len(first.state.subjects()) == 6 - len(refused)


async def test_changes_and_conflicts_are_counted(
    first: SchemaRegistry, second: SchemaRegistry
) -> None:
    await first.register(ORDERS, record("a"))
    await second.register(Subject(".", "other"), record("b"))
    with pytest.raises(IncompatibleSchema):
        await first.register(ORDERS, Schema(schema='"string"'))
    counts = {sample.metric.name: sample.value for sample in second.samples()}
    assert counts["penstock_schema_registry_subjects"] == 2
    assert counts["penstock_schema_registry_versions"] == 2
    assert counts["penstock_schema_registry_changes_total"] == 1
    counts = {sample.metric.name: sample.value for sample in first.samples()}
    assert counts["penstock_schema_registry_incompatible_total"] == 1
    assert counts["penstock_schema_registry_conflicts_total"] == 0


async def test_a_refusal_of_long_names_is_short(first: SchemaRegistry) -> None:
    await first.register(ORDERS, record("a"))
    fields = [{"name": "f" * 400 + str(number), "type": "int"} for number in range(30)]
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    with pytest.raises(IncompatibleSchema) as caught:
        await first.register(ORDERS, Schema(schema=text))
    assert "20 more incompatibilities" in str(caught.value)
    properties = {"k" * 100_000: {"type": "string"}}
    closed = {"type": "object", "additionalProperties": False}
    subject = Subject(".", "long")
    text = json.dumps({**closed, "properties": properties})
    await first.register(subject, Schema(schema=text, schema_type="JSON"))
    with pytest.raises(IncompatibleSchema) as caught:
        await first.register(subject, Schema(schema=json.dumps(closed), schema_type="JSON"))
    assert len(str(caught.value)) < 10_000
