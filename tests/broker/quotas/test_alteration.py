"""Valid and invalid quotas, and entities that filters match."""

from __future__ import annotations

import math

import pytest

from penstock.base.errors import InvalidError
from penstock.broker.net.errors import BadRequest
from penstock.broker.quotas.entities import (
    Component,
    QuotaChange,
    UnknownEntityType,
    altered,
    entity_of,
    matching,
    of_text,
    text_of,
)

ALICE = {"user": "alice"}
ADDRESS = {"ip": "10.0.0.1"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "is empty"),
        ([("group", "g")], "quota entity type 'group' is unknown; must be user, client-id, ip"),
        ([("user", "")], "user of a quota entity must not be empty"),
        ([("user", "a"), ("user", "b")], "has two values for user"),
        ([("ip", "10.0.0.1"), ("user", "a")], "with ip must not have user"),
        ([("ip", "localhost")], "'localhost' is not an IP address"),
    ],
)
def test_invalid_entities_are_rejected(parts: list[tuple[str, str | None]], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        entity_of(parts)


@pytest.mark.parametrize(
    "parts",
    [
        [("user", 'ü\0"'), ("client-id", None)],
        [("client-id", "c"), ("user", "u")],
        [("user", None)],
        [("ip", None)],
        [("ip", "::1")],
    ],
)
def test_an_entity_comes_back_from_its_text(parts: list[tuple[str, str | None]]) -> None:
    entity = entity_of(parts)
    assert entity == dict(parts)
    assert of_text(text_of(entity)) == entity
    assert text_of(entity) == text_of(dict(reversed(entity.items())))


def test_one_address_is_one_entity() -> None:
    assert entity_of([("ip", "0:0::0001")]) == {"ip": "::1"}


def test_quotas_are_set_and_removed() -> None:
    changes = [
        QuotaChange(key="producer_byte_rate", value=1024),
        QuotaChange(key="request_percentage", value=12.5),
        QuotaChange(key="consumer_byte_rate", value=None),
        QuotaChange(key="controller_mutation_rate", value=None),
    ]
    after = altered(ALICE, {"consumer_byte_rate": "5.0"}, changes)
    assert after == {"producer_byte_rate": "1024.0", "request_percentage": "12.5"}
    assert altered(ADDRESS, {}, [QuotaChange(key="connection_creation_rate", value=7)]) == {
        "connection_creation_rate": "7.0"
    }


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (
            ALICE,
            "speed",
            1.0,
            "speed: unknown quota of users and client ids",
        ),
        (ALICE, "speed", None, "speed: unknown quota"),
        (ALICE, "connection_creation_rate", 1.0, "unknown quota"),
        (ADDRESS, "producer_byte_rate", 1.0, "unknown quota of an ip; must be connection_creation"),
        (ALICE, "producer_byte_rate", 0.0, "0 must be above 0"),
        (ALICE, "producer_byte_rate", -1.0, "-1 must be above 0"),
        (ALICE, "producer_byte_rate", math.nan, "nan must be above 0"),
        (ALICE, "request_percentage", math.inf, "inf must be above 0 and finite"),
        (ALICE, "consumer_byte_rate", 1.5, "1.5 must be a whole number"),
        (ALICE, "consumer_byte_rate", 1e19, "must be at most 9223372036854775807"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "must be at most 2147483647"),
    ],
)
def test_invalid_values_are_rejected(
    entity: dict[str, str | None], key: str, value: float | None, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        altered(entity, {}, [QuotaChange(key=key, value=value)])


def test_all_errors_are_reported_at_once() -> None:
    changes = [
        QuotaChange(key="a", value=1),
        QuotaChange(key="producer_byte_rate", value=1),
        QuotaChange(key="consumer_byte_rate", value=0),
    ]
    with pytest.raises(BadRequest, match=r"user \(default\): a: .*; consumer_byte_rate = 0 must"):
        altered({"user": None}, {}, changes)


ENTITIES: list[dict[str, str | None]] = [
    {"user": "alice"},
    {"user": None},
    {"user": "alice", "client-id": "c"},
    {"user": "bob", "client-id": None},
    {"client-id": "c"},
    {"ip": "10.0.0.1"},
    {"ip": None},
]


def found(*components: Component, strict: bool) -> list[int]:
    configs = {
        ("quota", text_of(entity)): {"producer_byte_rate": f"{number}.0"}
        for number, entity in enumerate(ENTITIES)
    }
    configs["client-metrics", "m"] = {"interval.ms": "1"}
    results = list(matching(configs, components, strict=strict))
    numbers = [int(values["producer_byte_rate"]) for _, values in results]
    assert [entity for entity, _ in results] == [ENTITIES[number] for number in numbers]
    return numbers


@pytest.mark.parametrize(
    ("components", "loose", "strict"),
    [
        ([], list(range(7)), []),
        ([("user", 0, "alice")], [0, 2], [0]),
        ([("user", 1, None)], [1], [1]),
        ([("user", 2, None)], [0, 1, 2, 3], [0, 1]),
        ([("user", 2, None), ("client-id", 2, None)], [2, 3], [2, 3]),
        ([("user", 0, "bob"), ("client-id", 1, None)], [3], [3]),
        ([("client-id", 0, "c")], [2, 4], [4]),
        ([("ip", 2, None)], [5, 6], [5, 6]),
        ([("ip", 0, "10.0.0.2")], [], []),
    ],
)
def test_what_a_filter_means(
    components: list[tuple[str, int, str | None]], loose: list[int], strict: list[int]
) -> None:
    wanted = [Component(kind=kind, match=match, name=name) for kind, match, name in components]
    assert found(*wanted, strict=False) == loose
    assert found(*wanted, strict=True) == strict


@pytest.mark.parametrize(
    ("components", "error", "message"),
    [
        ([("", 2, None)], BadRequest, "has no entity type"),
        ([("group", 2, None)], UnknownEntityType, "type 'group' is unknown"),
        ([("user", 2, None), ("user", 1, None)], BadRequest, "two components for user"),
        ([("user", 3, None)], BadRequest, "match type 3 is unknown"),
        ([("user", 0, None)], BadRequest, "type 0 needs a name"),
        ([("user", 1, "a")], BadRequest, "type 1 must not have a name"),
        ([("user", 2, "a")], BadRequest, "type 2 must not have a name"),
        ([("ip", 2, None), ("user", 2, None)], BadRequest, "with ip must not have user"),
    ],
)
def test_filters_that_contradict_themselves(
    components: list[tuple[str, int, str | None]], error: type[InvalidError], message: str
) -> None:
    wanted = [Component(kind=kind, match=match, name=name) for kind, match, name in components]
    with pytest.raises(error, match=message):
        found(*wanted, strict=False)
