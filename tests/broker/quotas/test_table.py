"""Quotas that apply to clients, and shared meters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from penstock.broker.quotas.entities import text_of
from penstock.broker.quotas.table import CLIENTS_MAX, METERS_MAX, QuotaTable, Windows

WINDOWS = Windows(samples=11, window_ms=1000)
ORDER: list[Mapping[str, str | None]] = [
    {"user": "u", "client-id": "c"},
    {"user": "u", "client-id": None},
    {"user": "u"},
    {"user": None, "client-id": "c"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "c"},
    {"client-id": None},
]
"""From the most to the least specific one that bounds the client c of the user u (KIP-55)."""


def table_of(*entities: tuple[Mapping[str, str | None], Mapping[str, float]]) -> QuotaTable:
    table = QuotaTable(rates=WINDOWS, mutations=WINDOWS)
    replace(table, *entities)
    return table


def replace(
    table: QuotaTable, *entities: tuple[Mapping[str, str | None], Mapping[str, float]]
) -> None:
    configs = {
        ("quota", text_of(entity)): {key: repr(value) for key, value in quotas.items()}
        for entity, quotas in entities
    }
    table.replace({**configs, ("other", "x"): {"producer_byte_rate": "1"}})


def quota_of(table: QuotaTable, user: str, client_id: str) -> float | None:
    meter = table.bounds(user, client_id).produce
    return None if meter is None else meter.quota


@pytest.mark.parametrize(
    "left", [set(levels) for n in range(9) for levels in itertools.combinations(range(8), n)]
)
def test_the_most_specific_quota_holds(left: set[int]) -> None:
    """Run over all subsets of the kinds of quotas."""
    entities = [(ORDER[level], {"producer_byte_rate": float(level + 1)}) for level in left]
    wanted = min(left) + 1 if left else None
    assert quota_of(table_of(*entities), "u", "c") == wanted


def test_quotas_of_other_entities_do_not_apply() -> None:
    table = table_of(
        ({"user": "v", "client-id": "c"}, {"producer_byte_rate": 1}),
        ({"user": "v"}, {"producer_byte_rate": 2}),
        ({"client-id": "d"}, {"producer_byte_rate": 3}),
        ({"user": "u", "client-id": "d"}, {"consumer_byte_rate": 4}),
    )
    assert quota_of(table, "u", "c") is None
    assert table.bounds("u", "d").fetch is not None
    assert quota_of(table, "u", "d") == 3


@pytest.mark.parametrize(
    ("entity", "shared", "apart"),
    [
        ({"user": "u", "client-id": "c"}, [("u", "c")], []),
        ({"user": "u", "client-id": None}, [("u", "c")], [("u", "d")]),
        ({"user": "u"}, [("u", "c"), ("u", "d"), ("u", "")], []),
        ({"user": None, "client-id": "c"}, [("u", "c")], [("v", "c")]),
        ({"user": None, "client-id": None}, [("u", "c")], [("v", "c"), ("u", "d")]),
        ({"user": None}, [("u", "c"), ("u", "d")], [("v", "c")]),
        ({"client-id": "c"}, [("u", "c"), ("v", "c")], []),
        ({"client-id": None}, [("u", "c"), ("v", "c")], [("u", "d"), ("u", "")]),
    ],
)
def test_clients_of_an_entity_share_a_quota(
    entity: Mapping[str, str | None],
    shared: list[tuple[str, str]],
    apart: list[tuple[str, str]],
) -> None:
    table = table_of((entity, {"producer_byte_rate": 1}))
    meters = {id(table.bounds(*client).produce) for client in shared}
    assert len(meters) == 1
    others = [table.bounds(*client).produce for client in apart]
    assert None not in others
    assert len({id(meter) for meter in others} | meters) == len(apart) + 1


def test_an_empty_client_id_is_one_like_others() -> None:
    table = table_of(
        ({"user": "u"}, {"producer_byte_rate": 1}),
        ({"user": "u", "client-id": None}, {"producer_byte_rate": 2}),
    )
    assert quota_of(table, "u", "") == 2


def test_what_was_used_stays_known_under_another_quota() -> None:
    table = table_of(({"user": "u"}, {"producer_byte_rate": 10}))
    meter = table.bounds("u", "c").produce
    assert meter is not None
    meter.record(1000, 0)
    assert meter.wait_ms(0) > 0
    replace(table, ({"user": "u"}, {"producer_byte_rate": 1000}))
    after = table.bounds("u", "c").produce
    assert after is not None
    assert (after.rate(0), after.wait_ms(0)) == (100, 0)
    replace(table)
    assert (table.bounds("u", "c").produce, table.bounds_clients) == (None, False)
    assert list(table.used(0)) == []


def test_addresses_have_quotas_of_their_own() -> None:
    table = table_of(
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5}),
        ({"ip": None}, {"connection_creation_rate": 7}),
    )
    one, two, three = (table.accepts(f"10.0.0.{last}") for last in (1, 2, 3))
    assert one is not None
    assert two is not None
    assert (one.quota, two.quota) == (5, 7)
    assert two is not three
    assert two is table.accepts("10.0.0.2")
    assert (table.bounds_addresses, table.bounds_clients) == (True, False)
    replace(table, ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5}))
    assert table.accepts("10.0.0.2") is None


def test_what_is_known_is_bounded_and_the_busy_ones_stay() -> None:
    table = table_of(({"client-id": None}, {"producer_byte_rate": 10}))
    busy = table.bounds("u", "busy").produce
    assert busy is not None
    for number in range(METERS_MAX + CLIENTS_MAX):
        busy.record(1, number)
        meter = table.bounds("u", str(number)).produce
        assert meter is not None
        meter.record(1, number)
        if number % 1000 == 0:
            assert table.bounds("u", "busy").produce is busy
    assert len(list(table.used(0))) <= METERS_MAX
    assert len(table._clients) <= CLIENTS_MAX
