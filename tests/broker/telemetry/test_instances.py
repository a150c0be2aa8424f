"""Requests of client instances that are accepted or rejected, and their subscriptions."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from penstock.base.errors import PenstockError
from penstock.broker.net.errors import BadRequest, InvalidConfig
from penstock.broker.telemetry.subscriptions import (
    ATTRIBUTES,
    INSTANCES_MAX,
    Instance,
    Instances,
    Subscription,
    TelemetryTooLarge,
    TooEarly,
    UnknownSubscription,
    UnsupportedCompression,
    check_subscription,
    subscribed_metrics,
    subscription_of,
)

ONE = UUID(int=1)
CLIENT = dict.fromkeys(ATTRIBUTES, "x") | {"client_id": "etl-1", "client_software_name": "lib"}
WANTED = Subscription(metrics=("a.",), interval_ms=1000)


def instances(*subscriptions: Subscription) -> Instances:
    made = Instances(100)
    made.replace(subscriptions)
    return made


def push(
    known: Instances,
    now_ms: float,
    subscription_id: int,
    *,
    codec: int = 0,
    size_bytes: int = 1,
    ends: bool = False,
) -> Instance:
    return known.push(
        ONE, CLIENT, now_ms, subscription_id=subscription_id, codec=codec, size_bytes=size_bytes,
        ends=ends,
    )  # fmt: skip


def test_a_client_asks_then_pushes_once_per_interval() -> None:
    known = instances(WANTED)
    asked = known.ask(ONE, CLIENT, 0)
    assert (asked.metrics, asked.interval_ms) == (("a.",), 1000)
    push(known, 10, asked.subscription_id)
    with pytest.raises(TooEarly, match="before its interval of 1000 ms"):
        push(known, 1009, asked.subscription_id)
    push(known, 1010, asked.subscription_id)
    with pytest.raises(TooEarly, match="again before its interval"):
        known.ask(ONE, CLIENT, 2000)
    assert known.ask(ONE, CLIENT, 2010).subscription_id == asked.subscription_id


def test_the_last_push_need_not_wait_and_is_the_last() -> None:
    known = instances(WANTED)
    number = known.ask(ONE, CLIENT, 0).subscription_id
    push(known, 1, number)
    push(known, 2, number, ends=True)
    for now_ms in (3, 5000):
        with pytest.raises(BadRequest, match="after its terminating push"):
            push(known, now_ms, number, ends=True)


@pytest.mark.parametrize(
    ("changes", "error", "asks_again"),
    [
        ({"subscription_id": 7}, UnknownSubscription, True),
        ({"codec": 5}, UnsupportedCompression, True),
        ({"size_bytes": 101}, TelemetryTooLarge, False),
    ],
)
def test_pushes_that_are_refused(
    changes: dict[str, Any], error: type[PenstockError], asks_again: bool
) -> None:
    known = instances(WANTED)
    number = known.ask(ONE, CLIENT, 0).subscription_id
    with pytest.raises(error):
        push(known, 1, **{"subscription_id": number, **changes})
    if asks_again:
        known.ask(ONE, CLIENT, 2)
    else:
        with pytest.raises(TooEarly):
            known.ask(ONE, CLIENT, 2)


def test_other_subscriptions_are_another_number_at_once() -> None:
    known = instances(WANTED)
    number = known.ask(ONE, CLIENT, 0).subscription_id
    known.replace([WANTED, Subscription(metrics=("b.",), interval_ms=500)])
    with pytest.raises(UnknownSubscription):
        push(known, 1, number)
    asked = known.ask(ONE, CLIENT, 2)
    assert (asked.metrics, asked.interval_ms) == (("a.", "b."), 500)
    push(known, 3, asked.subscription_id)


def test_a_client_continues_at_another_broker() -> None:
    number = instances(WANTED).ask(ONE, CLIENT, 0).subscription_id
    push(instances(WANTED), 50, number)
    assert -(2**31) <= number < 2**31
    assert instances(WANTED).ask(UUID(int=2), CLIENT, 0).subscription_id != number


def test_clients_that_are_known_are_bounded_and_expire() -> None:
    known = instances(WANTED)
    for number in range(INSTANCES_MAX + 10):
        known.ask(UUID(int=number + 1), CLIENT, 0)
    assert len(known) == INSTANCES_MAX
    for number in range(INSTANCES_MAX):
        known.ask(UUID(int=1_000_000 + number), CLIENT, 3001)
    assert len(known) <= INSTANCES_MAX
    for number in range(10):
        known.ask(UUID(int=2_000_000 + number), CLIENT, 10_000)
    assert len(known) < INSTANCES_MAX


def test_all_subscriptions_that_match_are_one() -> None:
    wanted = [
        Subscription(metrics=("b", "a"), interval_ms=400_000),
        Subscription(metrics=("a", "c"), interval_ms=900_000),
        Subscription(metrics=("d",), interval_ms=100, match=[("client_id", "other")]),
    ]
    assert subscribed_metrics(CLIENT, wanted) == (("a", "b", "c"), 400_000)
    assert subscribed_metrics(CLIENT, [*wanted, Subscription(metrics=("*",), interval_ms=100)]) == (
        ("*",),
        100,
    )
    assert subscribed_metrics(CLIENT, []) == ((), 300_000)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("", True),
        ("client_id=etl-.*", True),
        ("client_id=etl", False),
        ("client_id=etl-[0-9],client_software_name=lib", True),
        ("client_id=etl-[0-9],client_software_name=java", False),
        ("client_source_port=x", True),
    ],
)
def test_clients_match_by_all_patterns_as_a_whole(match: str, fits: bool) -> None:
    configs = check_subscription("s", {"match": match, "metrics": "*", "interval.ms": "1000"})
    assert subscription_of(configs).fits(CLIENT) is fits


@pytest.mark.parametrize(
    ("configs", "error", "message"),
    [
        ({"interval.ms": "99"}, BadRequest, "interval.ms"),
        ({"interval.ms": "3600001"}, BadRequest, "3600000"),
        ({"interval.ms": None}, BadRequest, "no value given for interval.ms"),
        ({"speed": "1"}, BadRequest, "speed"),
        ({"match": "client_id"}, InvalidConfig, "'client_id' must have the form attribute="),
        ({"match": "colour=red"}, InvalidConfig, "attributes are client_instance_id, client_id"),
        ({"match": "client_id=("}, InvalidConfig, "match: client_id: "),
        ({"metrics": "a," * 501}, InvalidConfig, "metrics has 501 entries, more than 500"),
    ],
)
def test_subscriptions_that_cannot_be(
    configs: dict[str, str | None], error: type[PenstockError], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_subscription("s", configs)
