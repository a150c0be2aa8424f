"""Replay of `_schemas`, with records as Confluent's registry and Karapace write them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.schema.schemas_topic import NotSchemasTopic, Replay, read_topic, replay
from penstock.client import Client
from tests.apps.schema.conftest import ORDER

Record = tuple[bytes | None, bytes | None]


def record(value: object, **key: object) -> Record:
    return json.dumps(key).encode(), None if value is None else json.dumps(value).encode()


def stored(subject: str, version: int, schema_id: int, *, magic: int = 1, **more: Any) -> Record:
    value = {"subject": subject, "version": version, "id": schema_id, "schema": ORDER, **more}
    return record(value, keytype="SCHEMA", subject=subject, version=version, magic=magic)


def tombstone(subject: str, version: int) -> Record:
    return record(None, keytype="SCHEMA", subject=subject, version=version, magic=1)


def deletion(subject: str, version: int) -> Record:
    value = {"subject": subject, "version": version}
    return record(value, keytype="DELETE_SUBJECT", subject=subject, magic=0)


def numbers(state: Replay) -> dict[tuple[str, int], tuple[int, bool]]:
    return {key: (found.id, found.deleted) for key, found in state.found.versions.items()}


def test_the_last_record_of_a_key_counts() -> None:
    state = replay(
        [
            stored("a", 1, 1, magic=0),
            stored("a", 2, 2, deleted=False),
            stored("a", 2, 2, deleted=True),
            stored("b", 1, 3),
            tombstone("b", 1),
            stored("c", 1, 1),
            (b'{"magic":1,"version":1,"subject":"d","keytype":"SCHEMA"}', stored("d", 1, 4)[1]),
        ]
    )
    assert numbers(state) == {
        ("a", 1): (1, False),
        ("a", 2): (2, True),
        ("c", 1): (1, False),
        ("d", 1): (4, False),
    }
    assert not state.skipped


def test_deleted_subjects_can_come_back() -> None:
    state = replay(
        [
            stored("a", 1, 1),
            stored("a", 2, 2),
            stored("ab", 1, 3),
            deletion("a", 2),
            deletion("unknown", 5),
            stored("a", 3, 1),
        ]
    )
    assert numbers(state) == {
        ("a", 1): (1, True),
        ("a", 2): (2, True),
        ("a", 3): (1, False),
        ("ab", 1): (3, False),
    }


def test_cleared_subjects_lose_their_deleted_versions() -> None:
    state = replay(
        [
            stored("a", 1, 1, deleted=True),
            stored("a", 2, 2),
            stored("b", 1, 3, deleted=True),
            stored(":.x:a", 1, 1, deleted=True),
            stored(":.x:b", 1, 2),
            record({"subject": "a"}, keytype="CLEAR_SUBJECT", subject="a", magic=0),
            record({"subject": ":.x:"}, keytype="CLEAR_SUBJECT", subject=":.x:", magic=0),
            record(None, keytype="CLEAR_SUBJECT", subject="b", magic=0),
        ]
    )
    assert set(state.found.versions) == {("a", 2), ("b", 1), (":.x:b", 1)}


def test_configs_and_modes() -> None:
    state = replay(
        [
            record({"compatibilityLevel": "FULL"}, keytype="CONFIG", subject=None, magic=0),
            record(
                {"subject": "a", "compatibilityLevel": "NONE", "normalize": True, "alias": None},
                keytype="CONFIG", subject="a", magic=0,
            ),
            record({"compatibilityLevel": "NONE"}, keytype="CONFIG", subject="b", magic=0),
            record(None, keytype="CONFIG", subject="b", magic=0),
            record({"mode": "READONLY"}, keytype="MODE", subject=None, magic=0),
            record({"mode": "IMPORT"}, keytype="MODE", subject=":.x:", magic=0),
            record({"mode": "IMPORT"}, keytype="MODE", subject="b", magic=0),
            (record(None, keytype="MODE", subject="b", magic=0)[0], b"null"),
        ]
    )  # fmt: skip
    assert state.found.configs == {
        "": {"compatibilityLevel": "FULL"},
        "a": {"compatibilityLevel": "NONE", "normalize": True},
    }
    assert state.found.modes == {"": "READONLY", ":.x:": "IMPORT"}


def test_the_content_of_a_schema_is_kept() -> None:
    references = [{"name": "Order", "subject": "a", "version": 1}]
    state = replay(
        [
            stored(
                ":.x:a", 1, 1, schemaType="PROTOBUF", references=references, md5="…",
                metadata={"properties": {"owner": "me"}}, ruleSet={"domainRules": []}, guid="…",
            ),
            stored("b", 1, 1, schemaType=None, references=None, metadata=None),
            stored(":.:c", 1, 1),
        ]
    )  # fmt: skip
    full = state.found.versions[":.x:a", 1].schema
    assert (full.schema_type, full.references[0].subject) == ("PROTOBUF", "a")
    assert full.metadata == {"properties": {"owner": "me"}}
    assert full.rule_set == {"domainRules": []}
    assert state.found.versions["b", 1].schema.schema_type == "AVRO"
    assert ("c", 1) in state.found.versions
    assert not state.skipped


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((None, None), "the record has no key"),
        ((None, b"{}"), "the record has no key"),
        ((b"not JSON", None), "the key is not JSON"),
        ((b"[" * 100_000, None), "the key is not JSON"),
        ((b"7", None), "the key is not a JSON object"),
        ((stored("a", 1, 1)[0], b"\xff"), "the value is not JSON"),
        ((stored("a", 1, 1)[0], b"[]"), "the value is not a JSON object"),
        (record({}, keytype="ASSOC", magic=0), "the key type ASSOC is unknown"),
        (record({}, subject="a"), "the key type None is unknown"),
        (stored("a", 1, 1, magic=2), "the key type SCHEMA has magic 2"),
        (stored("a", 0, 1), "a version below 1"),
        (stored("a", 1 << 40, 1), "or too large"),
        (stored("a\n", 1, 1), "control characters"),
        (stored("a", 1, "one"), "a field is missing or wrong"),  # type: ignore[arg-type]
        (record({"id": 1}, keytype="SCHEMA", subject="a", version=1), "missing or wrong"),
        (record({"subject": "a"}, keytype="DELETE_SUBJECT", subject="a"), "missing or wrong"),
        (record({}, keytype="MODE", subject="a"), "missing or wrong"),
    ],
)
def test_records_that_cannot_be_understood_are_counted(bad: Record, reason: str) -> None:
    state = replay([stored("ok", 1, 1), bad, bad])
    assert set(state.found.versions) == {("ok", 1)}
    ((found, count),) = state.skipped.items()
    assert reason in found
    assert count == 2


def test_records_without_effect_are_not_counted() -> None:
    context = record({"context": ".x"}, keytype="CONTEXT", tenant="default", context=".x", magic=0)
    state = replay([record(None, keytype="NOOP", magic=0), context])
    assert (state.records, dict(state.skipped), state.found.versions) == (2, {}, {})


KEYS = st.fixed_dictionaries(
    {"keytype": st.sampled_from(["SCHEMA", "CONFIG", "MODE", "DELETE_SUBJECT", "CLEAR_SUBJECT"])},
    optional={
        "subject": st.one_of(st.none(), st.sampled_from(["a", ":.x:b", ":bad", ""])),
        "version": st.one_of(st.integers(-1, 3), st.text(max_size=2)),
        "magic": st.integers(0, 1),
    },
)
VALUES = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(["subject", "version", "id", "schema", "references", "mode", "deleted"]),
        st.one_of(st.none(), st.integers(-1, 3), st.text(max_size=3), st.lists(st.integers())),
    ),
)


@given(st.lists(st.tuples(KEYS, VALUES), max_size=20))
def test_no_record_ends_the_replay(records: list[tuple[Any, Any]]) -> None:
    encoded = [(json.dumps(key).encode(), json.dumps(value).encode()) for key, value in records]
    state = replay(encoded)
    assert state.records == len(records)
    assert all(type(found.id) is int for found in state.found.versions.values())


# A real topic


def write(client: Client, topic: str, *records: Record) -> None:
    keys, values = zip(*records, strict=True)
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    client.write_arrow(topic, table, codec="zstd")


def test_transaction_markers_and_aborted_records_are_omitted(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        client.create_topic("schemas-replay", 1, {"cleanup.policy": "compact"})
        write(client, "schemas-replay", record(None, keytype="NOOP", magic=0), stored("a", 1, 1))
        producer = client.transactional("schemas-replay")
        for number, committed in ((2, True), (3, False)):
            producer.begin()
            (key, value) = stored("a", number, number)
            producer.write_arrow("schemas-replay", pa.table({"key": [key], "value": [value]}))
            producer.commit() if committed else producer.abort()
        write(client, "schemas-replay", (b"odd", b"odd"))
        state = read_topic(client, "schemas-replay")
    assert numbers(state) == {("a", 1): (1, False), ("a", 2): (2, False)}
    assert dict(state.skipped) == {"the key is not JSON": 1}
    assert state.records == 4


def test_other_topics_are_refused(bootstrap: str) -> None:
    with Client(bootstrap) as client:
        client.create_topic("schemas-two", 2)
        with pytest.raises(NotSchemasTopic, match="has 2 partitions"):
            read_topic(client, "schemas-two")
        client.create_topic("schemas-orders", 1)
        assert read_topic(client, "schemas-orders").records == 0
        write(client, "schemas-orders", (b"1", b"an order"))
        with pytest.raises(NotSchemasTopic, match="none of a schema registry"):
            read_topic(client, "schemas-orders")
